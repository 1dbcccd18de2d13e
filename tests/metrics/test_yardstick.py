# SPDX-License-Identifier: Apache-2.0
"""Named kernels and the linear probe against brute force, hand counts and scipy."""

from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import minimize

from vmfseg.representation import ActivationSample
from vmfseg.representation.yardstick import LinearProbe, best_kernel, best_kernel_set, kernel_counts, region_dice


def one_hot(winners, kernels):
    return np.moveaxis(np.eye(kernels)[np.asarray(winners)], -1, 0)


def sample(winners, labels, subject="s", kernels=3, annotated=None):
    return ActivationSample(one_hot(winners, kernels), np.asarray(labels), subject, "A", annotated=annotated)


def test_counts_are_those_of_a_loop_over_positions():
    a = sample([[0, 0], [1, 2]], [[1, 0], [3, 2]])
    b = sample([[1, 1], [2, 2]], [[1, 1], [0, 0]], annotated=(1,))  # 3 was not drawn here: says nothing about (1, 3)
    won, inside = kernel_counts([a, b], (1, 3))
    assert won.tolist() == [2, 1, 1]
    assert inside.tolist() == [1, 1, 0]
    assert kernel_counts([a, b], (1,))[1].tolist() == [1, 2, 0]


@pytest.mark.parametrize("seed", range(20))
def test_the_chosen_set_is_the_best_of_all_sets(seed):
    rng = np.random.default_rng(seed)
    won = rng.integers(0, 50, 7)
    inside = (won * rng.random(7)).astype(int)

    def dice(chosen):
        return 2 * sum(inside[j] for j in chosen) / max(sum(won[j] for j in chosen) + inside.sum(), 1)

    best = max(dice(chosen) for size in range(1, 8) for chosen in combinations(range(7), size))
    assert dice(best_kernel_set(won, inside)) == pytest.approx(best)
    assert dice([best_kernel(won, inside)]) == pytest.approx(max(dice([j]) for j in range(7)))


def test_dice_pools_the_slices_of_a_subject_and_leaves_out_those_without_the_structure():
    slices = [sample([[0, 0]], [[1, 1]], "a"), sample([[0, 0]], [[0, 1]], "a"), sample([[0, 0]], [[0, 0]], "b")]
    regions = [np.array([[True, False]]), np.array([[True, True]]), np.array([[True, True]])]
    assert region_dice(slices, regions, (1,)).tolist() == pytest.approx([2 * 2 / (3 + 3)])


def test_the_probe_finds_the_minimum_that_scipy_finds():
    rng = np.random.default_rng(0)
    maps, labels = rng.normal(size=(2, 8, 8)), rng.integers(0, 3, (8, 8))
    probe = LinearProbe(num_classes=3, penalty=1e-2, iterations=500).fit([maps], [labels])
    y, x = (axis.ravel() for axis in np.meshgrid(np.linspace(-1, 1, 8), np.linspace(-1, 1, 8), indexing="ij"))
    flat = maps.reshape(2, -1)
    flat = (flat - flat.mean(1, keepdims=True)) / flat.std(1, ddof=1, keepdims=True)
    inputs = np.stack([*flat, x, y, x * x, x * y, y * y, np.ones_like(x)], axis=1)

    def loss(weights):
        table = weights.reshape(-1, 3)
        scores = inputs @ table
        log = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        return -log[np.arange(64), labels.ravel()].mean() + 1e-2 * (table[:-1] ** 2).sum()

    found = minimize(loss, np.zeros(inputs.shape[1] * 3), method="BFGS", options={"gtol": 1e-7})
    assert loss(probe.weight.double().numpy().ravel()) == pytest.approx(found.fun, abs=1e-5)
    assert (probe.predict(maps).ravel() == (inputs @ found.x.reshape(-1, 3)).argmax(1)).mean() > 0.98
