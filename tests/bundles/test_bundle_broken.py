# SPDX-License-Identifier: Apache-2.0
"""Configs with one mistake each: named in at most five lines, with file, key and the nearest valid one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vmfseg.bundle.check import inspect_bundle
from vmfseg.bundle.compile import compile_bundle, write_files
from vmfseg.bundle.components import config_findings
from vmfseg.bundle.config import closure, entries, overlay, read_config, references, stack
from vmfseg.cli.main import main
from vmfseg.utils import VmfError

FILES = compile_bundle("vmfnet_mnms")


def _edit(**changes: object) -> Callable[[str], str]:
    """Return a change of ``train.json``: ``a__b`` stands for ``a::b``, ``None`` removes."""

    def change(text: str) -> str:
        config = json.loads(text)
        for key, value in changes.items():
            *parents, last = key.split("__")
            node = config
            for parent in parents:
                node = node[parent]
            if value is None:
                del node[last]
            else:
                node[last] = value
        return json.dumps(config, indent=4)

    return change


def _text(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


MUTATED = [  # change of train.json, words of the command line, exit code, what the message must have
    pytest.param(_edit(), ["--set", "sead=3"], 2, ["VMF110", "sead", "Did you mean 'seed'?"], id="unknown key"),
    pytest.param(
        _edit(network_def__kappa="@sead"), [], 4,
        ["VMF311", "train.json: network_def::kappa", "@sead", "Did you mean 'seed'?"], id="reference",
    ),
    pytest.param(
        _edit(network_def___target_="vmfseg.networks.VMFNett"), [], 4,
        ["VMF312", "train.json: network_def::_target_", "VMFNett", "Did you mean 'vmfseg.networks.VMFNet'?"],
        id="target",
    ),
    pytest.param(
        _edit(train__inferer___target_="SimpleInferrer"), [], 4,
        ["VMF312", "train.json: train::inferer::_target_", "Did you mean 'SimpleInferer'?"], id="bare target",
    ),
    pytest.param(
        _text('"seed": 0,', '"seed": 0,,'), [], 4, ["VMF310", "train.json, line", "column 15", '"seed": 0,,'],
        id="bad JSON",
    ),
    pytest.param(
        _text('"seed": 0,', '"seed": 0,\n    "seed": 1,'), [], 4, ["VMF310", "train.json", "'seed' twice"], id="twice"
    ),
    pytest.param(
        _text('"seed": 0,', f'"seed": {"1" * 5001},'), [], 4, ["VMF310", "train.json", "digits"], id="long number"
    ),
    pytest.param(
        _edit(kappa="ten", network_def__kappa="@kappa"), [], 4,
        ["VMF315", "train.json: kappa, used as network_def::kappa", "takes a number for kappa", "'ten'"],
        id="wrong type",
    ),
    pytest.param(
        _edit(network_def__channels=16), [], 4, ["VMF315", "network_def::channels", "a list", "16"],
        id="number instead of a list",
    ),
    pytest.param(
        _edit(train__loader__dataset=None), [], 4,
        ["VMF325", "train.json: train::loader", "SliceLoader needs the argument dataset"], id="missing argument",
    ),
    pytest.param(
        _edit(network_def__num_kernel=3), [], 4,
        ["VMF316", "network_def::num_kernel", "VMFNet takes no such argument", "Did you mean 'num_kernels'?"],
        id="unknown argument",
    ),
    pytest.param(
        _edit(training=None, run=["$@stages.run()"], trainings=["$@stages.run()"]), [], 4,
        ["VMF326", "train.json", "nothing to run", "Did you mean 'trainings'?"], id="missing entry",
    ),
    pytest.param(_edit(seed="???"), [], 4, ["VMF317", "train.json: seed", "not set"], id="left open"),
    pytest.param(
        _edit(seed="@batch_size", batch_size="@seed"), [], 4, ["VMF313", "train.json:", "@seed -> @batch_size"],
        id="circle",
    ),
    pytest.param(
        _edit(epochs="$-(-@max_iterations // @epoch_length"), [], 4,
        ["VMF314", "train.json: epochs", "was never closed"], id="no Python",
    ),
    pytest.param(
        _edit(), ["--set", "network_def::kappa=ten"], 4,
        ["VMF315", "network_def::kappa", "'ten'"], id="value of an option"
    ),
    pytest.param(_edit(), ["--set", "+seed=3"], 4, ["VMF319", "+seed"], id="merge of a number"),
    pytest.param(_edit(), ["--set", "nothing::here=3"], 2, ["VMF110", "nothing::here"], id="no parent"),
]  # fmt: skip


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[Callable[[str], str]], Path]:
    """Return a function that writes the bundle with its ``train.json`` changed."""

    def make(change: Callable[[str], str]) -> Path:
        text = change(FILES["configs/train.json"])
        write_files({**FILES, "configs/train.json": text}, tmp_path / "vmfnet_mnms")
        return tmp_path / "vmfnet_mnms"

    return make


@pytest.mark.parametrize(("change", "words", "code", "parts"), MUTATED)
def test_a_mistake_is_named_in_five_lines(broken, monkeypatch, capsys, change, words, code, parts):
    root = broken(change)
    monkeypatch.setenv("VMFSEG_CACHE", str(root.parent / "cache"))
    # the values are refused before the data is asked for
    trusted = ["vmfseg", "train", str(root), "--trust"]
    monkeypatch.setattr("sys.argv", [*trusted, "--dataset_dir", "no/such/folder", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    error = capsys.readouterr().err
    assert caught.value.code == code, error
    assert len(error.strip().splitlines()) <= 5
    for part in parts:
        assert part in error
    assert not (root / "output").exists()


def test_monais_own_command_ends_with_the_mistake_alone(broken, tmp_path):
    config = broken(_edit()) / "configs" / "train.json"
    done = subprocess.run(
        [sys.executable, "-m", "monai.bundle", "run", "training", "--config_file", str(config), "--sead", "3"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "VMFSEG_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    block = done.stderr[done.stderr.index("vmfseg: error") :]
    assert len(block.strip().splitlines()) <= 5
    assert "VMF110" in block
    assert "Did you mean 'seed'?" in block


def test_an_overlay_that_edits_nothing_is_named(broken):
    root = broken(_edit())
    (root / "configs" / "paper.json").write_text('{"trainx::loss::weights": 1}')
    (finding,) = [finding for finding in inspect_bundle(root) if finding.exit_code == 4]
    assert (finding.code, finding.subject) == ("VMF319", "configs/paper.json: trainx::loss::weights")


def test_what_a_run_does_not_build_is_left_alone():
    unused = {"run": "$1", "later": {"_target_": "vmfseg.data.InterleavedLoader"}}
    assert list(config_findings(unused)) == []
    used = {"run": "$@later", "later": {"_target_": "vmfseg.data.InterleavedLoader"}}
    assert {finding.code for finding in config_findings(used)} == {"VMF325"}
    used["later"]["_disabled_"] = True
    assert list(config_findings(used)) == []


def test_classes_of_unknown_packages_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / "foreign_package.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    targets = ["foreign_package.Thing", "antigravity.x", "monai.bundle.__main__.x", "vmfseg..x", "os.system", ""]
    config = {"run": [{"_target_": target, "x": 1} for target in targets]}
    assert [finding.code for finding in config_findings(config)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: [1, 2", "expected ',' or ']'"),
        ("a: 1\na: 2", "comes twice"),
        ("- 1", "list at the top"),
        ("a: !!binary x", "failed to decode"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
    ids=["bracket", "twice", "list", "binary", "python"],
)
def test_broken_yaml_is_named(tmp_path, text, found):
    path = tmp_path / "train.yaml"
    path.write_text(text)
    with pytest.raises(VmfError, match="VMF310") as caught:
        read_config(path, "train.yaml")
    assert found in caught.value.found


def test_yaml_is_read_like_json(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text("a: {b: [1, 2.5, text, null, true]}\n1: x\n")
    assert read_config(path) == {"a": {"b": [1, 2.5, "text", None, True]}, "1": "x"}


def test_overlays_are_laid_over_train():
    configs = {file.removeprefix("configs/"): json.loads(text) for file, text in FILES.items() if file.endswith("json")}
    assert stack(configs) == {
        "train.json": ("train.json",),
        "inference.json": ("inference.json",),
        "evaluate.json": ("train.json", "evaluate.json"),
        "multi_gpu_train.json": ("train.json", "multi_gpu_train.json"),
        "paper.json": ("train.json", "paper.json"),
    }
    assert dict(entries({"a": [{"b": 1}]}))["a::0::b"] == 1


def test_ids_are_followed_and_written_in_one_way():
    config = {"a": {"x": "@b#c"}, "b": {"c": "$@d + @e::0", "f": "@g"}, "d": "%run", "e": [1], "run": ["$@a::x"]}
    config["g"] = 1
    assert references(config["b"]) == ["d", "e::0", "g"]
    assert set(closure(config, ["a#x"])) == {"a::x", "b::c", "d", "e::0", "run", "run::0"}
    assert set(closure(config, ["b"])) >= {"b", "b::c", "b::f", "g"}
    assert closure(config, ["nothing"]) == {}


@pytest.mark.parametrize(
    "change",
    [{"x::y": 1}, {"n::0": 1}, {"+a": [1]}, {"+l": {"a": 1}}, {"l::5": 1}, {"l::x": 1}, {"t::u": 1}],
    ids=lambda change: next(iter(change)),
)
def test_an_edit_that_leads_nowhere_is_named(change):
    with pytest.raises(VmfError, match="VMF319") as caught:
        overlay({"a": {"b": 1}, "l": [1], "t": "text", "n": 1}, change)
    assert caught.value.exit_code == 4
