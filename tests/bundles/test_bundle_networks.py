# SPDX-License-Identifier: Apache-2.0
"""Any network and any transform: trained, then segmented and evaluated by exactly what was trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from agreement import check_agreement, train

from vmfseg.data import MNMsDataset
from vmfseg.model import Model
from vmfseg.utils import read_json

UNET = {"_target_": "monai.networks.nets.UNet", "spatial_dims": 2, "in_channels": 1, "out_channels": 4,
        "channels": [4, 8, 8], "strides": [2, 2], "norm": "batch"}  # fmt: skip
NETWORKS = {
    "UNet": UNET,
    "BasicUNet": {"_target_": "monai.networks.nets.BasicUNet", "spatial_dims": 2, "in_channels": 1, "out_channels": 4,
                  "features": [4, 4, 8, 8, 8, 4]},
    "DynUNet": {"_target_": "monai.networks.nets.DynUNet", "spatial_dims": 2, "in_channels": 1, "out_channels": 4,
                "kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2], "filters": [4, 8, 8],
                "deep_supervision": False},
    "SwinUNETR": {"_target_": "monai.networks.nets.SwinUNETR", "spatial_dims": 2, "in_channels": 1, "out_channels": 4,
                  "feature_size": 12, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]},
    "FlexibleUNet": {"_target_": "monai.networks.nets.FlexibleUNet", "spatial_dims": 2, "in_channels": 1,
                     "out_channels": 4, "backbone": "resnet18", "decoder_channels": [16, 8, 8, 8, 8]},
    "VMFNet round a ResNet": {
        "_target_": "vmfseg.networks.VMFNet", "out_channels": 4, "num_kernels": 6, "hidden_channels": 8,
        "encoder": {"_target_": "vmfseg.networks.BackboneEncoder", "backbone": {
            "_target_": "monai.networks.nets.ResNetFeatures", "model_name": "resnet10", "pretrained": False,
            "spatial_dims": 2, "in_channels": 1}, "level": 0}},
}  # fmt: skip
MASKS_ALONE = {"dice": 1.0, "cross_entropy": 1.0}


@pytest.mark.parametrize("name", NETWORKS)
def test_any_network_trains_and_segments_as_it_was_evaluated(name, phantoms, tmp_path):
    if name == "SwinUNETR":
        pytest.importorskip("einops", reason="the extra transformers is not installed")
    weights = {} if name.startswith("VMFNet") else {"loss_weights": MASKS_ALONE, "loss_ramps": {}}
    folder = train(tmp_path / "run", phantoms["mnms"], network_def=NETWORKS[name], **weights)
    predictor = check_agreement(folder, phantoms["mnms"])
    assert predictor.model.network["_target_"] == NETWORKS[name]["_target_"]
    quality = read_json(next((folder / "segmented").rglob("*_quality.json")))
    kernels = bool(quality["frames"][0]["kernel_shares"])
    assert kernels == predictor.has_kernels == name.startswith("VMFNet")
    assert ("log_likelihood" in quality["frames"][0]["signals"]) == kernels
    assert quality["predicted_dice"] is not None


def test_added_transforms_and_another_spacing_are_used_everywhere(phantoms, tmp_path):
    folder = train(
        tmp_path / "run", phantoms["mnms"], pixdim=3.1,
        **{
            "network_def::channels": [4, 8, 8], "network_def::hidden_channels": 4, "network_def::kappa": 20,
            "extra_transforms": [
                {"_target_": "ScaleIntensityRangePercentilesd", "keys": "image", "lower": 5, "upper": 90, "b_min": 0.0,
                 "b_max": 1.0, "clip": True},
                {"_target_": "RandGaussianNoised", "keys": "image", "prob": 1.0, "std": 0.1}],
            "postprocessing::transforms": [
                {"_target_": "Activationsd", "keys": "pred", "softmax": True},
                {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
                {"_target_": "FillHolesd", "keys": "pred", "applied_labels": [1, 2, 3]}],
        },
    )  # fmt: skip
    predictor = check_agreement(folder, phantoms["mnms"])
    model = Model.load(folder)
    assert model.network["kappa"] == 20
    names = [step["_target_"].rsplit(".", 1)[-1] for step in model.preprocessing]
    assert names[-2:] == ["ScaleIntensityRangePercentilesd", "RandGaussianNoised"]
    assert next(step["pixdim"] for step in model.preprocessing if "pixdim" in step) == 3.1
    image = MNMsDataset(phantoms["mnms"]).datalist().to_dicts()[0]["image"]
    assert torch.equal(*(torch.from_numpy(predictor.predict(image).labels) for _ in range(2)))  # nothing random
    with_it = predictor.predict(image, frames=[0]).labels
    predictor.grid.plane.transforms = predictor.grid.plane.transforms[:-1]
    assert not np.array_equal(with_it, predictor.predict(image, frames=[0]).labels), "the added transform matters"
