# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from vmfseg.model.plausibility import plausibility

HEART = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}
CORD = {0: "background", 1: "GM", 2: "WM"}


def heart(slices: int = 5) -> np.ndarray:
    x, y = np.meshgrid(np.arange(40), np.arange(40), indexing="ij")
    distance = np.hypot(x - 18, y - 18)
    plane = np.where(distance <= 5, 1, np.where(distance <= 9, 2, 0))
    plane[28:33, 12:24] = 3
    return np.repeat(plane[..., None], slices, axis=2).astype(np.uint8)


def cord() -> np.ndarray:
    plane = np.zeros((24, 24, 3), np.uint8)
    plane[4:20, 4:20], plane[9:15, 9:15] = 2, 1
    return plane


def test_anatomy_scores_one():
    assert plausibility(heart(), HEART) == {
        "present": 1, "connected": 1, "continuous": 1, "enclosed": 1, "adjacent": 1,
    }  # fmt: skip
    assert plausibility(cord(), CORD) == {"present": 1, "connected": 1, "continuous": 1, "enclosed": 1}


def spots(labels):
    labels[2:5, 34:37] = 1
    return labels


def gap(labels):
    labels[..., 2] = 0
    return labels


def open_ring(labels):
    labels[18:, :][labels[18:, :] == 2] = 0
    return labels


def far(labels):
    labels[labels == 3] = 0
    labels[36:39, 30:39] = 3
    return labels


def no_rv(labels):
    labels[labels == 3] = 0
    return labels


@pytest.mark.parametrize(
    ("spoil", "measure", "low", "high"),
    [
        pytest.param(spots, "connected", 0.8, 0.95, id="a second left ventricle"),
        pytest.param(spots, "enclosed", 0.4, 0.8, id="a left ventricle in the open"),
        pytest.param(gap, "continuous", 0.8, 0.8, id="a slice without heart"),
        pytest.param(open_ring, "enclosed", 0.3, 0.7, id="half a ring"),
        pytest.param(far, "adjacent", 0, 0, id="a right ventricle far away"),
        pytest.param(no_rv, "present", 2 / 3, 2 / 3, id="no right ventricle"),
        pytest.param(no_rv, "connected", 0, 0, id="what is lost is not in one piece"),
    ],
)
def test_each_measure_sees_its_own_fault(spoil, measure, low, high):
    assert low - 1e-9 <= plausibility(spoil(heart()), HEART)[measure] <= high + 1e-9


def test_what_does_not_apply_is_left_out():
    assert plausibility(np.zeros((9, 9, 2), np.uint8), HEART) == {"present": 0}
    assert "enclosed" not in plausibility(heart(), {0: "background", 1: "a", 2: "b", 3: "c"})
    assert "adjacent" not in plausibility(no_rv(heart()), HEART)


def test_the_edge_of_the_picture_is_no_wall():
    labels = np.zeros((10, 10, 1), np.uint8)
    labels[0:4, 2:6] = 2
    labels[0:2, 3:5] = 1
    assert plausibility(labels, HEART)["enclosed"] == pytest.approx(6 / 8)


def test_a_hole_inside_is_not_outside():
    labels = heart()
    labels[18, 18] = 0
    assert plausibility(labels, HEART)["enclosed"] == 1
