# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch
from scipy import integrate, special
from scipy.stats import ks_2samp, vonmises_fisher

from vmfseg.networks.distribution import log_bessel_i, log_vmf_normalizer, sample_vmf
from vmfseg.utils import torch_rng


def sphere_area(dim):
    return 2 * math.pi ** (dim / 2) / math.gamma(dim / 2)


@pytest.mark.parametrize("dim", [2, 3, 5, 8, 64])
@pytest.mark.parametrize("kappa", [0.1, 1.0, 30.0])
def test_the_density_integrates_to_one_over_the_sphere(dim, kappa):
    # slices of equal cosine t are spheres of one dimension less and radius sqrt(1 - t^2)
    def density(angle):
        area = sphere_area(dim - 1) if dim > 2 else 2.0
        return area * math.sin(angle) ** (dim - 2) * math.exp(kappa * math.cos(angle) + log_vmf_normalizer(kappa, dim))

    total, _ = integrate.quad(density, 0, math.pi, epsabs=1e-12, epsrel=1e-12)
    assert total == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("dim", [2, 3, 16, 64])
@pytest.mark.parametrize("kappa", [0.5, 30.0, 300.0])
def test_the_log_density_is_scipys(dim, kappa):
    rng = np.random.default_rng(dim)
    mean, x = rng.normal(size=dim), rng.normal(size=(20, dim))
    mean, x = mean / np.linalg.norm(mean), x / np.linalg.norm(x, axis=1, keepdims=True)
    expected = vonmises_fisher(mean, kappa).logpdf(x)
    np.testing.assert_allclose(kappa * x @ mean + log_vmf_normalizer(kappa, dim), expected, rtol=1e-9)


@pytest.mark.parametrize("kappa", [1e-3, 1.0, 30.0, 700.0])
def test_the_closed_form_in_three_dimensions(kappa):
    # log sinh k = k + log(1 - exp(-2k)) - log 2
    expected = math.log(kappa) - math.log(4 * math.pi) - (kappa + math.log(-math.expm1(-2 * kappa)) - math.log(2))
    assert log_vmf_normalizer(kappa, 3) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("order", "x"), [(31.0, 30.0), (0.0, 1e-8), (300.0, 1e-3), (1023.0, 30.0), (5000.0, 100.0)])
def test_log_bessel_where_the_function_underflows(order, x):
    # for large orders the leading terms of the power series are all there is
    k = np.arange(4000)
    log_terms = (2 * k + order) * math.log(x / 2) - special.gammaln(k + 1) - special.gammaln(k + order + 1)
    assert log_bessel_i(order, x) == pytest.approx(special.logsumexp(log_terms), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("x", [1e3, 1e6])
def test_log_bessel_where_the_function_overflows(x):
    # Hankel's expansion for large arguments
    order, mu = 31.0, 4 * 31.0**2
    series = 1 - (mu - 1) / (8 * x) + (mu - 1) * (mu - 9) / (2 * (8 * x) ** 2)
    third = (mu - 1) * (mu - 9) * (mu - 25) / (6 * (8 * x) ** 3)
    expected = x - 0.5 * math.log(2 * math.pi * x) + math.log(series - third)
    assert log_bessel_i(order, x) == pytest.approx(expected, abs=5e-3 if x < 1e4 else 1e-9)


def test_a_small_kappa_is_nearly_uniform():
    for dim in (2, 3, 64):
        assert log_vmf_normalizer(1e-9, dim) == pytest.approx(-math.log(sphere_area(dim)), abs=1e-6)


@pytest.mark.parametrize(
    ("kappa", "dim", "message"),
    [
        (0.0, 3, r"kappa must be positive, got 0\.0"),
        (-1.0, 3, r"kappa must be positive, got -1\.0"),
        (1.0, 1, r"dim must be at least 2, got 1\. A sphere needs two dimensions"),
    ],
)
def test_bad_arguments_are_named(kappa, dim, message):
    with pytest.raises(ValueError, match=message):
        log_vmf_normalizer(kappa, dim)


@pytest.mark.parametrize(("dim", "kappa"), [(2, 3.0), (3, 0.5), (8, 30.0), (64, 30.0), (64, 1e4)])
def test_samples_have_the_moments_of_the_distribution(dim, kappa):
    count = 20_000
    mean = torch.randn(dim, dtype=torch.float64)
    mean /= mean.norm()
    drawn = sample_vmf(mean, kappa, count, torch_rng(0, dim)).numpy()
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1.0, atol=1e-12)
    cosine = drawn @ mean.numpy()
    expected = special.ive(dim / 2, kappa) / special.ive(dim / 2 - 1, kappa)  # E[cos] = A_p(kappa)
    variance = 1 - expected**2 - (dim - 1) * expected / kappa
    assert cosine.mean() == pytest.approx(expected, abs=5 * math.sqrt(variance / count))
    assert cosine.var() == pytest.approx(variance, rel=0.08)
    around = drawn - np.outer(cosine, mean.numpy())
    assert np.abs(around.mean(axis=0)).max() < 6 / math.sqrt(count)


def test_samples_are_distributed_as_scipys():
    mean = np.array([0.0, 0.6, 0.8])
    ours = sample_vmf(torch.from_numpy(mean), 5.0, 5000, torch_rng("ours")).numpy() @ mean
    theirs = vonmises_fisher(mean, 5.0, seed=1).rvs(5000) @ mean
    assert ks_2samp(ours, theirs).pvalue > 1e-3


def test_no_samples_is_no_error():
    assert sample_vmf(torch.tensor([1.0, 0.0]), 1.0, 0, torch_rng(0)).shape == (0, 2)
