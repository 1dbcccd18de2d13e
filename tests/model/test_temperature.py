# SPDX-License-Identifier: Apache-2.0
"""Calibrated probabilities: the temperature is that of the labels' own randomness, and labels stay as they are."""

from __future__ import annotations

from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from vmfseg.model import Model, Predictor
from vmfseg.model.calibration import fit_temperature
from vmfseg.model.quality import QualityModel


class Overconfident(torch.nn.Module):
    """Logits of two classes, several times those from which the labels are drawn."""

    def __init__(self, factor):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(float(factor)))

    def forward(self, x):
        return torch.cat([-x, x], dim=1) * self.factor / 2


def made(folder, factor, seed=0):
    """Return a predictor and a labelled volume whose labels are drawn with the probability sigmoid(image)."""
    rng = np.random.default_rng(seed)
    image = rng.normal(0, 1.5, (32, 32, 6)).astype(np.float32)
    labels = (rng.random(image.shape) < 1 / (1 + np.exp(-image))).astype(np.uint8)
    affine = np.diag([1.0, 1.0, 5.0, 1.0])
    nib.save(nib.Nifti1Image(image, affine), folder / "image.nii.gz")
    nib.save(nib.Nifti1Image(labels, affine), folder / "label.nii.gz")
    before = [
        {"_target_": "vmfseg.transforms.ToSliceStackd", "keys": "image"},
        {"_target_": "ResizeWithPadOrCropd", "keys": "image", "spatial_size": [32, 32, -1]},
    ]
    after = [
        {"_target_": "Activationsd", "keys": "pred", "softmax": True},
        {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
    ]
    model = Model({"_target_": "x"}, before, after, {0: "background", 1: "LV"}, 1, (32, 32))
    rows = [{"image": str(folder / "image.nii.gz"), "label": str(folder / "label.nii.gz")}]
    return Predictor.from_network(Overconfident(factor), model), rows, image, labels


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
def test_the_temperature_is_how_much_too_sure_the_network_is(tmp_path, factor):
    predictor, rows, image, labels = made(tmp_path, factor)
    temperature, (before, after) = fit_temperature(predictor, rows)
    assert temperature == pytest.approx(factor, rel=0.3)
    chance = 1 / (1 + np.exp(-factor * image))
    expected = -np.log(np.where(labels == 1, chance, 1 - chance).clip(1e-6)).mean()
    assert before == pytest.approx(expected, rel=1e-4)
    assert after <= before


def test_probabilities_follow_the_temperature_and_labels_do_not(tmp_path):
    predictor, _, image, _ = made(tmp_path, 4.0)
    quality = QualityModel({}, {}, {}, 0.9, 0.05)
    scan = MetaTensor(torch.from_numpy(image)[None], affine=np.diag([1.0, 1.0, 5.0, 1.0]))
    frames = {}
    for temperature in (1.0, 4.0):
        predictor.quality = replace(quality, temperature=temperature)
        frames[temperature] = predictor.predict_frame(scan, probabilities=True)
        expected = 1 / (1 + np.exp(-4 * image / temperature))
        np.testing.assert_allclose(frames[temperature].probabilities[..., 1], expected, atol=1e-5)
    assert np.array_equal(frames[1.0].labels, frames[4.0].labels)
    predictor.quality.save(tmp_path / "quality.json")
    assert QualityModel.load(tmp_path / "quality.json").temperature == 4.0


def test_without_labels_the_temperature_is_one(tmp_path):
    predictor, rows, _, _ = made(tmp_path, 4.0)
    assert fit_temperature(predictor, [{"image": rows[0]["image"]}]) == (1.0, ())
