# SPDX-License-Identifier: Apache-2.0
"""The organ is found anywhere in the field of view, and what is central stays as it was, voxel by voxel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from inference_bundle import LABELS, tiny_model, tiny_network
from monai.data import MetaTensor
from monai.transforms import Compose, ResizeWithPadOrCropd

from vmfseg.model import Model, Predictor
from vmfseg.model.grid import move_window


class Bright(torch.nn.Module):
    """A network that knows the truth: bright is class 1, very bright class 2; it sees its window only."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(20.0))

    def forward(self, x):
        return torch.cat([0.45 - x, (x - 0.45) * (x < 0.8), x - 0.75], dim=1) * self.scale


def predictor(size=(32, 32), pixdim=1.0, target="ResizeWithPadOrCropd", extra=(), batch_size=8):
    before = [
        {"_target_": "vmfseg.transforms.ToSliceStackd", "keys": "image"},
        {"_target_": "vmfseg.transforms.InPlaneSpacingd", "keys": "image", "pixdim": pixdim, "mode": "bilinear"},
        {"_target_": target, "keys": "image", ("roi_size" if "Center" in target else "spatial_size"): [*size, -1]},
        *extra,
    ]
    after = [
        {"_target_": "Activationsd", "keys": "pred", "softmax": True},
        {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
    ]
    model = Model({"_target_": "x"}, before, after, LABELS["vmfnet_scgm"], 1, size, name="bright")
    return Predictor.from_network(Bright(), model, batch_size=batch_size)


def scan(center, shape=(90, 110, 8), radius=6, spacing=1.0, specks=()):
    """Return a volume with a cord at ``center`` through all slices, and the true labels."""
    x, y = np.ogrid[: shape[0], : shape[1]]
    distance = np.hypot(x - center[0], y - center[1])
    plane = np.where(distance < radius / 2, 2, np.where(distance < radius, 1, 0))
    labels = np.repeat(plane[..., None], shape[2], axis=2).astype(np.uint8)
    image = np.choose(labels, [0.1, 0.6, 0.95]).astype(np.float32)
    for (i, j), size, k in specks:
        image[i - size : i + size, j - size : j + size, k] = 0.6
    affine = np.diag([spacing, spacing, 5.0, 1.0])
    return MetaTensor(torch.from_numpy(image)[None], affine=affine), labels


@pytest.mark.parametrize(
    "center",
    [(45, 55), (50, 48), (20, 55), (12, 100), (80, 10), (45, 72)],
    ids=["middle", "near", "left", "corner", "other corner", "on the edge of the window"],
)
@pytest.mark.parametrize("target", ["ResizeWithPadOrCropd", "CenterSpatialCropd"])
def test_an_organ_is_found_wherever_it_lies(center, target):
    image, truth = scan(center)
    frame = predictor(target=target).predict_frame(image)
    assert np.array_equal(frame.labels, truth)
    assert not frame.sight.cut
    moved = frame.sight.moved_mm
    if center in ((45, 55), (50, 48)):
        assert moved == (0.0, 0.0, 0.0)
        assert frame.sight.looked_at == pytest.approx(32 * 32 / (90 * 110))
    else:
        assert frame.sight.looked_at == pytest.approx(1.0, abs=0.03)
        np.testing.assert_allclose(moved[:2], np.subtract(center, (44.5, 54.5)), atol=15)  # clipped at the borders


def test_what_looks_like_the_organ_in_single_slices_draws_nothing_to_it():
    image, truth = scan((20, 80), specks=[((70, 20), 9, 1), ((45, 55), 8, 4)])
    frame = predictor().predict_frame(image)
    window = np.zeros_like(truth, dtype=bool)
    window[4:36, 64:96] = True
    assert np.array_equal(frame.labels[window], truth[window])
    assert not frame.labels[60:, :40].any()


def test_an_organ_in_the_middle_is_kept_whatever_lies_around_it():
    """A network that learnt the middle of scans knows nothing of what lies elsewhere, however large it is."""
    image, truth = scan((45, 55))
    image[:, 4:24, 70:106] = 0.6
    frame = predictor().predict_frame(image)
    assert frame.sight.shift == (0, 0)
    assert np.array_equal(frame.labels, truth)


def test_the_window_follows_an_organ_over_its_edge_and_not_to_something_larger():
    image, truth = scan((45, 70))
    image[:, 4:24, 4:30] = 0.6
    frame = predictor().predict_frame(image)
    np.testing.assert_allclose(frame.sight.moved_mm[:2], (0, 15), atol=1)
    assert np.array_equal(frame.labels, truth)


@pytest.mark.parametrize("shape", [(40, 36, 5), (20, 90, 5), (31, 32, 3)], ids=["wide", "narrow", "no room"])
def test_the_central_window_stays_as_it_was_voxel_by_voxel(shape):
    network = tiny_network()
    one = Predictor.from_network(network, tiny_model(network, pixdim=1.0))
    torch.manual_seed(0)
    image = MetaTensor(torch.rand(1, *shape), affine=np.diag([1.0, 1.0, 5.0, 1.0]))
    placed = one.grid.place(image)
    for batch in placed.slices.split(4):
        placed.add(one.backend(batch).logits, keep=False)
    before = placed.stored(placed.result(keep=False)[0][None])[0].numpy()
    frame = one.predict_frame(image)
    if frame.sight.shift == (0, 0):
        assert np.array_equal(frame.labels, before)
    else:
        moved = one.grid.place(image, frame.sight.shift)
        assert moved.slices.shape == placed.slices.shape
    if shape[0] <= 32 and shape[1] <= 32:
        assert frame.sight.slices == 0


@pytest.mark.parametrize("shift", [(0, 0), (5, -3), (-11, 20)])
def test_a_moved_window_is_the_crop_that_numpy_makes_and_goes_back_to_its_place(shift):
    torch.manual_seed(1)
    image = MetaTensor(torch.rand(1, 61, 75, 3), affine=np.diag([1.0, 1.0, 5.0, 1.0]))
    chain = Compose([ResizeWithPadOrCropd("image", (32, 32, -1))])
    start = [n // 2 - 16 + s for n, s in zip((61, 75), shift, strict=True)]
    moved = move_window(chain, shift)
    out = moved({"image": image})
    region = (slice(None), *(slice(s, s + 32) for s in start))
    np.testing.assert_array_equal(out["image"].numpy(), image.numpy()[region])
    back = moved.inverse(out)["image"].numpy()
    expected = np.zeros_like(image.numpy())
    expected[region] = image.numpy()[region]
    np.testing.assert_array_equal(back, expected)


def test_steps_after_the_crop_see_the_window_that_is_taken():
    """Normalization by the window itself: the same organ gives the same slices wherever it lies."""
    extra = [{"_target_": "ScaleIntensityd", "keys": "image"}]
    one = predictor(extra=extra)
    (here, truth), (there, moved_truth) = scan((45, 55)), scan((18, 88))
    assert np.array_equal(one.predict_frame(here).labels, truth)
    assert np.array_equal(one.predict_frame(there).labels, moved_truth)


def test_spacing_batches_and_the_order_of_axes_change_nothing():
    image, _ = scan((20, 80), spacing=0.8)
    labels = predictor(pixdim=1.1).predict_frame(image).labels
    assert np.array_equal(labels, predictor(pixdim=1.1, batch_size=3).predict_frame(image).labels)
    turned = MetaTensor(image.as_tensor().flip(1), affine=np.array(
        [[-0.8, 0, 0, 0.8 * 89], [0, 0.8, 0, 0], [0, 0, 5.0, 0], [0, 0, 0, 1]]
    ))  # fmt: skip
    assert np.array_equal(labels, predictor(pixdim=1.1).predict_frame(turned).labels[::-1])


def test_an_organ_larger_than_the_window_is_said_to_be_cut():
    image, _ = scan((45, 55), radius=30)
    frame = predictor().predict_frame(image)
    assert frame.sight.cut


def test_without_a_central_crop_or_an_organ_nothing_is_searched_or_moved():
    image, truth = scan((20, 80), shape=(64, 96, 4))
    whole = predictor()
    whole = Predictor.from_network(Bright(), replace(whole.model, preprocessing=whole.model.preprocessing[:-1]))
    frame = whole.predict_frame(image)
    assert np.array_equal(frame.labels, truth)
    assert frame.sight.slices == 0
    empty = MetaTensor(0.1 * torch.rand(1, 90, 110, 4), affine=np.diag([1.0, 1.0, 5.0, 1.0]))
    found = predictor().predict_frame(empty)
    assert found.sight.shift == (0, 0)
    assert not found.sight.cut
    assert not found.labels.any()


def test_a_network_that_knows_its_position_keeps_the_window_in_the_middle():
    image, _ = scan((20, 20))
    there = predictor()
    moved = there.predict_frame(image).sight
    assert moved.shift != (0, 0)
    knowing = replace(there.model, network={**there.model.network, "position": 1.0})
    stays = Predictor.from_network(Bright(), knowing).predict_frame(image).sight
    assert (stays.shift, stays.slices) == ((0, 0), 0)
    assert stays.looked_at == pytest.approx(32 * 32 / (90 * 110))
