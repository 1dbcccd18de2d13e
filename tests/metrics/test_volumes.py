# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from vmfseg.metrics import Case, evaluate_cases
from vmfseg.metrics.volumes import cardiac_function, cardiac_summary, ejection_fraction

SPACING = (1.0, 1.0, 10.0)  # 0.01 ml a voxel
LABELS = {1: "LV", 2: "MYO"}


def ventricle(voxels: int) -> np.ndarray:
    array = np.zeros((20, 20, 5), np.uint8)
    array.reshape(-1)[:voxels] = 1
    array[-1, -1, -1] = 2
    return array


def case(subject: str, phase: str | None, pred: int, true: int, **kwargs) -> Case:
    return Case(ventricle(pred), ventricle(true), SPACING, subject, "A", phase, **kwargs)


def test_ejection_fraction_against_truth():
    cases = [
        case("s1", "ED", 900, 1000),
        case("s1", "ES", 450, 400),
        case("s2", "ED", 800, 800),
        case("s2", "ES", 400, 400),
    ]
    rows = cardiac_function(evaluate_cases(cases, LABELS))
    assert [(row.subject, row.cavity) for row in rows] == [("s1", "LV"), ("s2", "LV")]
    assert (rows[0].edv_ml_pred, rows[0].edv_ml_true, rows[0].esv_ml_true) == pytest.approx((9.0, 10.0, 4.0))
    assert (rows[0].ef_percent_pred, rows[0].ef_percent_true) == pytest.approx((50.0, 60.0))
    entry = cardiac_summary(rows)["LV"]["ef_percent"]
    assert entry["bias"] == pytest.approx(-5.0)
    assert entry["sd_of_difference"] == pytest.approx(np.std([-10.0, 0.0], ddof=1))
    assert (entry["mean_absolute_error"], entry["n"], entry["n_undefined"]) == (pytest.approx(5.0), 2, 0)


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param([case("s", "ED", 9, 9)], id="one-phase"),
        pytest.param([case("s", None, 9, 9), case("t", None, 9, 9)], id="no-phase"),
        pytest.param([case("s", "ED", 9, 9), case("s", "ES", 9, 9, annotated=[2])], id="not-annotated"),
        pytest.param([case("s", "ED", 9, 9), case("t", "ES", 9, 9)], id="two-subjects"),
        pytest.param([case("s", "ED", 9, 9), case("s", "ES", 9, 9), case("s", "ES", 9, 9, frame=2)], id="ambiguous"),
    ],
)
def test_subjects_without_both_phases_are_left_out(cases):
    assert cardiac_function(evaluate_cases(cases, LABELS)) == []


def test_an_empty_prediction_has_no_ejection_fraction_and_is_counted():
    rows = cardiac_function(evaluate_cases([case("s", "ED", 0, 10), case("s", "ES", 0, 5)], LABELS))
    assert (rows[0].ef_percent_pred, rows[0].ef_percent_true) == (None, 50.0)
    entry = cardiac_summary(rows)["LV"]
    assert (entry["ef_percent"]["n"], entry["ef_percent"]["n_undefined"], entry["ef_percent"]["bias"]) == (0, 1, None)
    assert entry["edv_ml"]["bias"] == pytest.approx(-0.1)


def test_ejection_fraction_of_a_ventricle_that_grows_is_negative():
    assert ejection_fraction(100.0, 120.0) == -20.0
