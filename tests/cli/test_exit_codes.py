# SPDX-License-Identifier: Apache-2.0
"""What a user got wrong ends with exit codes 2 to 6, a code, a cause and a cure in five lines; 7 is for bugs alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from command_runs import run_main

sys.path.append(str(Path(__file__).parents[1] / "model"))
from inference_bundle import tiny_network, write_tiny_bundle

from vmfseg.bundle.compile import write_bundle


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Return a bundle with a small model."""
    return write_tiny_bundle(tmp_path_factory.mktemp("trained"), tiny_network())


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Return a bundle that was not trained."""
    folder = tmp_path_factory.mktemp("source")
    write_bundle("vmfnet_mnms", folder)
    return folder / "vmfnet_mnms"


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch, tmp_path):
    """Give every test a cache of its own, so that one can see whether the phantom was made."""
    monkeypatch.setenv("VMFSEG_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def save_scan(path: Path) -> Path:
    array = np.random.default_rng(0).integers(0, 200, (24, 20, 3)).astype(np.int16)
    nib.save(nib.Nifti1Image(array, np.diag([1.25, 1.25, 8.0, 1.0])), path)
    return path


def refused(code: int, *words: object) -> str:
    ended = run_main(*words)
    assert ended.code == code, f"{ended.code}\n{ended.out}\n{ended.err}"
    lines = ended.err.strip().splitlines()
    assert len(lines) <= 5, ended.err
    assert re.match(r"vmfseg: error VMF\d{3}: \S", lines[0])
    assert "Traceback" not in ended.err
    return ended.err


OPTIONS = [  # options, exit code, what the message must say
    pytest.param(["--max_iterations", "0"], 2, "max_iterations must be a whole number from 1", id="no iterations"),
    pytest.param(["--max_iterations", "-5"], 2, "max_iterations must be", id="negative iterations"),
    pytest.param(["--epoch_length", "0"], 2, "epoch_length must be", id="epochs of nothing"),
    pytest.param(["--batch_size", "2.5"], 2, "batch_size must be", id="half an image"),
    pytest.param(["--learning_rate", "-1"], 2, "learning_rate must be", id="learning backwards"),
    pytest.param(["--labeled_fraction", "1.5"], 2, "labeled_fraction must be", id="more than all"),
    pytest.param(["--protocol", "papre"], 2, "Did you mean 'paper'", id="protocol"),
    pytest.param(["--selection", "worst"], 2, "selection must be one of best, last", id="selection"),
    pytest.param(["--device", "banana"], 2, "device", id="no device"),
    pytest.param(["--device", "meta"], 2, "device", id="device without values"),
    pytest.param(["--seed", "1" + "0" * 30], 2, "seed must be", id="seed of 10**30"),
    pytest.param(["--kappa", "-1"], 2, "kappa", id="argument of the network"),
    pytest.param(["--pixdim", "-1"], 2, "pixdim must be positive", id="argument of a transform"),
    pytest.param(["--set", "foo::bar=1"], 2, "no such key", id="key without a parent"),
    pytest.param(["--set", "+foo=1"], 2, "no such key", id="merge into nothing"),
    pytest.param(["--set", "seed::a=1"], 2, "is a value, not a section", id="key below a value"),
    pytest.param(["--set", "loss_weights=$" + "-" * 900 + "1"], 4, "VMFLoss refuses", id="expression of 900 signs"),
    pytest.param(["--set", "loss_weights=$" + "(" * 900 + "1"], 4, "VMF314", id="expression of 900 brackets"),
    pytest.param(["--set", "loss_weights=$bytearray(2 ** 62)"], 6, "VMF505", id="more than any memory holds"),
    pytest.param(["--seed=" + "9" * 5001], 2, "", id="number of 5001 digits"),
]


@pytest.mark.parametrize(("options", "code", "text"), OPTIONS)
def test_wrong_training_options_are_refused_before_the_phantom_is_made(options, code, text, source, tmp_path):
    if options[0].startswith("--seed=9"):  # typer's own message
        assert run_main("train", source, "-o", tmp_path / "run", *options).code == code
    else:
        assert text in refused(code, "train", source, "-o", tmp_path / "run", *options)
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "run").exists()


def test_a_wrong_setting_of_a_file_is_blamed_on_the_file(source, tmp_path):
    other = tmp_path / "own"
    shutil.copytree(source, other)
    config = json.loads((other / "configs" / "train.json").read_text())
    (other / "configs" / "train.json").write_text(json.dumps({**config, "learning_rate": "ten"}))
    (tmp_path / "more.json").write_text('{"batch_size": 0}')
    text = refused(4, "train", other, "--trust", "-o", tmp_path / "run")
    assert "VMF315" in text
    assert "configs/train.json: learning_rate" in text
    assert "'ten'" in text
    text = refused(4, "train", other, "--trust", "--learning_rate", "0.1", "--config", tmp_path / "more.json")
    assert "VMF315" in text
    assert "more.json: batch_size" in text
    text = refused(2, "train", other, "--trust", "--learning_rate", "-1", "-o", tmp_path / "run")
    assert "VMF100" in text
    assert "--learning_rate" in text


class _Call:
    """What a pickle would call."""

    def __reduce__(self):
        return os.mkdir, ("canary",)


@pytest.mark.parametrize(
    ("weights", "code", "text"),
    [
        pytest.param({"some.other.layer": torch.ones(3, 3)}, 4, "VMF351", id="another network"),
        pytest.param({"head.convolution.bias": torch.ones(4)}, 4, "VMF351", id="a bias alone"),
        pytest.param(_Call(), 5, "VMF401", id="code"),
        pytest.param({"encoder": [1, 2]}, 5, "VMF401", id="no tensors"),
        pytest.param("nan", 5, "VMF402", id="not finite"),
        pytest.param(None, 4, "VMF335", id="no file"),
    ],
)
def test_weights_that_no_training_can_start_from_are_refused_before_the_phantom_is_made(
    weights, code, text, source, trained, tmp_path
):
    if weights == "nan":
        weights = {name: tensor * torch.nan for name, tensor in tiny_network().state_dict().items()}
    if weights is not None:
        torch.save(weights, tmp_path / "weights.pt")
    shape = json.loads((trained / "models" / "manifest.json").read_text())["network"]
    words = ("--init", tmp_path / "weights.pt", "--network_def", json.dumps(shape), "-o", tmp_path / "run")
    said = refused(code, "train", source, *words)
    assert text in said
    assert "weights.pt" in said
    assert not (tmp_path / "canary").exists()
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "run").exists()


def test_a_folder_in_the_place_of_a_config_is_refused(source, tmp_path):
    (tmp_path / "b" / "configs" / "paper.json").mkdir(parents=True)
    for name in ("metadata.json", "train.json"):
        (tmp_path / "b" / "configs" / name).write_bytes((source / "configs" / name).read_bytes())
    assert "VMF305" in refused(4, "train", tmp_path / "b", "--paper")


def test_what_segment_cannot_do_is_no_bug(trained, tmp_path):
    scan = save_scan(tmp_path / "scan.nii.gz")
    assert "File name too long" in refused(6, "segment", trained, scan, "-o", tmp_path / ("x" * 300))
    assert "device" in refused(2, "segment", trained, scan, "-o", tmp_path / "out", "--device", "meta")
    assert "nan_to must be finite" in refused(2, "segment", trained, scan, "-o", tmp_path / "out", "--nan-to", "nan")
    for option, value in (("--batch-size", 10**18), ("--frames", "\u00b2"), ("--frames", "9" * 5001)):
        assert run_main("segment", trained, scan, "-o", tmp_path / "out", option, value).code == 2
    assert not (tmp_path / "out").exists()


def test_names_that_are_no_utf8_and_hold_escapes_are_shown_escaped(trained, tmp_path):
    name = os.fsdecode(b"b\xff\x1b[2J.nii")
    save_scan(tmp_path / "ok.nii").rename(tmp_path / name)
    ended = run_main("segment", trained, tmp_path / name, "-o", tmp_path / "out")
    assert ended.code == 0, ended.err
    assert "\x1b[2J" not in ended.out + ended.err
    quality = next((tmp_path / "out").glob("*_quality.json"))
    assert json.loads(quality.read_text(encoding="utf-8"))["input"] == name
    (tmp_path / name).write_bytes(b"")
    ended = run_main("verify", tmp_path / name)
    assert ended.code == 3
    assert "\x1b" not in ended.err
    assert "VMF204" in ended.err


def test_one_image_can_be_verified(tmp_path):
    scan = save_scan(tmp_path / "scan.nii.gz")
    ended = run_main("verify", scan)
    assert ended.code == 0
    assert "24x20x3 1.25x1.25x8 mm RAS" in ended.out
    told = json.loads(run_main("verify", scan, "--json").out)
    assert (told["shape"], told["errors"], told["warnings"]) == ([24, 20, 3], 0, 0)
    scan.write_bytes(scan.read_bytes()[:-20])
    assert "VMF210" in refused(3, "verify", scan)
    assert "VMF201" in refused(3, "verify", tmp_path / "none.nii")
    assert "VMF162" in refused(2, "verify", save_scan(scan), "-o", tmp_path / "list.json")


def test_json_of_many_levels_is_no_bug(source, tmp_path):
    deep = "[" * 100_000
    folder = tmp_path / "scans"
    folder.mkdir()
    (folder / "list.json").write_text(deep)
    assert "VMF301" in refused(4, "verify", folder / "list.json")
    assert "VMF285" in refused(3, "verify", folder)
    assert "VMF315" in refused(4, "train", source, "--set", f"loss_weights={deep}", "-o", tmp_path / "run")


def test_scores_that_lack_a_part_make_no_report(tmp_path):
    (tmp_path / "metrics.json").write_text('{"format": "vmfseg-metrics-1"}')
    (tmp_path / "metrics.csv").write_text("subject\n")
    assert "no overall" in refused(4, "report", tmp_path)


def zipped(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archive_with_a_broken_stream_is_refused(method, tmp_path):
    path = zipped(tmp_path / "b.zip", {"configs/train.json": os.urandom(4000)}, method)
    data = bytearray(path.read_bytes())
    for position in range(60, 2000, 3):
        data[position] ^= 0xFF
    path.write_bytes(data)
    ended = run_main("bundle", "check", path)
    assert (ended.code, "VMF415" in ended.out) == (5, True), ended


@pytest.mark.parametrize(
    "names", [["configs/a" * 150], ["configs", "configs/train.json"], ["configs/A.json", "configs/a.json"]]
)
def test_archive_with_names_that_clash_is_refused(names, tmp_path):
    path = zipped(tmp_path / "b.zip", dict.fromkeys(names, b"{}"))
    ended = run_main("bundle", "check", path)
    assert (ended.code, "VMF415" in ended.out) == (5, True), ended


def test_a_bug_is_shown_in_two_lines(monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("\n".join(str(k) for k in range(13)) + "\x1b[2J")

    monkeypatch.setattr("vmfseg.utils.machine.inspect_machine", fails)
    text = refused(7, "doctor")
    assert "VMF900: RuntimeError: 0 1 2" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("error", "code"), [(PermissionError(13, "no", "/x"), "VMF560"), (MemoryError(), "VMF561")])
def test_faults_of_the_system_are_no_bugs(error, code, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("vmfseg.utils.machine.inspect_machine", fails)
    assert code in refused(6, "doctor")
