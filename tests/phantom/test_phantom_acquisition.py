# SPDX-License-Identifier: Apache-2.0
"""Receive chain: noise statistics, point spread, coils, axes."""

import numpy as np
import pytest
from scipy import stats

from vmfseg.phantom.acquisition import acquire, coil_sensitivity, oblique_frame, store
from vmfseg.phantom.partial_volume import label_majority, majority, mean_signal, points_of_voxels
from vmfseg.phantom.shapes import open_grid
from vmfseg.phantom.vendors import HEART_CENTERS, Receiver

FLAT = np.ones((96, 96), np.float32)


def run(signal, matrix=(96, 96), window="none", sigma=1.0, normalized=0.0, sense=FLAT, seed=0):
    spins = np.full(sense.shape, signal, np.complex64)
    return acquire(spins, sense, matrix, window, sigma, normalized, np.random.default_rng(seed))


@pytest.mark.parametrize("signal", [0.0, 1.0, 2.5, 12.0])
def test_noise_is_rician(signal):
    image = run(signal).ravel()
    wanted = stats.rice(signal)  # scipy's own density, sigma 1
    assert image.mean() == pytest.approx(wanted.mean(), rel=0.02)
    assert image.std() == pytest.approx(wanted.std(), rel=0.03)
    assert stats.kstest(image, wanted.cdf).pvalue > 1e-4


def test_zero_filling_correlates_the_noise_and_keeps_its_size():
    def neighbor(image):
        return np.corrcoef(image[:-1].ravel(), image[1:].ravel())[0, 1]

    full, filled = run(40.0), run(40.0, matrix=(48, 48))
    assert filled.std() == pytest.approx(full.std(), rel=0.1)
    assert abs(neighbor(full)) < 0.05
    assert neighbor(filled) > 0.4


def test_nothing_beyond_the_acquired_matrix():
    rng = np.random.default_rng(0)
    spins = (5 + rng.standard_normal((64, 64))).astype(np.complex64)
    image = acquire(spins, np.ones((64, 64), np.float32), (33, 25), "none", 0.0, 0.0, rng)  # odd: no lone frequency
    power = np.abs(np.fft.fftshift(np.fft.fft2(image)))
    assert power[:16].max() < 1e-5 * power[32, 32]
    assert power[:, :20].max() < 1e-5 * power[32, 32]
    assert image.mean() == pytest.approx(spins.mean().real, rel=1e-5)


def test_filters_damp_ringing():
    spins = np.zeros((96, 96), np.complex64)
    spins[40:56, 40:56] = 1
    ringing = {}
    for window in ("none", "fermi", "tukey", "hamming"):
        image = acquire(spins, FLAT, (48, 48), window, 0.0, 0.0, np.random.default_rng(0))
        ringing[window] = image[40:56, :30].mean()
    assert max(ringing, key=ringing.get) == "none"
    assert ringing["hamming"] < 0.5 * ringing["none"]


def test_normalization_removes_shading_and_amplifies_noise_in_the_depth():
    sense = np.linspace(1.5, 0.3, 96, dtype=np.float32)[:, None] * np.ones((1, 96), np.float32)
    shaded, flat = run(20.0, sense=sense), run(20.0, sense=sense, normalized=1.0)
    assert shaded[:10].mean() > 3 * shaded[-10:].mean()
    assert flat[:10].mean() == pytest.approx(flat[-10:].mean(), rel=0.05)
    assert flat[-10:].std() > 3 * flat[:10].std()


def test_coils_see_what_is_near():
    u, v = open_grid((60, 60), 5.0)
    receiver = HEART_CENTERS[0].receiver
    sense = coil_sensitivity(u, v, 0.0, receiver, (-150.0, 0.0), (150.0, 0.0), axis=1)
    assert sense[0, 30] > 2 * sense[30, 30]
    assert sense[-1, 30] > 2 * sense[30, 30]
    assert sense[30, 30] == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("angles", [(45, 18, 0), (38, 25, 7), (55, 10, -6)])
def test_short_axis_frame_is_a_left_handed_oblique(angles):
    frame = oblique_frame(*angles)
    np.testing.assert_allclose(frame.T @ frame, np.eye(3), atol=1e-12)
    assert np.linalg.det(frame) == pytest.approx(-1)
    assert frame[0, 0] < 0  # columns run to the patient's left
    assert frame[2, 1] < 0  # rows run to the feet
    assert frame[2, 2] < 0  # apex lies lower than the base
    assert np.abs(frame).max() < 0.999


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("flips", [(False, False, False), (True, False, True), (True, True, True)])
def test_storing_moves_no_voxel_in_the_world(flips, transposed):
    receiver = Receiver(1, 1, 50.0, 0.0, 10.0, "none", 1.0, 1.0, flips=flips, transposed=transposed)
    rng = np.random.default_rng(0)
    array, affine = rng.permutation(3 * 4 * 5).reshape(3, 4, 5), np.eye(4)
    affine[:3] = rng.standard_normal((3, 4))
    stored, world = store(array, affine, receiver)

    def places(a, m):
        return {int(a[i]): tuple(np.round(m[:3, :3] @ i + m[:3, 3], 6)) for i in np.ndindex(a.shape)}

    assert places(array, affine) == places(stored, world)


def test_partial_volume_is_the_mean_of_the_points():
    fine = np.random.default_rng(0).integers(0, 3, (2, 8, 6)).astype(np.uint8)
    table = np.array([[0, 0], [1, 1j], [3, -3]], np.complex64)
    where = np.random.default_rng(1).integers(0, 2, (4, 3))
    points = points_of_voxels(fine, 2)
    got = mean_signal(points, where, table)
    for i, j in np.ndindex(4, 3):
        block = fine[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].ravel()
        assert got[i, j] == pytest.approx(np.mean([table[t, where[i, j]] for t in block]), abs=1e-6)
        counts = np.bincount(block, minlength=3)
        assert counts[majority(points)[i, j]] == counts.max()


def test_tissues_with_one_label_vote_together():
    points = np.array([4, 4, 4, 3, 3, 5, 5], np.uint8).reshape(7, 1, 1)  # most frequent: tissue 4
    labels = np.array([0, 0, 0, 1, 2, 1], np.uint8)  # tissues 3 and 5 are both label 1
    assert majority(points).item() == 4
    assert label_majority(points, labels).item() == 1
