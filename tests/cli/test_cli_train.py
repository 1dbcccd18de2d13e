# SPDX-License-Identifier: Apache-2.0
"""``vmfseg train``: the words of the command line become the keys of the config, and nothing else does."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vmfseg.cli.main import app, main
from vmfseg.cli.train_command import train_bundle
from vmfseg.utils import VmfError

RUNNER = CliRunner()
CONFIG = {
    "imports": ["$import json", "$import pathlib"],
    "bundle_root": ".",
    "dataset_dir": "",
    "output_dir": "$@bundle_root + '/output'",
    "ckpt_dir": "$@bundle_root + '/models'",
    "target_domain": "D",
    "labeled_fraction": 0.5,
    "seed": 0,
    "protocol": "clean",
    "max_iterations": 300,
    "init": "",
    "network_def": {"num_kernels": 12, "kappa": 10.0, "channels": [16, 32]},
    "batch_size": 4,
    "resume": False,
    "fresh": False,
    "value": None,
    "train": {"optimizer": {"lr": 0.001}},
    "echo": "",
    "values": {
        key: f"@{key}"
        for key in (
            "dataset_dir", "output_dir", "ckpt_dir", "target_domain", "labeled_fraction", "seed", "protocol",
            "max_iterations", "init", "batch_size", "resume", "fresh",
            "value",
        )
    }
    | {key: f"@network_def::{key}" for key in ("num_kernels", "kappa", "channels")}
    | {"lr": "@train::optimizer::lr"},
    "training": ["$pathlib.Path(@echo).write_text(json.dumps(@values))"],
}  # fmt: skip


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return a bundle whose training only writes down the values it was given."""
    configs = tmp_path / "bundles" / "echo_bundle" / "configs"
    configs.mkdir(parents=True)
    (configs / "train.json").write_text(json.dumps({**CONFIG, "echo": str(tmp_path / "echo.json")}))
    (configs / "paper.json").write_text('{"network_def::kappa": 30.0, "train::optimizer::lr": 0.0001}')
    (configs / "metadata.json").write_text('{"version": "0.1.0"}')
    return configs.parent


