# SPDX-License-Identifier: Apache-2.0
"""``vmfseg info``: what a bundle says about itself, trained or not."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from vmfseg.bundle.compile import write_bundle
from vmfseg.bundle.describe import describe_bundle
from vmfseg.bundle.new import new_bundle
from vmfseg.cli.main import app
from vmfseg.utils import VmfError, sha256_file

RUNNER = CliRunner()


@pytest.fixture
def bundle(tmp_path):
    write_bundle("vmfnet_mnms", tmp_path)
    return tmp_path / "vmfnet_mnms"


@pytest.fixture
def trained(bundle):
    """Return a bundle with weights, their note and scores."""
    weights = bundle / "models" / "model.safetensors"
    save_file({"w": torch.zeros(3)}, weights)
    manifest = {
        "phantom": True, "seed": 4, "selection": {"source_validation_dice": 0.9},
        "settings": {"kappa": 21.0}, "sha256": {weights.name: sha256_file(weights)},
    }  # fmt: skip
    (bundle / "models" / "manifest.json").write_text(json.dumps(manifest))
    (bundle / "output").mkdir()
    scores = {"format": "vmfseg-metrics-1", "protocol": "clean", "mean_dice": 0.85}
    scores["domains"] = {"D": {"classes": {"LV": {"dice": {"mean": 0.91}}, "RV": {"dice": {"mean": None}}}}}
    (bundle / "output" / "metrics.json").write_text(json.dumps(scores))
    return bundle


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
        "mean Dice 0.850",
        "unseen domain D: LV 0.910, RV -",
        "Dice 0.900 on source",
        "vmfseg segment",
        "good",
    ):
        assert text in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_changed_weights_are_told(trained):
    save_file({"w": torch.ones(3)}, trained / "models" / "model.safetensors")
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
