# SPDX-License-Identifier: Apache-2.0
"""The mixture recovers what it should, step by step as a NumPy oracle does: group 10 of the specification."""

import hashlib

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import vonmises_fisher

from vmfseg.networks import VMFMixture


def clusters(count=3000, channels=16, kernels=5, kappa=60.0, seed=0):
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(kernels, channels))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    draws = [vonmises_fisher(mean, kappa, seed=rng).rvs(count // kernels) for mean in means]
    return rng.permutation(np.concatenate(draws)), means


def numpy_em_step(x, means, weights, kappa):
    """One step of EM, and the mean log-likelihood before it without the normalizer."""
    joint = kappa * x @ means.T + np.log(weights)
    evidence = logsumexp(joint, axis=1, keepdims=True)
    responsibility = np.exp(joint - evidence)
    sums = responsibility.T @ x
    return sums / np.linalg.norm(sums, axis=1, keepdims=True), responsibility.mean(axis=0), evidence.mean()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [1.0, 250.0])
def test_means_of_synthetic_clusters_are_recovered(seed, scale):
    x, truth = clusters(seed=seed)
    lengths = np.random.default_rng(seed).uniform(0.1, scale, size=(len(x), 1))
    mixture = VMFMixture(num_kernels=5, kappa=60.0, seed=seed).fit(torch.from_numpy(x * lengths))
    best = (truth @ mixture.means.numpy().T).max(axis=1)
    assert best.min() > 0.99
    np.testing.assert_allclose(mixture.weights, 0.2, atol=0.01)
    np.testing.assert_allclose(np.linalg.norm(mixture.means, axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_wide_clusters_of_the_papers_kappa_are_recovered(seed):
    x, truth = clusters(count=12_000, channels=64, kernels=12, kappa=30.0, seed=seed)
    mixture = VMFMixture(seed=seed).fit(torch.from_numpy(x).float())
    assert (truth @ mixture.means.double().numpy().T).max(axis=1).min() > 0.99


@pytest.mark.parametrize("batch_size", [7, 100, 10_000])
def test_one_step_equals_the_numpy_step(batch_size):
    x, _ = clusters(count=500)
    options = {"num_kernels": 4, "kappa": 20.0, "num_starts": 1, "batch_size": batch_size, "tolerance": 0.0}
    data = torch.from_numpy(x)
    one = VMFMixture(max_iterations=1, **options).fit(data)
    two = VMFMixture(max_iterations=2, **options).fit(data)
    means, weights, _ = numpy_em_step(x, one.means.numpy(), one.weights.numpy(), 20.0)
    np.testing.assert_allclose(two.means, means, atol=1e-10)
    np.testing.assert_allclose(two.weights, weights, atol=1e-10)


def test_the_log_likelihood_is_scipys():
    x, _ = clusters(count=400)
    mixture = VMFMixture(num_kernels=5, kappa=60.0).fit(torch.from_numpy(x))
    density = sum(
        weight * vonmises_fisher(mean / np.linalg.norm(mean), 60.0).pdf(x)
        for weight, mean in zip(mixture.weights.numpy(), mixture.means.numpy(), strict=True)
    )
    assert mixture.log_likelihood(torch.from_numpy(x)) == pytest.approx(np.log(density).mean(), abs=1e-8)


@pytest.mark.parametrize("starts", [1, 3])
def test_the_log_likelihood_never_decreases(starts):
    for seed in range(60):
        rng = np.random.default_rng(seed)
        count, kernels = int(rng.integers(8, 60)), int(rng.integers(2, 9))
        x = rng.normal(size=(count, 4))
        if seed % 3 == 0:  # many copies of few directions: components run empty
            x = x[rng.integers(max(2, kernels - 2), size=count)]
        mixture = VMFMixture(
            kernels, kappa=float(rng.choice([2.0, 30.0, 100.0])), seed=seed, tolerance=1e-12, num_starts=starts
        ).fit(torch.from_numpy(x))
        assert np.diff(mixture.log_likelihoods).min(initial=0.0) > -1e-9, f"seed {seed}"
        assert np.isfinite(mixture.means.numpy()).all()


def test_same_seed_same_bytes_and_other_seed_other_start():
    x = torch.from_numpy(clusters()[0]).float()

    def digest(seed):
        mixture = VMFMixture(num_kernels=7, seed=seed).fit(x)
        return hashlib.sha256(mixture.means.numpy().tobytes() + mixture.weights.numpy().tobytes()).hexdigest()

    torch.manual_seed(1)
    first = digest(3)
    torch.manual_seed(2)
    assert digest(3) == first != digest(4)


def test_memory_is_one_distance_a_vector_not_one_a_pair():
    # 40 000 vectors: a matrix of all pairs would take 6.4 GB; the batches of both steps are bounded
    x = torch.from_numpy(clusters(count=40_000, channels=8)[0]).float()
    with torch.profiler.profile(profile_memory=True) as profiler:
        VMFMixture(num_kernels=5, batch_size=4096, max_iterations=2, num_starts=1).fit(x)
    largest = max(abs(event.cpu_memory_usage) for event in profiler.events())
    assert largest <= 8 * x.numel() + 8 * len(x)
