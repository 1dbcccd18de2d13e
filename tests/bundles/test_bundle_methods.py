# SPDX-License-Identifier: Apache-2.0
"""The compared methods as bundles: trained on two batches, segmented as evaluated, described by plain values."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from typing import Any

import pytest
import torch
from agreement import check_agreement, train
from conftest import BUNDLES

from vmfseg.bundle.trust import not_plain
from vmfseg.methods import SDNet, SegmentationUNet, load_generator
from vmfseg.model import Model
from vmfseg.utils import VmfError

WIDTHS = {"network_def::channels": [4, 8, 8]}
#: What makes each method small enough for seconds.
TINY: dict[str, dict[str, Any]] = {
    "unet": WIDTHS,
    "sdnet": {**WIDTHS, "network_def::hidden_channels": 4, "train::trainer::warm_up": 0},
    "lddg": {**WIDTHS, "network_def::hidden_channels": 4},
    "saml": WIDTHS,
    "dgnet": {**WIDTHS, "network_def::style_channels": 2},
}
HAS_NNUNET = bool(os.environ.get("VMFSEG_NNUNET_PYTHON") or importlib.util.find_spec("nnunetv2"))
PLANS = "nnUNetTrainer__nnUNetPlans__2d/plans.json"
#: Two in every run of the tests; the others take their time.
FAST = ("sdnet_mnms", "saml_scgm")
NAMES = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
    for name in (f"{method}_{data}" for method in TINY for data in ("mnms", "scgm"))
]


@pytest.mark.parametrize("name", NAMES)
def test_two_batches_train_and_segment_as_they_were_evaluated(name, phantoms, tmp_path):
    method, kind = name.split("_")
    folder = train(tmp_path / "run", phantoms[kind], name, **TINY[method])
    predictor = check_agreement(folder, phantoms[kind], name)
    model = Model.load(folder)
    target = json.loads((BUNDLES / name / "configs" / "train.json").read_text())["network_def"]["_target_"]
    assert model.network["_target_"] == target
    manifest = json.loads((folder / "models" / "manifest.json").read_text())
    assert manifest["name"] == name
    built = {section: manifest[section] for section in ("network", "preprocessing", "postprocessing")}
    assert not list(not_plain(built, set()))
    assert not predictor.has_kernels
    assert all(torch.isfinite(value).all() for value in model.build_network().state_dict().values())
    for file in ("quality.json", "shift.json", "calibration.safetensors"):
        assert (folder / "models" / file).is_file()


@pytest.mark.slow
@pytest.mark.skipif(not HAS_NNUNET, reason="nnunetv2 is not installed, and VMFSEG_NNUNET_PYTHON names no interpreter")
@pytest.mark.parametrize("name", ["nnunet_mnms", "nnunet_scgm"])
def test_nnunet_is_trained_by_its_own_package_and_segments_like_every_bundle(name, phantoms, tmp_path):
    folder = train(tmp_path / "run", phantoms[name.split("_")[1]], name, memory_gb=0.5, max_iterations=4)
    predictor = check_agreement(folder, phantoms[name.split("_")[1]], name)
    assert predictor.labels == Model.load(folder).labels
    stage = next((folder / "stages").glob("training-*"))
    assert "PlainConvUNet" in (stage / "nnunet" / "results" / "Dataset001_vmfseg" / PLANS).read_text()
    assert not (stage / "nnunet" / "raw").exists(), "scratch data goes"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["unet", "sdnet", "lddg"])
def test_two_processes_train_it(method, phantoms, copied, run_bundle):
    bundle = copied(f"{method}_mnms")
    files = [str(bundle / "configs" / name) for name in ("train.json", "multi_gpu_train.json")]
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m")
    short = {"max_iterations": 2, "epoch_length": 2, "batch_size": 3, "calibration::stage::max_volumes": 2}
    run_bundle(
        "training", "--config_file", str(files), program=torchrun, dataset_dir=phantoms["mnms"], image_size=64,
        **TINY[method], **short,
    )  # fmt: skip
    assert math.isfinite(json.loads((bundle / "output" / "metrics.json").read_text())["mean_dice"])


def test_a_generator_must_be_an_sdnet(tmp_path):
    network = SegmentationUNet(channels=(4, 8), seed=0)
    definition = {"_target_": "vmfseg.methods.SegmentationUNet", "channels": [4, 8]}
    model = Model.of_slices(definition, {0: "background", 1: "LV", 2: "MYO", 3: "RV"}, 2.5, (32, 32))
    model.save(tmp_path, network.state_dict())
    assert load_generator("") is None
    with pytest.raises(VmfError, match="VMF360"):
        load_generator(tmp_path)
    sdnet = SDNet(channels=(4, 8), hidden_channels=4, style_grid=2, seed=0)
    definition = {"_target_": "vmfseg.methods.SDNet", "channels": [4, 8], "hidden_channels": 4, "style_grid": 2}
    model = Model.of_slices(definition, model.labels, 2.5, (32, 32))
    model.save(tmp_path / "sdnet", sdnet.state_dict())
    loaded = load_generator(tmp_path / "sdnet")
    assert all(torch.equal(value, sdnet.state_dict()[name]) for name, value in loaded.state_dict().items())
