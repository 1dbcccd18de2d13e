# SPDX-License-Identifier: Apache-2.0
r"""From spins to stored integers: receive coils, off-resonance, k-space, noise, and the frame of the file.

The complex image :math:`m` of the spins is weighted by the receive sensitivity :math:`b`, transformed to k-space, cut
to the matrix that was acquired, filtered, zero-filled to the reconstruction matrix and transformed back:

.. math:: x = \bigl| \mathcal{F}^{-1} P\, h \,( \mathcal{F}(b\,m) + n ) \bigr| \; b^{-\nu},
          \qquad n \sim \mathcal{CN}(0, 2\sigma^2),

with a filter :math:`h`, zero filling :math:`P` and the vendor's normalization :math:`\nu` between 0 (shading kept)
and 1 (shading removed, noise amplified in the depth). So noise is Rician in the image and as correlated as the zero
filling makes it, edges ring as much as the filter lets them, and background is never black.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from vmfseg.phantom.shapes import Floats, Waves
from vmfseg.phantom.vendors import Receiver, Window

__all__ = ["acquire", "coil_sensitivity", "field_map", "frequency_axis", "oblique_frame", "store"]

#: Off-resonances of the signal tables: -600 to 600 Hz in steps of 2.5 Hz.
_STEP, _LIMIT = 2.5, 600.0


def frequency_axis() -> NDArray[np.float64]:
    """Return the off-resonances in Hz at which signal tables are computed."""
    return np.arange(-_LIMIT, _LIMIT + _STEP, _STEP)


def field_map(
    u: Floats, v: Floats, w: float, shim: float, waves: Waves, spot: tuple[float, float, float]
) -> NDArray[np.intp]:
    """Return the off-resonance of every voxel as an index into :func:`frequency_axis`.

    A second-order shim leaves smooth waves of ``shim`` Hz and grows towards the edge of the field of view; air next
    to tissue adds a ``spot`` (u, v, Hz), which in hearts lies at the inferolateral wall (Reeder et al., MRM 39:988,
    1998).
    """
    edge = (u / 150.0) ** 2 + (v / 170.0) ** 2
    hertz = shim * (waves(u, v) * (0.55 + 0.8 * edge) + 0.9 * edge * edge - 0.004 * w)
    hertz = hertz + spot[2] * np.exp(-((u - spot[0]) ** 2 + (v - spot[1]) ** 2) / (2 * 22.0**2))
    return np.clip(np.rint((hertz + _LIMIT) / _STEP), 0, 2 * _LIMIT / _STEP).astype(np.intp)


def coil_sensitivity(
    u: Floats, v: Floats, w: float, receiver: Receiver, front: tuple[float, float], back: tuple[float, float], axis: int
) -> Floats:
    r"""Return the root of the summed squares of all elements, 1 on average between the arrays.

    A loop of radius :math:`R` sees a spin at distance :math:`d` along its axis with :math:`(1 + d^2/R^2)^{-3/2}`.

    Args:
        u: columns of the open grid.
        v: rows of the open grid.
        w: position of the slice.
        receiver: number and radius of the elements.
        front: (u, v) of the middle of the front array.
        back: (u, v) of the middle of the back array.
        axis: 1 if the arrays run along ``v`` (hearts, seen from the side), 0 along ``u`` (necks).
    """
    total = np.zeros((u.shape[0], v.shape[1]), np.float32)
    reference = 0.0
    middle = ((front[0] + back[0]) / 2, (front[1] + back[1]) / 2)
    for count, place in ((receiver.front, front), (receiver.back, back)):
        for element in range(count):
            step = (element - (count - 1) / 2) * 1.25 * receiver.radius
            at = (place[0], place[1] + step) if axis else (place[0] + step, place[1])
            lift = w + (20.0 if element % 2 else -20.0)
            squared = ((u - at[0]) ** 2 + (v - at[1]) ** 2 + lift**2) / receiver.radius**2
            total += np.reciprocal((1 + squared) * (1 + squared) * (1 + squared)).astype(np.float32)
            near = ((middle[0] - at[0]) ** 2 + (middle[1] - at[1]) ** 2 + 400.0) / receiver.radius**2
            reference += float((1 + near) ** -3)
    result: Floats = np.sqrt(total / np.float32(reference))
    return result


def acquire(
    spins: NDArray[np.complex64],
    sensitivity: Floats,
    matrix: tuple[int, int],
    window: Window,
    sigma: float,
    normalized: float,
    rng: np.random.Generator,
) -> Floats:
    """Run spins through the scanner: see the formula of the module.

    Shape: ``spins`` (..., U, V), ``sensitivity`` (U, V), result (..., U, V).

    Args:
        spins: complex transverse magnetization on the reconstruction grid.
        sensitivity: receive sensitivity.
        matrix: acquired samples along both axes, at most the reconstruction matrix.
        window: filter on k-space.
        sigma: standard deviation of the noise of one channel (real or imaginary) in the image, without filter.
        normalized: exponent of the vendor's normalization.
        rng: source of the noise.
    """
    shape = spins.shape[-2:]
    keep = (min(matrix[0], shape[0]), min(matrix[1], shape[1]))
    rows, cols = (_kept(n, k) for n, k in zip(shape, keep, strict=True))
    # one axis after the other, so that frequencies which are not acquired are never transformed
    core = np.take(fft.fft(spins * sensitivity, axis=-1, norm="ortho"), cols, axis=-1)
    core = np.take(fft.fft(core, axis=-2, norm="ortho"), rows, axis=-2)
    scale = np.float32(sigma * np.sqrt(shape[0] * shape[1] / (keep[0] * keep[1])))
    noise = rng.standard_normal((*core.shape, 2), dtype=np.float32).view(np.complex64)[..., 0]
    core += scale * noise
    core *= _window(window, rows, keep[0], shape[0])[:, None] * _window(window, cols, keep[1], shape[1])[None, :]
    half = np.zeros((*core.shape[:-2], shape[0], keep[1]), np.complex64)
    half[..., rows, :] = core
    whole = np.zeros(spins.shape, np.complex64)
    whole[..., cols] = fft.ifft(half, axis=-2, norm="ortho")
    whole = fft.ifft(whole, axis=-1, norm="ortho")
    image = np.sqrt(whole.real**2 + whole.imag**2)
    result: Floats = image / np.maximum(sensitivity, np.float32(0.05)) ** np.float32(normalized)
    return result


def _kept(size: int, keep: int) -> NDArray[np.intp]:
    """Indices of the ``keep`` lowest frequencies of an unshifted spectrum of ``size`` samples."""
    return np.sort((np.arange(keep) - keep // 2) % size)


def _window(name: Window, index: NDArray[np.intp], keep: int, size: int) -> Floats:
    distance = np.minimum(index, size - index) / (keep / 2)
    if name == "hamming":
        values = 0.54 + 0.46 * np.cos(np.pi * np.clip(distance, 0, 1))
    elif name == "tukey":
        values = np.where(distance < 0.6, 1.0, 0.5 + 0.5 * np.cos(np.pi * np.clip((distance - 0.6) / 0.5, 0, 1)))
    elif name == "fermi":
        values = 1 / (1 + np.exp((distance - 0.88) / 0.06))
    else:
        values = np.ones_like(distance)
    result: Floats = values.astype(np.float32)
    return result


def oblique_frame(azimuth: float, pitch: float, roll: float) -> NDArray[np.float64]:
    """Return the short-axis directions (columns u, v, w; world is right, anterior, superior) for angles in degrees.

    ``azimuth`` turns the plane from coronal towards sagittal, ``pitch`` leans it, ``roll`` turns the picture. The
    frame is left
    handed: seen from the apex, the front of the chest is on the left and the feet are below.

    Example:
        >>> frame = oblique_frame(45, 20, 0)
        >>> bool(np.allclose(frame.T @ frame, np.eye(3))), round(float(np.linalg.det(frame)), 6)
        (True, -1.0)
    """
    a, p, r = np.deg2rad([azimuth, pitch, roll])
    across = np.array([-np.cos(a), -np.sin(a), 0.0])
    apex = np.array([-np.sin(a) * np.cos(p), np.cos(a) * np.cos(p), -np.sin(p)])
    down = -np.cross(apex, across)
    down = down if down[2] < 0 else -down
    u, v = np.cos(r) * across + np.sin(r) * down, np.cos(r) * down - np.sin(r) * across
    return np.stack([u, v, apex], axis=1)


def store(
    array: NDArray[np.generic], affine: NDArray[np.float64], receiver: Receiver
) -> tuple[NDArray[np.generic], NDArray[np.float64]]:
    """Bring a canonical array (u, v, w[, t]) and its affine into the vendor's order of axes; voxels stay in place."""
    affine = affine.copy()
    for axis, flip in enumerate(receiver.flips):
        if flip:
            array = np.flip(array, axis)
            affine[:3, 3] += affine[:3, axis] * (array.shape[axis] - 1)
            affine[:3, axis] *= -1
    if receiver.transposed:
        array = np.swapaxes(array, 0, 1)
        affine[:, [0, 1]] = affine[:, [1, 0]]
    return array, affine
