# SPDX-License-Identifier: Apache-2.0
"""From spins to the grid of a model: places, noise, resolution, coils, interpolation."""

import numpy as np
import pytest
from scipy import ndimage

from vmfseg.phantom.gin import random_contrast
from vmfseg.phantom.plane import Plane
from vmfseg.phantom.scanner import Coils, Reconstruction, hat_matrix, normalize, receive, to_grid
from vmfseg.phantom.shapes import open_grid

FINE = 0.95


def blob(count, at, width):
    u, v = open_grid(count, FINE)
    return np.exp(-((u - at[0]) ** 2 + (v - at[1]) ** 2) / (2 * width**2)).astype(np.complex64)


@pytest.mark.parametrize("spacing", [0.7, 1.3, 2.1])
@pytest.mark.parametrize("count", [(120, 120), (121, 135)])
def test_structures_stay_where_they_are(spacing, count):
    recon = Reconstruction((1.4, 1.9), spacing, "hamming", 1e6, 0.0)
    at = (13.0, -22.5)
    stored = receive(blob(count, at, 5.0), np.ones(count, np.float32), FINE, recon, 1.0, np.random.default_rng(0))
    picture = to_grid(stored, (count[0] * FINE, count[1] * FINE), FINE, (90, 90), 1.2)
    u, v = open_grid((90, 90), 1.2)
    found = [float((picture * axis).sum() / picture.sum()) for axis in (u, v)]
    assert found == pytest.approx(at, abs=0.15)


def test_noise_is_rician_with_the_stated_ratio():
    count, ones = (128, 128), np.ones((128, 128), np.float32)
    recon = Reconstruction((FINE, FINE), FINE, "none", 20.0, 0.0)
    rng = np.random.default_rng(1)
    flat = receive(np.full(count, 1.0, np.complex64), ones, FINE, recon, 1.0, rng)
    empty = receive(np.zeros(count, np.complex64), ones, FINE, recon, 1.0, rng)
    assert flat.std() == pytest.approx(1 / 20, rel=0.05)
    assert empty.mean() == pytest.approx(np.sqrt(np.pi / 2) / 20, rel=0.05)


def test_detail_beyond_the_acquired_matrix_is_lost():
    count = (128, 128)
    u, _ = open_grid(count, FINE)
    quiet = np.random.default_rng(2)
    for wavelength, seen in ((8.0, True), (2.4, False)):
        # a whole number of waves in the field
        waves = round(128 * FINE / wavelength)
        stripes = (1 + np.cos(2 * np.pi * waves * u / (128 * FINE)) * np.ones((1, 128))).astype(np.complex64)
        recon = Reconstruction((2.0, 2.0), FINE, "none", 1e6, 0.0)
        picture = receive(stripes, np.ones(count, np.float32), FINE, recon, 1.0, quiet)
        assert bool(picture.std() > 0.5) is seen


def test_normalization_removes_the_shading_of_the_coils():
    count = (100, 100)
    u, v = open_grid(count, FINE)
    coils = Coils(np.array([[-90.0, 0.0, 0.0]]), 60.0)
    sense = coils.sensitivity(u, v)
    exact = (1 + ((u + 90) ** 2 + v**2) / 3600) ** -1.5
    assert np.allclose(sense, exact / (1 + 8100 / 3600) ** -1.5, rtol=0.03)
    spins = np.ones(count, np.complex64)
    kept, removed = (
        receive(spins, sense, FINE, Reconstruction((1.0, 1.0), 1.0, "none", 1e6, share), 1.0, np.random.default_rng(0))
        for share in (0.0, 1.0)
    )
    inner = (slice(10, -10), slice(10, -10))
    assert kept[inner].max() / kept[inner].min() > 3
    assert removed[inner].max() / removed[inner].min() < 1.2


def test_eight_bits_have_few_values():
    recon = Reconstruction((1.0, 1.0), 1.0, "none", 30.0, 0.0, clip=0.01)
    picture = receive(
        blob((96, 96), (0, 0), 20.0), np.ones((96, 96), np.float32), FINE, recon, 1.0, np.random.default_rng(0)
    )
    assert np.unique(picture).size <= 256
    assert (picture == 255).mean() == pytest.approx(0.01, abs=0.005)


def test_linear_interpolation_is_that_of_numpy():
    at, to = np.sort(np.random.default_rng(0).random(9)), np.linspace(-0.2, 1.2, 40)
    values = np.random.default_rng(1).random(9)
    assert np.allclose(hat_matrix(to, at) @ values, np.interp(to, at, values), atol=1e-6)


def test_normalize_clips_at_percentiles_and_zeroes_constants():
    picture = np.random.default_rng(0).gamma(2.0, size=(64, 64)).astype(np.float32)
    low, high = np.percentile(picture, [0.5, 99.5])
    assert np.allclose(normalize(picture), (picture.clip(low, high) - low) / (high - low), atol=1e-6)
    assert not normalize(np.full((8, 8), 3.0, np.float32)).any()


def test_random_contrast_depends_on_gray_values_near_a_pixel_only():
    picture = ndimage.gaussian_filter(np.random.default_rng(0).random((48, 48)).astype(np.float32), 2)
    other = picture.copy()
    other[30:, 30:] = 0
    # the norms of both differ, so compare up to scale
    first, second = (random_contrast(image, np.random.default_rng(5)) for image in (picture, other))
    assert np.corrcoef(first[:20, :20].ravel(), second[:20, :20].ravel())[0, 1] > 0.95


def test_planes_turn_about_their_origin():
    plane = Plane.make((41, 31), 1.0, 0.4, (5.0, -3.0))
    place = plane.place(float(plane.x[7, 9]), float(plane.y[7, 9]))
    assert place == pytest.approx((float(plane.u[7, 0]), float(plane.v[0, 9])), abs=1e-4)
    image = np.zeros(plane.shape, np.uint8)
    plane.paint(image, (8.0, -1.0), (9.0, 4.0), 0.9, np.uint8(3))
    dx, dy = plane.x - 8.0, plane.y + 1.0
    c, s = np.cos(0.9), np.sin(0.9)
    assert np.array_equal(image == 3, ((c * dx + s * dy) / 9) ** 2 + ((c * dy - s * dx) / 4) ** 2 < 1)
