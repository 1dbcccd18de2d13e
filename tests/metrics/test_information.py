# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from vmfseg.representation.information import (
    average_precision,
    equal_frequency_bins,
    expected_mutual_information,
    information_share,
    mutual_information,
    partition_agreement,
)


def table_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.array([[np.sum((a == i) & (b == j)) for j in np.unique(b)] for i in np.unique(a)])


def literal_information(a: np.ndarray, b: np.ndarray) -> float:
    total = 0.0
    for i in np.unique(a):
        for j in np.unique(b):
            joint = np.mean((a == i) & (b == j))
            if joint:
                total += joint * np.log(joint / (np.mean(a == i) * np.mean(b == j)))
    return total


@pytest.mark.parametrize("seed", range(4))
def test_mutual_information_equals_its_definition(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 3, 200), rng.integers(0, 5, 200)
    b = np.where(rng.random(200) < 0.4, a, b)
    assert mutual_information(table_of(a, b)) == pytest.approx(literal_information(a, b), abs=1e-12)


def test_expected_information_is_the_mean_over_permutations():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 3, 30), rng.integers(0, 4, 30)
    simulated = np.mean([mutual_information(table_of(a, rng.permutation(b))) for _ in range(4000)])
    assert expected_mutual_information(table_of(a, b)) == pytest.approx(simulated, rel=0.02)


@pytest.mark.parametrize(
    ("truth", "pred", "expected"),
    [
        pytest.param([0, 0, 1, 1], [1, 1, 0, 0], (1.0, 1.0, 1.0), id="renamed"),
        pytest.param([0, 0, 1, 1], [0, 1, 2, 3], (0.0, 1.0, 0.5), id="one-group-each"),
        pytest.param([0, 0, 1, 1], [0, 0, 0, 0], (0.0, 0.0, 1.0), id="one-group"),
        pytest.param([0, 0, 0], [0, 0, 0], (1.0, 1.0, 1.0), id="one-class-one-group"),
    ],
)
def test_agreement_of_known_partitions(truth, pred, expected):
    result = partition_agreement(np.array(truth), np.array(pred))
    assert (result["ami"], result["homogeneity"], result["completeness"]) == pytest.approx(expected, abs=1e-9)


def test_unrelated_partitions_agree_by_chance_only():
    rng = np.random.default_rng(1)
    scores = [partition_agreement(rng.integers(0, 4, 400), rng.integers(0, 6, 400))["ami"] for _ in range(20)]
    assert abs(np.mean(scores)) < 0.005


def test_bins_are_equally_full():
    codes = equal_frequency_bins(np.random.default_rng(0).random((40, 40)), 16)
    assert codes.shape == (40, 40)
    assert set(np.bincount(codes.ravel())) == {100}


def test_information_share_is_one_for_a_copy_and_none_without_variation():
    truth = np.random.default_rng(0).random(1000) < 0.2
    assert information_share(equal_frequency_bins(truth * 1.0), truth) == pytest.approx(1.0)
    assert information_share(np.arange(5), np.zeros(5, bool)) is None


def literal_precision(scores: np.ndarray, truth: np.ndarray) -> float:
    area, recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = scores >= threshold
        new = np.sum(chosen & truth) / truth.sum()
        area += (new - recall) * np.mean(truth[chosen])
        recall = new
    return area


@pytest.mark.parametrize("digits", [1, 6], ids=["ties", "no-ties"])
def test_average_precision_equals_its_definition(digits):
    rng = np.random.default_rng(digits)
    truth = rng.random(300) < 0.3
    scores = np.round(rng.random(300) + 0.3 * truth, digits)
    assert average_precision(scores, truth) == pytest.approx(literal_precision(scores, truth), abs=1e-12)
    assert average_precision(np.zeros(300), truth) == pytest.approx(truth.mean())
    assert average_precision(scores, truth & False) is None
