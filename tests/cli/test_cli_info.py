# SPDX-License-Identifier: Apache-2.0
"""``vmfseg info``: what a bundle says about itself, trained or not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

sys.path.append(str(Path(__file__).parent.parent / "model"))
from inference_bundle import tiny_network, write_tiny_bundle

from vmfseg.bundle.compile import write_bundle
from vmfseg.bundle.describe import describe_bundle
from vmfseg.bundle.new import new_bundle
from vmfseg.cli.main import app
from vmfseg.utils import VmfError

RUNNER = CliRunner()


@pytest.fixture
def bundle(tmp_path):
    write_bundle("vmfnet_mnms", tmp_path)
    return tmp_path / "vmfnet_mnms"


@pytest.fixture
def trained(tmp_path):
    """Return a bundle with a model and scores."""
    facts = {"data": {"is_phantom": True, "seed": 4}, "selection": {"source_validation_dice": 0.9}}
    root = write_tiny_bundle(tmp_path / "trained", tiny_network(kappa=21.0), facts=facts)
    (root / "output").mkdir()
    scores = {"format": "vmfseg-metrics-1", "protocol": "clean", "mean_dice": 0.85}
    scores["domains"] = {"D": {"classes": {"LV": {"dice": {"mean": 0.91}}, "RV": {"dice": {"mean": None}}}}}
    (root / "output" / "metrics.json").write_text(json.dumps(scores))
    return root


def test_an_untrained_bundle_says_how_to_train_it(bundle):
    about = describe_bundle(bundle)
    assert about["name"] == "vmfnet_mnms"
    assert about["labels"] == {"0": "background", "1": "LV", "2": "MYO", "3": "RV"}
    assert about["input"]["num_channels"] == 1
    assert about["model"] is None
    assert about["scores"] is None
    assert about["findings"] == {"untrusted": 0, "broken": 0}
    assert about["next"][0] == f"vmfseg train {bundle}"


def test_a_trained_bundle_shows_its_figures(trained):
    about = describe_bundle(trained)
    assert about["model"]["trained_on"] == "the built-in phantom"
    assert about["model"]["as_noted"] is True
    assert about["settings"]["kappa"] == 21.0, "what the run changed counts"
    assert about["scores"]["domains"] == {"D": {"LV": 0.91, "RV": None}}
    result = RUNNER.invoke(app, ["info", str(trained)], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0
    for text in (
        "mean Dice 0.850 (target domain unseen",
        "unseen domain D: LV 0.910, RV -",
        "Dice 0.900 on source",
        "vmfseg segment",
        "good",
    ):
        assert text in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_a_run_folder_is_described_by_its_model(trained, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (trained / "models").rename(run / "models")
    about = describe_bundle(run)
    assert (about["name"], about["labels"]["1"], about["model"]["network"]) == ("vmfnet_mnms", "LV", "VMFNet")
    assert RUNNER.invoke(app, ["info", str(run)], catch_exceptions=False).exit_code == 0


def test_changed_weights_are_told(trained):
    weights = trained / "models" / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights)
    about = describe_bundle(trained)
    assert about["model"]["as_noted"] is False
    assert about["findings"]["untrusted"] == 1
    assert "CHANGED" in RUNNER.invoke(app, ["info", str(trained)]).output


def test_nothing_in_it_is_executed(bundle, tmp_path):
    canary = tmp_path / "canary"
    config = json.loads((bundle / "configs" / "train.json").read_text())
    config["kappa"] = f"$open({str(canary)!r}, 'w')"
    (bundle / "configs" / "train.json").write_text(json.dumps(config))
    result = RUNNER.invoke(app, ["info", str(bundle), "--json"], catch_exceptions=False)
    about = json.loads(result.output)
    assert about["findings"]["untrusted"] == 1
    assert not canary.exists()


def test_a_bundle_for_own_data_needs_its_folder(tmp_path):
    new_bundle("knee", tmp_path, ["femur"], 1.0, 64)
    assert "--dataset_dir DIR" in describe_bundle(tmp_path / "knee")["next"][0]


def test_what_is_no_bundle_is_named(tmp_path):
    with pytest.raises(VmfError, match="VMF318"):
        describe_bundle(tmp_path)
    result = RUNNER.invoke(app, ["info", str(tmp_path)])
    assert isinstance(result.exception, VmfError)
    assert result.exception.code == "VMF330"