def _values(bundle: Path, *words: str) -> dict:
    result = RUNNER.invoke(app, ["train", str(bundle), "--trust", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads((bundle.parents[1] / "echo.json").read_text())


def test_without_options_the_config_decides(bundle):
    values = _values(bundle)
    assert values["seed"] == 0
    assert values["kappa"] == 10.0
    assert values["output_dir"] == f"{bundle}/output", "a root of . is the bundle's own folder, not the current one"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--dataset_dir", "~/data"], {"dataset_dir": "~/data"}),
        (["--dataset-dir", "x"], {"dataset_dir": "x"}),
        (["--target_domain", "B", "--labeled_fraction", "0.05"], {"target_domain": "B", "labeled_fraction": 0.05}),
        (["--seed", "3", "--protocol", "paper"], {"seed": 3, "protocol": "paper"}),
        (["--max_iterations", "7", "--num_kernels", "9"], {"max_iterations": 7, "num_kernels": 9}),
        (["--kappa", "20"], {"kappa": 20.0}),
        (["--resume", "--fresh"], {"resume": True, "fresh": True}),
        (["--paper"], {"kappa": 30.0, "lr": 0.0001}),
        (["--paper", "--kappa", "5"], {"kappa": 5.0, "lr": 0.0001}),
        (["--network_def::channels", "[4,8]"], {"channels": [4, 8]}),
        (["--network_def::channels=[4,8]", "--batch_size=2"], {"channels": [4, 8], "batch_size": 2}),
        (["--set", "batch_size=8", "--set", "network_def::channels=[1]"], {"batch_size": 8, "channels": [1]}),
        (["--train::optimizer::lr", "0.5"], {"lr": 0.5}),
        (["--train#optimizer#lr", "0.25"], {"lr": 0.25}),
        (["--set", "train::optimizer::lr=1e-5"], {"lr": 1e-5}),
        (["--batch_size", "$2 * 3"], {"batch_size": 6}),
        (["--batch_size", "@seed", "--seed", "-4"], {"batch_size": -4, "seed": -4}),
        (["--network_def::kappa", "20"], {"kappa": 20}),
        (
            ["--network_def::kappa", "4", "--network_def", '{"num_kernels": 3, "kappa": 1, "channels": null}'],
            {"num_kernels": 3, "kappa": 4, "channels": None},
        ),
        (["--set", "fresh=true"], {"fresh": True}),
        (["--set", 'value={"clustering": [0.2, 1]}'], {"value": {"clustering": [0.2, 1]}}),
        (["--init", "runs/x"], {"init": "runs/x"}),
        (["-o", "runs/x"], {"output_dir": "runs/x", "ckpt_dir": "runs/x/models"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_are_keys_of_the_config(bundle, words, expected):
    values = _values(bundle, *words)
    assert {key: values[key] for key in expected} == expected
    rest = {key: value for key, value in _values(bundle).items() if key not in expected}
    assert {key: values[key] for key in rest} == rest


def _exit(monkeypatch, capsys, *words) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["vmfseg", "train", *words, "--trust"])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--sed", "3"], 2, "Did you mean 'seed'?"),
        (["--set", "sed=3"], 2, "Did you mean 'seed'?"),
        (["--train::optimiser::lr", "3"], 2, "Did you mean 'train::optimizer'?"),
        (["--set", "seed"], 2, "--set takes KEY=VALUE"),
        (["stray"], 2, "every value must follow its option"),
        (["--labeled_fraction", "many"], 2, "labeled_fraction"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_words_are_refused_before_anything_runs(bundle, monkeypatch, capsys, words, code, text):
    got, error = _exit(monkeypatch, capsys, str(bundle), *words)
    assert got == code
    assert text in error
    assert "Traceback" not in error
    assert not (bundle.parents[1] / "echo.json").exists()


def test_a_name_below_bundles_is_enough_and_a_wrong_one_is_named(bundle, monkeypatch, capsys):
    monkeypatch.chdir(bundle.parents[1])
    assert _exit(monkeypatch, capsys, "echo_bundle") == (0, "")
    code, error = _exit(monkeypatch, capsys, "eco_bundle")
    assert code == 4
    assert "VMF330: there is no bundle at this place" in error
    assert "Did you mean 'echo_bundle'?" in error
    code, error = _exit(monkeypatch, capsys, "--kappa", "3", "--other", "1")
    assert code == 2


def test_a_bundle_that_runs_code_of_its_own_is_refused_without_trust(bundle):
    with pytest.raises(VmfError, match=r"VMF410.*\n.*train.json") as caught:
        train_bundle(str(bundle), {})
    assert caught.value.exit_code == 5
    assert "--trust" in caught.value.fix
    assert not (bundle.parents[1] / "echo.json").exists()


def test_a_missing_overlay_is_named(bundle, monkeypatch, capsys):
    (bundle / "configs" / "paper.json").unlink()
    code, error = _exit(monkeypatch, capsys, str(bundle), "--paper")
    assert code == 4
    assert "paper.json" in error


@pytest.mark.parametrize(
    ("expression", "code", "text"),
    [
        ("$int('x')", 2, "VMF100: invalid literal"),
        ("$[].pop()", 7, "VMF900: IndexError: pop from empty list"),
        ("$(_ for _ in ()).throw(MemoryError())", 6, "VMF505: the memory is not enough"),
        ("$(_ for _ in ()).throw(RuntimeError('CUDA out of memory. Tried'))", 6, "VMF505"),
        ("$(_ for _ in ()).throw(KeyboardInterrupt())", 130, "interrupted"),
    ],
    ids=["value", "bug", "memory", "device memory", "interrupt"],
)
def test_errors_inside_the_config_are_unwrapped(bundle, monkeypatch, capsys, expression, code, text):
    got, error = _exit(monkeypatch, capsys, str(bundle), "--batch_size", expression)
    assert got == code
    assert text in error
    assert len(error.strip().splitlines()) <= 5
    assert "Failed to" not in error


def test_a_file_of_overrides_is_laid_over_the_config_and_options_over_the_file(bundle, tmp_path):
    mine = tmp_path / "mine.json"
    mine.write_text('{"batch_size": 9, "network_def::kappa": 7.0, "+network_def": {"num_kernels": 5}}')
    values = _values(bundle, "--config", str(mine))
    assert (values["batch_size"], values["kappa"], values["num_kernels"]) == (9, 7.0, 5)
    assert values["channels"] == [16, 32]
    assert _values(bundle, "--config", str(mine), "--batch_size", "2")["batch_size"] == 2
    mine.write_text('{"sed": 1}')
    with pytest.raises(VmfError, match="VMF110"):
        train_bundle(bundle, configs=[mine], trust=True)


def test_debug_shows_the_traceback(bundle, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["vmfseg", "--debug", "train", str(bundle), "--trust", "--sed", "3"])
    monkeypatch.setenv("VMFSEG_DEBUG", "")
    with pytest.raises(SystemExit):
        main()
    assert "Traceback" in capsys.readouterr().err


def test_in_python_it_is_a_function_without_warnings(bundle):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        train_bundle(str(bundle), {"network_def::kappa": 3.0}, trust=True)
    assert json.loads((bundle.parents[1] / "echo.json").read_text())["kappa"] == 3.0
    with pytest.raises(VmfError, match="VMF110"):
        train_bundle(str(bundle), {"sed": 3}, trust=True)


def test_help_fits_80_columns_and_shows_examples():
    result = RUNNER.invoke(app, ["train", "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    for word in ("--dataset_dir", "--target_domain", "--labeled_fraction", "--resume", "--paper", "--set", "Examples:"):
        assert word in result.output
    assert "vmfseg train vmfnet_mnms --kappa 20 -o runs/kappa20 --resume" in result.output
