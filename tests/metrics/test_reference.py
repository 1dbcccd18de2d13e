# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from vmfseg.metrics.reference import (
    ReferenceRow,
    mask_set_distance,
    reference_summary,
    reference_volume,
    slice_micro_dice,
)


def one_hot(image: np.ndarray) -> np.ndarray:
    return np.stack([image == k for k in (1, 2, 3)])


def literal(pred: np.ndarray, truth: np.ndarray) -> float:
    """The published computation, word by word: three points in R^(HW), Hausdorff distance of the two sets."""
    a, b = pred.reshape(3, -1).astype(float), truth.reshape(3, -1).astype(float)
    table = np.array([[np.linalg.norm(p - q) for q in b] for p in a])
    return max(table.min(axis=1).max(), table.min(axis=0).max())


@pytest.mark.parametrize(("shift", "expected"), [(1, 14.0), (2, 19.6), (4, 27.6)], ids=["1px", "2px", "4px"])
def test_published_figures_of_a_shifted_heart(heart, shift, expected):
    moved = np.roll(heart, shift, axis=1)
    assert round(mask_set_distance(one_hot(moved), one_hot(heart)), 1) == expected


def test_one_pixel_shift_is_fourteen_exactly(heart):
    assert mask_set_distance(one_hot(np.roll(heart, 1, axis=1)), one_hot(heart)) == 14.0


def test_a_stray_pixel_anywhere_costs_one(heart):
    stray = heart.copy()
    stray[6, 6] = 1
    assert mask_set_distance(one_hot(stray), one_hot(heart)) == 1.0


def test_exchanged_classes_cost_nothing(heart):
    assert mask_set_distance(one_hot(np.array([0, 3, 2, 1])[heart]), one_hot(heart)) == 0.0


def test_a_missed_heart_costs_the_root_of_its_largest_class(heart):
    assert mask_set_distance(one_hot(0 * heart), one_hot(heart)) == pytest.approx(38.7, abs=0.05)


def test_rows_of_a_single_mask_become_the_points():
    x, y = np.indices((40, 40)) - 20
    disc = x**2 + y**2 <= 25
    assert mask_set_distance(np.roll(disc, 1, axis=1), disc) == pytest.approx(2**0.5)


@pytest.mark.parametrize("seed", range(5))
def test_pseudo_distance_equals_the_literal_computation(seed):
    rng = np.random.default_rng(seed)
    pred, truth = rng.random((3, 12, 10)) < 0.3, rng.random((3, 12, 10)) < 0.3
    assert mask_set_distance(pred, truth) == pytest.approx(literal(pred, truth), abs=1e-9)


def test_micro_dice_pools_classes_and_rewards_empty_slices(heart):
    empty = np.zeros_like(one_hot(heart))
    assert slice_micro_dice(empty, empty) == 1.0
    false_pixel = empty.copy()
    false_pixel[0, 0, 0] = True
    assert slice_micro_dice(false_pixel, empty) == pytest.approx(1e-4, rel=1e-3)
    without_rv = one_hot(np.where(heart == 3, 0, heart))
    truth = one_hot(heart)
    expected = 2 * without_rv.sum() / (without_rv.sum() + truth.sum())
    assert slice_micro_dice(without_rv, truth) == pytest.approx(expected, abs=1e-6)


def test_a_volume_is_the_mean_over_its_slices(heart, labels):
    truth = np.stack([heart, heart, 0 * heart], axis=-1)
    pred = np.stack([np.roll(heart, 1, axis=1), heart, 0 * heart], axis=-1)
    row = reference_volume(pred, truth, labels, subject="s", domain="A")
    slices = [(one_hot(pred[..., k]), one_hot(truth[..., k])) for k in range(3)]
    assert row.slice_micro_dice == pytest.approx(np.mean([slice_micro_dice(*s) for s in slices]), abs=1e-12)
    assert row.mask_set_distance == pytest.approx(14.0 / 3, abs=1e-12)
    assert reference_volume(pred[:, :, :1].T, truth[:, :, :1].T, labels, slice_axis=0).mask_set_distance == 14.0


def test_classes_not_annotated_are_left_out(heart, labels):
    truth = np.where(heart == 3, 0, heart)[..., None]
    row = reference_volume(heart[..., None], truth, labels, annotated=[1, 2])
    assert (row.slice_micro_dice, row.mask_set_distance) == (1.0, 0.0)


def test_summary_counts_every_subject_and_uses_the_published_spreads():
    def row(subject: str, domain: str, phase: str, n: int, dice: float) -> ReferenceRow:
        return ReferenceRow(subject, domain, phase, None, n, dice, 10 * dice)

    rows = [
        row("a", "A", "ED", 10, 0.9),
        row("a", "A", "ES", 5, 0.6),
        row("b", "A", "ED", 8, 0.7),
        row("c", "B", "ED", 8, 0.5),
    ]
    table = reference_summary(rows)
    subjects = [(10 * 0.9 + 5 * 0.6) / 15, 0.7]
    assert table["domains"]["A"]["n_subjects"] == 2
    assert table["domains"]["A"]["slice_micro_dice"]["mean"] == pytest.approx(np.mean(subjects))
    assert table["domains"]["A"]["slice_micro_dice"]["sd_sample"] == pytest.approx(np.std(subjects, ddof=1))
    assert table["domains"]["B"]["mask_set_distance"] == {"mean": 5.0, "sd_sample": None}
    average = table["average_of_domains"]["slice_micro_dice"]
    assert average["mean"] == pytest.approx((np.mean(subjects) + 0.5) / 2)
    assert average["sd_population"] == pytest.approx(np.std([np.mean(subjects), 0.5]))
    assert "not a distance" in table["note"]


def test_masks_of_different_shape_are_refused():
    with pytest.raises(ValueError, match="must be masks of one shape"):
        mask_set_distance(np.ones((3, 4, 4)), np.ones((3, 4, 5)))
