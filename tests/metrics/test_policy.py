# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
from metric_oracles import random_blob

from vmfseg.metrics import Case, evaluate_cases, evaluate_volume, summarize
from vmfseg.metrics.policy import image_diagonal

SHAPE, SPACING = (12, 10, 4), (1.25, 1.25, 8.0)
DIAGONAL = math.sqrt(15.0**2 + 12.5**2 + 32.0**2)
EMPTY = np.zeros(SHAPE, np.uint8)
FULL = EMPTY.copy()
FULL[3:8, 3:8, 1:3] = 1
ML = 1.25 * 1.25 * 8 / 1000


@pytest.mark.parametrize(
    ("pred", "truth", "annotated", "status", "dice", "distance", "difference"),
    [
        pytest.param(FULL, FULL, None, "scored", 1.0, 0.0, 0.0, id="both-hold-voxels"),
        pytest.param(EMPTY, FULL, None, "missed", 0.0, DIAGONAL, -50 * ML, id="missed"),
        pytest.param(FULL, EMPTY, None, "spurious", 0.0, DIAGONAL, 50 * ML, id="spurious"),
        pytest.param(EMPTY, EMPTY, None, "both_empty", None, None, 0.0, id="both-empty"),
        pytest.param(FULL, EMPTY, (), "not_annotated", None, None, None, id="not-annotated"),
        pytest.param(EMPTY, FULL, (), "not_annotated", None, None, None, id="not-annotated-but-drawn"),
    ],
)
def test_truth_table(pred, truth, annotated, status, dice, distance, difference):
    (row,) = evaluate_volume(pred, truth, SPACING, {1: "LV"}, annotated)
    assert row.status == status
    assert row.dice == dice
    for name in ("hd_mm", "hd95_mm", "assd_mm"):
        assert getattr(row, name) == (None if distance is None else pytest.approx(distance, abs=1e-12))
    assert row.volume_diff_ml == (None if difference is None else pytest.approx(difference, abs=1e-12))


def test_excluded_structures_stay_out_of_means_and_are_counted():
    cases = [
        Case(FULL, FULL, SPACING, "good"),
        Case(EMPTY, FULL, SPACING, "missed"),
        Case(FULL, EMPTY, SPACING, "spurious"),
        Case(EMPTY, EMPTY, SPACING, "empty"),
        Case(FULL, EMPTY, SPACING, "undrawn", annotated=()),
    ]
    entry = summarize(evaluate_cases(cases, {1: "LV"}), {1: "LV"})["overall"]["classes"]["LV"]
    for metric in ("dice", "hd_mm", "hd95_mm", "assd_mm", "volume_diff_ml"):
        counts = {key: value for key, value in entry[metric].items() if key.startswith("n")}
        assert counts == {"n": 3, "n_missed": 1, "n_spurious": 1, "n_excluded": 2, "n_not_annotated": 1}
    assert entry["dice"]["mean"] == pytest.approx(1 / 3)
    assert entry["hd95_mm"]["mean"] == pytest.approx(2 * DIAGONAL / 3)


@pytest.mark.parametrize("seed", range(12))
def test_missing_one_more_structure_never_improves_a_mean(seed):
    rng = np.random.default_rng(seed)
    labels = {1: "LV", 2: "MYO", 3: "RV"}
    cases = []
    for k in range(4):
        truth = random_blob(seed + 10 * k, SHAPE) * rng.integers(1, 4, SHAPE)
        pred = truth * (rng.random(SHAPE) < rng.random())
        pred[0, 0, 0], truth[-1, -1, -1] = 1 + k % 3, 1 + (k + seed) % 3  # far apart: distances near the worst
        cases.append([pred, truth])

    def means() -> dict[str, dict[str, float]]:
        rows = evaluate_cases([Case(p, t, SPACING, f"s{n}") for n, (p, t) in enumerate(cases)], labels)
        overall = summarize(rows, labels)["overall"]["classes"]
        return {m: {c: overall[c][m]["mean"] for c in overall} for m in ("dice", "hd_mm", "hd95_mm", "assd_mm")}

    before = means()
    for case, label in rng.permutation([(k, c) for k in range(4) for c in labels]):
        pred, truth = cases[case]
        if not (truth == label).any():
            continue  # removing a spurious structure is no miss
        cases[case][0] = np.where(pred == label, 0, pred)
        after = means()
        name = labels[label]
        assert after["dice"][name] <= before["dice"][name]
        for metric in ("hd_mm", "hd95_mm", "assd_mm"):
            assert after[metric][name] >= before[metric][name]
        before = after


def test_diagonal_exceeds_the_distance_of_opposite_corners():
    a, b = EMPTY.copy(), EMPTY.copy()
    a[0, 0, 0], b[-1, -1, -1] = 1, 1
    (row,) = evaluate_volume(a, b, SPACING, {1: "LV"})
    assert row.hd_mm < image_diagonal(SHAPE, SPACING) == pytest.approx(DIAGONAL)
