# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch
from metric_oracles import random_blob
from monai.data import MetaTensor
from monai.metrics import compute_average_surface_distance, compute_dice, compute_hausdorff_distance

from vmfseg.metrics import evaluate_volume
from vmfseg.metrics.scores import ScoreRow

SPACING = (1.25, 1.25, 8.0)


def maps(seed: int, shape: tuple[int, int, int] = (30, 28, 6)) -> tuple[np.ndarray, np.ndarray]:
    truth = (1 + (np.indices(shape)[0] > 12) + (np.indices(shape)[1] > 15)) * random_blob(seed, shape)
    pred = np.where(np.random.default_rng(seed).random(shape) < 0.1, 0, np.roll(truth, 1, axis=1))
    return pred.astype(np.uint8), truth.astype(np.uint8)


@pytest.mark.parametrize("seed", range(20))
def test_rows_equal_monai(seed, labels):
    pred, truth = maps(seed)
    hot = [torch.from_numpy(np.stack([array == k for k in range(4)]))[None].float() for array in (pred, truth)]
    expected = {
        "dice": compute_dice(*hot, include_background=False),
        "hd_mm": compute_hausdorff_distance(*hot, spacing=SPACING),
        "hd95_mm": compute_hausdorff_distance(*hot, spacing=SPACING, percentile=95),
        "assd_mm": compute_average_surface_distance(*hot, spacing=SPACING, symmetric=True),
    }
    rows = evaluate_volume(pred, truth, SPACING, labels)
    assert [(row.label, row.class_name) for row in rows] == list(labels.items())
    for name, values in expected.items():
        tolerance = 1e-5 if name == "hd95_mm" else 1e-6  # MONAI interpolates the percentile in float32
        assert [getattr(row, name) for row in rows] == pytest.approx(values[0].tolist(), rel=tolerance)


def test_volumes_in_milliliters(labels):
    pred, truth = maps(0)
    for row in evaluate_volume(pred, truth, SPACING, labels):
        voxel = 1.25 * 1.25 * 8.0 / 1000
        assert row.volume_pred_ml == pytest.approx((pred == row.label).sum() * voxel)
        assert row.volume_true_ml == pytest.approx((truth == row.label).sum() * voxel)
        assert row.volume_diff_ml == pytest.approx(row.volume_pred_ml - row.volume_true_ml)


@pytest.mark.parametrize(
    "convert",
    [
        pytest.param(lambda a: a.astype(np.float32), id="float32"),
        pytest.param(lambda a: a.astype(np.int64), id="int64"),
        pytest.param(lambda a: np.asfortranarray(a), id="fortran"),
        pytest.param(lambda a: a.astype(">i2"), id="big-endian"),
        pytest.param(lambda a: torch.from_numpy(a.astype(np.int64)), id="tensor"),
        pytest.param(lambda a: MetaTensor(torch.from_numpy(a)[None]), id="meta-tensor-1HWD"),
    ],
)
def test_every_container_gives_the_same_rows(convert, labels):
    pred, truth = maps(1)
    assert evaluate_volume(convert(pred), convert(truth), SPACING, labels) == evaluate_volume(
        pred, truth, SPACING, labels
    )


def test_labels_need_not_be_consecutive():
    pred, truth = maps(2)
    table = np.array([0, 200, 600, 7], np.uint16)
    names = {200: "a", 600: "b", 7: "c"}
    moved = {row.class_name: row for row in evaluate_volume(table[pred], table[truth], SPACING, names)}
    for row, name in zip(evaluate_volume(pred, truth, SPACING, {1: "a", 2: "b", 3: "c"}), "abc", strict=True):
        assert (moved[name].dice, moved[name].hd95_mm) == (row.dice, row.hd95_mm)


def test_a_boolean_vector_and_values_say_the_same_about_annotation(labels):
    pred, truth = maps(3)
    by_values = evaluate_volume(pred, truth, SPACING, labels, annotated=[1, 3])
    assert by_values == evaluate_volume(pred, truth, SPACING, labels, annotated=torch.tensor([True, True, False, True]))
    assert [row.status for row in by_values] == ["scored", "not_annotated", "scored"]


def test_rows_survive_the_way_through_plain_values(labels):
    for row in evaluate_volume(*maps(4), SPACING, labels):
        assert ScoreRow.from_dict(row.as_dict()) == row


GOOD = np.zeros((6, 6, 2), np.uint8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"spacing": None}, "spacing must give 3 voxel sizes in mm, got None", id="no-spacing"),
        pytest.param({"pred": GOOD + 7}, r"pred must hold only the labels 0, 1, 2, 3, got 7 \(72 voxels\)", id="label"),
        pytest.param({"truth": GOOD.astype(int) - 1}, r"truth must hold only .* got -1 \(72", id="negative"),
        pytest.param({"pred": GOOD + 0.5}, "pred must hold whole numbers", id="fraction"),
        pytest.param({"pred": np.full(GOOD.shape, np.nan)}, "pred must hold whole numbers", id="nan"),
        pytest.param({"pred": GOOD[..., :1]}, r"shape of truth \(6, 6, 2\), got \(6, 6, 1\)", id="shape"),
        pytest.param({"pred": GOOD[..., 0]}, r"pred must have shape \(H, W, D\)", id="2d"),
        pytest.param({"labels": {0: "background"}}, "labels must name at least one class", id="no-class"),
        pytest.param({"labels": {1: "LV", 2: "LV"}}, "each once", id="same-name"),
        pytest.param({"annotated": [4]}, "annotated must hold labels of", id="annotated"),
        pytest.param({"annotated": np.array([True])}, "annotated must have 4 entries", id="annotated-vector"),
    ],
)
def test_bad_arguments_are_named(change, message, labels):
    arguments = {"pred": GOOD, "truth": GOOD, "spacing": SPACING, "labels": labels, **change}
    with pytest.raises(ValueError, match=message):
        evaluate_volume(**arguments)


def test_unnamed_label_between_named_ones_is_refused():
    with pytest.raises(ValueError, match=r"truth must hold only the labels 0, 1, 3, got 2 \(72 voxels\)"):
        evaluate_volume(GOOD, GOOD + 2, SPACING, {1: "LV", 3: "RV"})
