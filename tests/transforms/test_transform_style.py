# SPDX-License-Identifier: Apache-2.0
"""Appearance changes against NumPy and SciPy, sample by sample."""

import numpy as np
import pytest
import scipy.ndimage
import torch
from numpy.polynomial import legendre

from vmfseg.transforms import style


@pytest.fixture
def images():
    return torch.from_numpy(np.random.default_rng(0).random((3, 1, 20, 26), dtype=np.float32))


@pytest.mark.parametrize("taps", [3, 5, 11])
def test_blur_equals_scipy_with_a_sampled_kernel(images, taps):
    sigmas = torch.tensor([0.25, 0.8, 1.25])
    out = style.blur(images, sigmas, taps)
    x = np.arange(taps) - taps // 2
    for sample, sigma, got in zip(images.numpy(), sigmas.tolist(), out.numpy(), strict=True):
        kernel = np.exp(-0.5 * (x / sigma) ** 2)
        kernel /= kernel.sum()
        expected = sample[0].astype(np.float64)
        for axis in (0, 1):
            expected = scipy.ndimage.correlate1d(expected, kernel, axis=axis, mode="mirror")
        np.testing.assert_allclose(got[0], expected, atol=1e-6)


def test_gamma_and_contrast_by_hand(images):
    gamma, contrast, offset = (
        torch.tensor([0.5, 1.0, 2.0]),
        torch.tensor([0.5, 1.0, 1.5]),
        torch.tensor([0.1, 0.0, -0.1]),
    )
    x = images.numpy()
    np.testing.assert_allclose(style.adjust_gamma(images, gamma)[2].numpy(), x[2] ** 2, rtol=1e-5)
    got = style.adjust_contrast(images, contrast, offset)
    np.testing.assert_allclose(got[0].numpy(), (x[0] - x[0].mean()) * 0.5 + x[0].mean() + 0.1, rtol=1e-5)
    torch.testing.assert_close(got[1], images[1])


def test_bias_field_is_the_exponential_of_legendre_products(images):
    coefficients = np.random.default_rng(1).uniform(-0.3, 0.3, (3, style.BIAS_TERMS))
    out = style.apply_bias_field(images, torch.from_numpy(coefficients).float())
    pairs = [(i, j) for i in range(4) for j in range(4) if 1 <= i + j <= 3]
    assert len(pairs) == style.BIAS_TERMS
    for sample in range(3):
        table = np.zeros((4, 4))
        for value, (i, j) in zip(coefficients[sample], pairs, strict=True):
            table[i, j] = value
        field = np.exp(legendre.leggrid2d(np.linspace(-1, 1, 20), np.linspace(-1, 1, 26), table))
        np.testing.assert_allclose(out[sample, 0].numpy(), images[sample, 0].numpy() * field, rtol=1e-4)


def test_scaled_amplitudes_keep_phase_mean_and_high_frequencies(images):
    half = 2
    factors = torch.from_numpy(np.random.default_rng(2).normal(0, 0.5, (3, 2 * half + 1, half + 1)).astype(np.float32))
    out = style.scale_amplitude(images, factors)
    before, after = np.fft.fft2(images[:, 0].numpy()), np.fft.fft2(out[:, 0].numpy())
    np.testing.assert_allclose(np.angle(after / before), 0, atol=1e-3)
    ratio = np.abs(after) / np.abs(before)
    np.testing.assert_allclose(ratio[:, 0, 0], 1, atol=1e-4)
    np.testing.assert_allclose(ratio[:, 3:-2, 3:-2], 1, atol=1e-3)
    np.testing.assert_allclose(ratio[:, 1, 2], factors[:, half + 1, 2].exp(), rtol=1e-3)
    np.testing.assert_allclose(ratio[:, -2, 1], factors[:, half - 2, 1].exp(), rtol=1e-3)


def test_mixed_amplitudes_take_the_partner_s_low_frequencies(images):
    partner, weight, half = torch.tensor([1, 2, 0]), torch.tensor([0.0, 0.5, 1.0]), 2
    out = style.mix_amplitude(images, partner, weight, half)
    before, after = np.fft.fft2(images[:, 0].numpy()), np.fft.fft2(out[:, 0].numpy())
    np.testing.assert_allclose(after[0], before[0], atol=1e-3)
    np.testing.assert_allclose(np.abs(after[2][1, 1]), np.abs(before[0][1, 1]), rtol=1e-3)
    np.testing.assert_allclose(
        np.abs(after[1][2, 1]), np.abs(before[1][2, 1]) / 2 + np.abs(before[2][2, 1]) / 2, rtol=1e-3
    )
    np.testing.assert_allclose(np.angle(after / before), 0, atol=1e-3)
    np.testing.assert_allclose(np.abs(after)[:, 4:-3, 4:-3], np.abs(before)[:, 4:-3, 4:-3], rtol=1e-3)
