# SPDX-License-Identifier: Apache-2.0
"""A misspelt key is an error, a sensible addition is not."""

from __future__ import annotations

import json
import sys

import pytest
from monai.bundle import ConfigWorkflow

from vmfseg.bundle import check_keys
from vmfseg.bundle.keys import new_keys, union
from vmfseg.bundle.start import explain_errors
from vmfseg.utils import VmfError, find_vmf_error

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


def test_new_keys_are_found_at_any_depth_and_files_are_united():
    known = union(
        [{"train::loader::workers": 2, "none::x": 1}, CONFIG, {"train": {"extra": 1}, "train::loader::seed": 3}]
    )
    assert known["train"]["extra"] == 1
    assert known["train"]["loader"]["workers"] == 2
    assert "none" not in known
    assert known["train"]["loader"]["seed"] == "@seed"
    changed = json.loads(json.dumps(CONFIG))
    changed["train"]["loader"]["batch_sise"] = 1
    changed["other"] = {"deep": 1}
    assert sorted(new_keys(changed, known)) == ["other", "train::loader::batch_sise"]


@pytest.fixture
def workflow(tmp_path):
    """Return a function that makes a MONAI workflow over a bundle whose run only checks its keys."""
    configs = tmp_path / "bundle" / "configs"
    configs.mkdir(parents=True)
    (configs / "metadata.json").write_text('{"version": "1"}')
    config = {
        "imports": ["$import vmfseg", "$import vmfseg.bundle"],
        "size": 3,
        "data": {"x": 1},
        "user": "$len(@data)",
        "train": {"loader": {"_target_": "vmfseg.data.SliceLoader", "batch_size": 4}, "handlers": []},
    }
    config["run"] = ["$vmfseg.bundle.start_run()", "$@size"]
    (configs / "train.json").write_text(json.dumps(config))
    (configs / "paper.json").write_text('{"size": 9, "data::x": 2, "paper_only": 1}')

    def make(*files, **overrides):
        names = [str(configs / name) for name in files or ("train.json",)]
        made = ConfigWorkflow(names, logging_file=False, workflow_type=None, **overrides)
        made.initialize()
        return made

    return make


@pytest.mark.parametrize(
    ("overrides", "size"),
    [
        pytest.param({}, 3, id="none"),
        pytest.param({"size": 5}, 5, id="known"),
        pytest.param({"paper_only": 3}, 3, id="of another file of the bundle"),
        pytest.param({"data::y": 3}, 3, id="data"),
        pytest.param({"mine": 4, "size": "@mine"}, 4, id="referred to"),
        pytest.param({"train::loader::seed": 4}, 3, id="an argument"),
        pytest.param({"train::loader::_target_": "torch.optim.SGD", "train::loader::lr": 1}, 3, id="another target"),
        pytest.param({"uri": "x", "train::handlers": [{"_target_": "H", "uri": "@uri"}]}, 3, id="as tracking does"),
    ],
)
def test_a_workflow_with_good_keys_runs(workflow, overrides, size):
    assert workflow(**overrides).run()[1] == size


def test_an_overlay_of_the_bundle_is_known(workflow):
    assert workflow("train.json", "paper.json").run()[1] == 9


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("siize", "size"),
        ("datta", "data"),
        ("train::lodaer", "train::loader"),
        ("train::loader::batch_sise", "batch_size"),
    ],
)
def test_a_workflow_with_a_misspelt_key_stops(workflow, key, near):
    with pytest.raises(RuntimeError) as caught:
        workflow(**{key: 5}).run()
    refusal = find_vmf_error(caught.value)
    assert refusal is not None
    assert refusal.subject == key
    assert refusal.fix == f"Did you mean {near!r}?"


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
