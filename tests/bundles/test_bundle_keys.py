# SPDX-License-Identifier: Apache-2.0
"""A misspelt key is an error, a sensible addition is not."""

from __future__ import annotations

import json
import sys

import pytest

from vmfseg.bundle.keys import check_keys
from vmfseg.bundle.runtime import check_command_line, explain_errors
from vmfseg.utils import VmfError

CONFIG = {
    "seed": 0,
    "kappa": 10.0,
    "loss_weights": {"dice": 1.0},
    "net": {"_target_": "vmfseg.networks.VMFNet", "kappa": "@kappa", "seed": "@seed"},
    "inferer": {"_target_": "SimpleInferer"},
    "train": {
        "loader": {"_target_": "vmfseg.data.SliceLoader", "batch_size": 4, "seed": "@seed"},
        "handlers": [{"_target_": "StatsHandler", "name": "x"}],
        "loss": {"_target_": "vmfseg.losses.VMFLoss", "weights": "@loss_weights"},
        "stage": {"_target_": "vmfseg.engines.TrainingStage", "state": {"network": "@net"}},
        "used": "@train::loader",
    },
}


@pytest.mark.parametrize(
    "key",
    [
        "seed", "train::loader::batch_size", "train#loader#batch_size", "+loss_weights", "train::handlers::0::name",
        pytest.param("train::loader::balanced", id="an argument that the config leaves out"),
        pytest.param("inferer::_disabled_", id="MONAI's own words"),
        pytest.param("loss_weights::presence", id="an entry of data that is referred to as a whole"),
        pytest.param("train::stage::state::optimizer", id="an entry of an argument"),
        pytest.param("initialize", id="MONAI's own key"),
    ],
)  # fmt: skip
def test_keys_that_something_reads_are_accepted(key):
    check_keys(CONFIG, {key: 1})


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("kapa", "Did you mean 'kappa'?"),
        ("Seed", "Did you mean 'seed'?"),
        ("train::lodaer", "Did you mean 'train::loader'?"),
        ("train::loader::batch_sise", "Did you mean 'batch_size'?"),
        ("train#loader#batch_sise", "Did you mean 'batch_size'?"),
        ("net::num_kernel", "Did you mean 'num_kernels'?"),
        ("trainx::loader::batch_size", "Did you mean 'train'?"),
        ("zzzzzz", "keys there: inferer, kappa, loss_weights, net, seed, train"),
        ("train::handlers::1::name", "check the id against the config"),
        ("train::handlers::\u00b2::name", "check the id against the config"),
        ("train::handlers::" + "9" * 450, "check the id against the config"),
        ("seed::value", "check the id against the config"),
        ("inferer::zzz", "arguments: none"),
    ],
)
def test_keys_that_nothing_reads_are_refused_with_the_nearest(key, fix):
    with pytest.raises(VmfError) as caught:
        check_keys(CONFIG, {key: 1})
    assert caught.value.code == "VMF110"
    assert caught.value.exit_code == 2
    assert caught.value.subject == key.replace("#", "::")
    assert fix in caught.value.fix


def test_arguments_are_those_of_the_target_that_will_be_called():
    check_keys(CONFIG, {"train::loader::_target_": "torch.optim.SGD", "train::loader::momentum": 0.9})
    with pytest.raises(VmfError, match="SGD takes no argument momentun"):
        check_keys(CONFIG, {"train::loader::_target_": "torch.optim.SGD", "train::loader::momentun": 0.9})


def test_a_new_key_that_another_override_refers_to_is_accepted():
    check_keys(CONFIG, {"my_kappa": 5.0, "kappa": "$@my_kappa * 2"})
    with pytest.raises(VmfError, match="no such key"):
        check_keys(CONFIG, {"my_kappa": 5.0, "kappa": 2})


def test_arguments_are_those_of_an_object_that_is_replaced():
    other = {"_target_": "monai.networks.nets.UNet", "spatial_dims": 2}
    check_keys(CONFIG, {"net": other, "net::channels": [4, 8]})
    with pytest.raises(VmfError, match="UNet takes no argument kapa"):
        check_keys(CONFIG, {"net": other, "net::kapa": 3})


@pytest.fixture
def files(tmp_path):
    """Return the paths of a config and of one that is laid over it."""
    (tmp_path / "train.json").write_text(json.dumps(CONFIG))
    (tmp_path / "more.json").write_text('{"train::loader::batch_size": 2, "extra": 1, "extra_user": "@extra"}')
    return tmp_path / "train.json", tmp_path / "more.json"


@pytest.mark.parametrize(
    "words",
    [
        ["--config_file", "TRAIN", "--seed", "3", "--train::loader::batch_size=4"],
        ["--config_file", "['TRAIN','MORE']", "--extra", "3", "--meta_file", "x.json"],
        ["--config_file", "TRAIN,MORE", "--extra=3", "--logging_file", "x.conf", "--run_id", "run"],
        ["--config_file=TRAIN", "--tracking", "mlflow", "--experiment_name", "mine", "--run_name", "first"],
        ["--config_file", "no_such_file.json", "--kapa", "3"],
        ["--kapa", "3"],
    ],
)
def test_command_lines_of_monai_with_good_keys_pass(files, words):
    check_command_line(
        ["run", "training", *(w.replace("TRAIN", str(files[0])).replace("MORE", str(files[1])) for w in words)]
    )


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["--kapa", "3"], "kappa"),
        (["--train::lodaer=2"], "train::loader"),
        (["--train#loader#batch_sise", "1"], "batch_size"),
    ],
)
def test_misspelt_keys_of_a_command_line_of_monai_are_refused(files, words, near):
    with pytest.raises(VmfError, match="VMF110") as caught:
        check_command_line(["run", "--config_file", str(files[0]), *words])
    assert caught.value.fix == f"Did you mean {near!r}?"


def test_the_cause_comes_last_and_only_once(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    explain_errors()
    explain_errors()
    inner = VmfError("VMF290", subject="target", rule="unknown", fix="Did you mean 'D'?")
    error = RuntimeError("Failed to evaluate")
    error.__cause__ = inner
    sys.excepthook(RuntimeError, error, None)
    text = capsys.readouterr().err
    assert text == ("vmfseg: error VMF290: unknown\n  about  target\n  fix    Did you mean 'D'?\n")
    assert text.count("vmfseg: error") == 1
    sys.excepthook(KeyError, KeyError("x"), None)
    assert "vmfseg" not in capsys.readouterr().err
