# SPDX-License-Identifier: Apache-2.0
r"""From spins to a slice in the model's grid: receive coils, k-space, reconstruction, storage, resampling.

The spins of a square field of :math:`L` mm are simulated on a fine grid, weighted by the coils and transformed. Of
k-space, the acquired matrix is kept, modulated by motion (ghosts), given noise and a filter, and zero-filled to the
scanner's own reconstruction grid; the magnitude is divided by a power of the coils' sensitivity. The file may have been
filtered, sharpened and cut to 8 bits, and is resampled linearly to the grid of the model. See
:mod:`vmfseg.phantom.acquisition` for the equations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from vmfseg.phantom.acquisition import _kept, _window
from vmfseg.phantom.shapes import Floats, open_grid
from vmfseg.phantom.vendors import Window

__all__ = ["Coils", "Reconstruction", "draw_coils", "hat_matrix", "normalize", "receive", "to_grid"]


@dataclass(frozen=True)
class Coils:
    """Receive elements: places (x, y, z) in mm in the picture, and the radius of the loops."""

    places: NDArray[np.float64]
    radius: float

    def sensitivity(self, u: Floats, v: Floats) -> Floats:
        r"""Return the root of the summed squares of :math:`(1 + d^2/R^2)^{-3/2}`, 1 at the middle of the picture.

        Smooth, so that it is evaluated at about every eighth point and interpolated linearly.
        """
        rows, cols = (np.linspace(axis[0], axis[-1], axis.size // 8 + 2) for axis in (u[:, 0], v[0]))
        total = np.zeros((rows.size, cols.size))
        middle = 0.0
        for x, y, z in self.places:
            squared = ((rows[:, None] - x) ** 2 + (cols[None, :] - y) ** 2 + z * z) / self.radius**2
            total += (1 + squared) ** -3
            middle += (1 + (x * x + y * y + z * z) / self.radius**2) ** -3
        left, right = (hat_matrix(grid, coarse) for grid, coarse in ((u[:, 0], rows), (v[0], cols)))
        result: Floats = left @ np.sqrt(total / middle).astype(np.float32) @ right.T
        return result


@dataclass(frozen=True)
class Reconstruction:
    """How k-space becomes a file. Lengths in mm.

    Args:
        acquired: resolution along both axes of the picture.
        spacing: spacing of the reconstructed grid.
        window: filter on k-space.
        snr: signal-to-noise ratio of the reference signal in the middle.
        normalized: exponent of the division by the coils' sensitivity.
        ghost: amplitude and shift (share of the field) of motion ghosts along the second axis.
        smooth: standard deviation of a Gaussian filter on the file, in pixels.
        sharpen: strength of an unsharp mask.
        clip: share of the brightest values that 8 bits cut off, or a negative number for no such conversion.
        gamma: exponent of the stored gray scale.
    """

    acquired: tuple[float, float]
    spacing: float
    window: Window
    snr: float
    normalized: float
    ghost: tuple[float, float] = (0.0, 0.0)
    smooth: float = 0.0
    sharpen: float = 0.0
    clip: float = -1.0
    gamma: float = 1.0


def receive(
    spins: NDArray[np.complex64],
    sensitivity: Floats,
    spacing: float,
    recon: Reconstruction,
    reference: float,
    rng: np.random.Generator,
) -> Floats:
    """Return the stored picture of the same field; its first point lies where the first point of ``spins`` lies.

    Args:
        spins: complex transverse magnetization, shape (..., U, V); several echoes are averaged as magnitudes.
        sensitivity: of the coils, shape (U, V).
        spacing: of the grid of ``spins`` in mm.
        recon: what the scanner does.
        reference: signal of the fluid that ``recon.snr`` refers to.
        rng: source of the noise.
    """
    shape = spins.shape[-2:]
    size = tuple(min(n, max(8, round(n * spacing / recon.spacing))) for n in shape)
    keep = [min(n, round(m * spacing / a)) for n, m, a in zip(size, shape, recon.acquired, strict=True)]
    rows, cols = (_kept(n, k) for n, k in zip(shape, keep, strict=True))
    core = np.take(fft.fft(spins * sensitivity, axis=-1), cols, axis=-1)
    core = np.take(fft.fft(core, axis=-2), rows, axis=-2)
    points, samples = shape[0] * shape[1], keep[0] * keep[1]
    sigma = np.float32(reference / recon.snr * points / samples**0.5)
    core += sigma * rng.standard_normal((*core.shape, 2), dtype=np.float32).view(np.complex64)[..., 0]
    core *= _window(recon.window, rows, keep[0], shape[0])[:, None] * _window(recon.window, cols, keep[1], shape[1])
    if recon.ghost[0] > 0:
        core *= 1 + np.complex64(recon.ghost[0]) * np.cos(2 * np.pi * recon.ghost[1] * cols + recon.ghost[1] * 40)
    whole = np.zeros((*core.shape[:-2], *size), np.complex64)
    place = [
        np.where(index <= n // 2, index, index - n + m) for index, n, m in zip((rows, cols), shape, size, strict=True)
    ]
    whole[..., place[0][:, None], place[1]] = core
    picture: Floats = np.abs(fft.ifft2(whole)).astype(np.float32) * np.float32(size[0] * size[1] / points)
    if picture.ndim > 2:
        picture = picture.mean(axis=tuple(range(picture.ndim - 2)))
    if recon.normalized > 0:
        at = [np.arange(m) * (n / m) for m, n in zip(size, shape, strict=True)]
        index = [np.minimum(np.rint(a).astype(np.intp), n - 1) for a, n in zip(at, shape, strict=True)]
        picture /= np.maximum(sensitivity[np.ix_(*index)], np.float32(0.03)) ** np.float32(recon.normalized)
    return _stored(picture, recon)


def _stored(picture: Floats, recon: Reconstruction) -> Floats:
    if recon.smooth > 0:
        picture = ndimage.gaussian_filter(picture, recon.smooth)
    if recon.sharpen > 0:
        picture = np.maximum(picture + np.float32(recon.sharpen) * (picture - ndimage.gaussian_filter(picture, 1.2)), 0)
    if recon.gamma != 1.0:
        picture = picture ** np.float32(recon.gamma)
    if recon.clip >= 0:
        top = np.float32(max(float(np.percentile(picture, 100 * (1 - recon.clip))), 1e-6))
        picture = np.rint(np.minimum(picture / top, 1) * 255)
    return picture


def to_grid(stored: Floats, field: tuple[float, float], fine: float, count: tuple[int, int], spacing: float) -> Floats:
    """Resample what :func:`receive` stored of a centered field of view linearly to a centered grid.

    Args:
        stored: the picture.
        field: its extent in mm.
        fine: spacing of the simulation; the first stored point lies half of it inside the field.
        count: points of the grid.
        spacing: of the grid in mm.
    """
    places = [(fine - extent) / 2 + np.arange(n) * (extent / n) for extent, n in zip(field, stored.shape, strict=True)]
    u, v = open_grid(count, spacing)
    return np.asarray(hat_matrix(u[:, 0], places[0]) @ stored @ hat_matrix(v[0], places[1]).T, dtype=np.float32)


def hat_matrix(to: NDArray[np.floating], at: NDArray[np.floating]) -> Floats:
    """Return the matrix of linear interpolation from the sorted places ``at`` to ``to``; constant beyond the ends.

    Example:
        >>> hat_matrix(np.array([0.25, 5.0]), np.array([0.0, 1.0])).tolist()
        [[0.75, 0.25], [0.0, 1.0]]
    """
    where = np.interp(to, at, np.arange(at.size))
    low = np.minimum(where.astype(np.intp), max(at.size - 2, 0))
    matrix = np.zeros((to.size, at.size), np.float32)
    rows = np.arange(to.size)
    matrix[rows, low] = 1 - (where - low)
    matrix[rows, np.minimum(low + 1, at.size - 1)] += where - low
    return matrix


def normalize(picture: Floats, lower: float = 0.5, upper: float = 99.5) -> Floats:
    """Clip to percentiles and scale to [0, 1], as the transforms of real scans do."""
    low, high = np.percentile(picture, [lower, upper])
    if high - low <= np.finfo(np.float32).eps * max(abs(low), abs(high)):
        return np.zeros_like(picture)
    result: Floats = ((np.clip(picture, low, high) - low) / (high - low)).astype(np.float32)
    return result


def draw_coils(rng: np.random.Generator, front: tuple[float, float], back: tuple[float, float]) -> Coils:
    """Draw an array of elements in front of the body and one behind it; places in the picture, in mm."""
    places = []
    radius = float(rng.uniform(35, 100))
    across = np.array([front[1] - back[1], back[0] - front[0]])
    across = across / max(float(np.linalg.norm(across)), 1.0)
    for middle, count in ((front, int(rng.integers(2, 7))), (back, int(rng.integers(0, 5)))):
        for k in range(count):
            step = (k - (count - 1) / 2) * 1.2 * radius + rng.normal(0, 10)
            places.append((middle[0] + across[0] * step, middle[1] + across[1] * step, rng.normal(0, 30)))
    return Coils(np.array(places), radius)
