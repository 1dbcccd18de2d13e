# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch
from metric_oracles import brute_distances, random_blob
from monai.metrics import compute_average_surface_distance, compute_hausdorff_distance
from scipy.ndimage import binary_erosion

from vmfseg.metrics.surface import bounding_box, mask_surface, percentile_distance, surface_distances

SHAPES = [((24, 20, 8), (1.25, 1.25, 8.0)), ((20, 24, 6), (0.5, 0.5, 5.0)), ((16, 16, 16), (1.0, 1.0, 1.0))]
SHAPES += [((9, 30, 12), (3.0, 0.7, 1.1)), ((40, 36), (1.2, 0.9))]
FIXTURES = [
    pytest.param(10 * k + n, shape, spacing, id=f"{'x'.join(map(str, shape))}-{n}")
    for k, (shape, spacing) in enumerate(SHAPES)
    for n in range(4)
]


def hausdorff_distance(pred, truth, spacing, percentile: float = 100.0) -> float:
    return percentile_distance(*surface_distances(pred, truth, spacing), percentile)


def pair(seed: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Masks that overlap partly: blob and shifted, thinned blob with one stray voxel."""
    truth = random_blob(seed, shape)
    pred = np.roll(truth, (1 + seed % 3, seed % 2), axis=(0, 1)) & random_blob(seed + 1000, shape)
    pred[(0,) * len(shape)] = True
    return pred, truth


@pytest.mark.parametrize(("seed", "shape", "spacing"), FIXTURES)
def test_distances_equal_brute_force(seed, shape, spacing):
    pred, truth = pair(seed, shape)
    expected = brute_distances(pred, truth, spacing)
    for mine, other in zip(surface_distances(pred, truth, spacing), expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-9)
    for q in (50, 95, 100):
        wanted = max(np.percentile(expected[0], q), np.percentile(expected[1], q))
        assert hausdorff_distance(pred, truth, spacing, percentile=q) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(("seed", "shape", "spacing"), FIXTURES)
def test_distances_equal_monai(seed, shape, spacing):
    pred, truth = pair(seed, shape)
    batch = [torch.from_numpy(mask)[None, None].float() for mask in (pred, truth)]
    options = {"include_background": True, "spacing": spacing}
    for q, tolerance in ((None, 1e-6), (95, 1e-5)):  # MONAI interpolates the percentile in float32
        monai = float(compute_hausdorff_distance(*batch, percentile=q, **options))
        assert hausdorff_distance(pred, truth, spacing, percentile=q or 100) == pytest.approx(monai, rel=tolerance)
    monai = float(compute_average_surface_distance(*batch, symmetric=True, **options))
    assert np.concatenate(surface_distances(pred, truth, spacing)).mean() == pytest.approx(monai, rel=1e-6)


def test_both_ways_of_computing_give_the_same(monkeypatch):
    pred, truth = pair(3, (24, 20, 8))
    results = []
    for limit in (0, 10**9):  # always the tree, always the transform
        monkeypatch.setattr("vmfseg.metrics.surface._BOX_VOXELS_PER_SURFACE_VOXEL", limit)
        results.append(surface_distances(pred, truth, (1.25, 1.25, 8.0)))
    for tree, transform in zip(*results, strict=True):
        np.testing.assert_allclose(tree, transform, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(7,), (9, 8), (8, 7, 1), (8, 7, 6)], ids=str)
def test_surface_is_mask_minus_erosion(shape):
    mask = np.random.default_rng(0).random(shape) < 0.85
    np.testing.assert_array_equal(mask_surface(mask), mask & ~binary_erosion(mask))


def test_a_mask_that_fills_the_image_has_the_border_as_surface():
    assert mask_surface(np.ones((5, 5, 5), bool)).sum() == 5**3 - 3**3


def test_one_pixel_shift_and_stray_pixel_are_distances_in_space(heart):
    lv = heart == 1
    assert hausdorff_distance(np.roll(lv, 1, axis=1), lv, (1.0, 1.0)) == 1.0
    stray = lv.copy()
    stray[6, 6] = True
    assert hausdorff_distance(stray, lv, (1.0, 1.0)) == pytest.approx(176.78, abs=0.005)
    assert hausdorff_distance(stray, lv, (1.0, 1.0), percentile=95) == 0.0


def test_distances_are_symmetric_and_scale_with_the_spacing():
    pred, truth = pair(5, (20, 18, 6))
    one = hausdorff_distance(pred, truth, (1.0, 2.0, 3.0), 95)
    assert hausdorff_distance(truth, pred, (1.0, 2.0, 3.0), 95) == one
    assert hausdorff_distance(pred, truth, (2.0, 4.0, 6.0), 95) == pytest.approx(2 * one)


def test_bounding_box_of_nothing_is_none():
    assert bounding_box(np.zeros((3, 4, 5), bool)) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            (np.ones((4, 4)), np.ones((4, 4)), None), "spacing must give 2 voxel sizes in mm, got None", id="none"
        ),
        pytest.param((np.ones((4, 4)), np.ones((4, 4)), (1,)), r"spacing must give 2 .* got \(1.0,\)", id="short"),
        pytest.param((np.ones((4, 4)), np.ones((4, 4)), (1, 0)), "spacing must give 2", id="zero"),
        pytest.param((np.ones((4, 4)), np.ones((4, 4)), (1, float("nan"))), "spacing must give 2", id="nan"),
        pytest.param((np.ones((4, 4)), np.ones((4, 5)), (1, 1)), r"shape of truth \(4, 5\), got \(4, 4\)", id="shape"),
        pytest.param((np.zeros((4, 4)), np.ones((4, 4)), (1, 1)), "pred must not be empty", id="empty-pred"),
        pytest.param((np.ones((4, 4)), np.zeros((4, 4)), (1, 1)), "truth must not be empty", id="empty-truth"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        hausdorff_distance(*arguments)


@pytest.mark.parametrize("percentile", [-1, 101])
def test_bad_percentile_is_refused(percentile):
    with pytest.raises(ValueError, match=f"percentile must be in 0..100, got {percentile}"):
        hausdorff_distance(np.ones((3, 3)), np.ones((3, 3)), (1, 1), percentile)
