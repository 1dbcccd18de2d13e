# SPDX-License-Identifier: Apache-2.0
"""Small geometry: ellipses, tapered strokes and smooth random fields on rectangular grids of millimeters.

A grid is a pair of open arrays ``u`` with shape (U, 1) and ``v`` with shape (1, V): ``u`` runs to the right of the
picture, ``v`` down. Everything is float32; random shapes are sums of waves, so that they do not depend on the grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Tissues", "Waves", "ellipse", "ellipse_depth", "open_grid", "paint", "stroke", "window"]

Floats = NDArray[np.float32]
Tissues = NDArray[np.uint8]


def open_grid(count: tuple[int, int], spacing: float, samples: int = 1) -> tuple[Floats, Floats]:
    """Return the coordinates in mm of ``samples`` points per voxel and axis, with 0 at the center of the grid.

    Example:
        >>> u, v = open_grid((2, 3), 1.0)
        >>> u.ravel().tolist(), v.ravel().tolist()
        ([-0.5, 0.5], [-1.0, 0.0, 1.0])
    """
    axes = [((np.arange(n * samples) + 0.5) * (spacing / samples) - n * spacing / 2).astype(np.float32) for n in count]
    return axes[0][:, None], axes[1][None, :]


def ellipse(u: Floats, v: Floats, at: tuple[float, float], half: tuple[float, float], turn: float = 0.0) -> Floats:
    """Return the squared relative radius of an ellipse: below 1 inside. ``turn`` in radians."""
    c, s = np.float32(np.cos(turn)), np.float32(np.sin(turn))
    du, dv = u - np.float32(at[0]), v - np.float32(at[1])
    return np.asarray(
        ((c * du + s * dv) / np.float32(half[0])) ** 2 + ((c * dv - s * du) / np.float32(half[1])) ** 2,
        dtype=np.float32,
    )


def window(u: Floats, v: Floats, at: tuple[float, float], reach: tuple[float, float]) -> tuple[slice, slice]:
    """Return the slices of the open grid that hold everything within ``reach`` mm of ``at``.

    Example:
        >>> u, v = open_grid((10, 10), 1.0)
        >>> window(u, v, (0.0, 2.0), (1.0, 2.0))
        (slice(4, 6, None), slice(5, 9, None))
    """
    rows = np.searchsorted(u[:, 0], (at[0] - reach[0], at[0] + reach[0]))
    cols = np.searchsorted(v[0], (at[1] - reach[1], at[1] + reach[1]))
    return slice(int(rows[0]), int(rows[1])), slice(int(cols[0]), int(cols[1]))


def paint(
    image: Tissues,
    u: Floats,
    v: Floats,
    at: tuple[float, float],
    half: tuple[float, float],
    turn: float,
    code: np.uint8,
    over: tuple[np.uint8, ...] = (),
) -> None:
    """Fill an ellipse with ``code``, everywhere or only over the tissues ``over``. Works in its bounding box."""
    rows, cols = window(u, v, at, (max(half), max(half)))
    view = image[rows, cols]
    if view.size:
        inside = ellipse(u[rows], v[:, cols], at, half, turn) < 1
        if over:
            allowed = np.zeros(256, bool)
            allowed[list(over)] = True
            inside &= allowed[view]
        view[inside] = code


def ellipse_depth(
    u: Floats, v: Floats, at: tuple[float, float], half: tuple[float, float], turn: float = 0.0
) -> Floats:
    """Return the approximate depth in mm inside an ellipse (negative outside), to first order in the gradient."""
    c, s = np.float32(np.cos(turn)), np.float32(np.sin(turn))
    du, dv = u - np.float32(at[0]), v - np.float32(at[1])
    a, b = c * du + s * dv, c * dv - s * du
    aa, bb = np.float32(half[0] ** 2), np.float32(half[1] ** 2)
    radius = np.sqrt(a * a / aa + b * b / bb)
    slope = np.sqrt((a / aa) ** 2 + (b / bb) ** 2) / np.maximum(radius, np.float32(1e-6))
    return np.asarray((1 - radius) / np.maximum(slope, np.float32(1 / max(half))), dtype=np.float32)


def stroke(
    u: Floats, v: Floats, start: tuple[float, float], end: tuple[float, float], thick: tuple[float, float]
) -> Floats:
    """Return the signed distance in mm to a round-ended line whose radius runs from ``thick[0]`` to ``thick[1]``."""
    du, dv = end[0] - start[0], end[1] - start[1]
    pu, pv = u - np.float32(start[0]), v - np.float32(start[1])
    along = np.clip((pu * np.float32(du) + pv * np.float32(dv)) / np.float32(du * du + dv * dv), 0, 1)
    distance = np.hypot(pu - along * np.float32(du), pv - along * np.float32(dv))
    return np.asarray(distance - (np.float32(thick[0]) + along * np.float32(thick[1] - thick[0])), dtype=np.float32)


@dataclass(frozen=True)
class Waves:
    """A smooth random field of zero mean and unit variance: a sum of plane waves with random phases.

    Args:
        wave: angular wave vectors in 1/mm, shape (K, 2).
        phase: phases, shape (K,).
    """

    wave: NDArray[np.float64]
    phase: NDArray[np.float64]

    @classmethod
    def draw(cls, rng: np.random.Generator, length: float, count: int = 12) -> Waves:
        """Draw a field whose structures are about ``length`` mm wide."""
        angle = rng.uniform(0, 2 * np.pi, count)
        size = 2 * np.pi / (length * rng.uniform(1.4, 3.2, count))
        wave = np.stack([np.cos(angle) * size, np.sin(angle) * size], axis=1)
        return cls(wave, rng.uniform(0, 2 * np.pi, count))

    def __call__(self, u: Floats, v: Floats) -> Floats:
        """Evaluate on an open grid; a plane wave factorizes, so this is one small matrix product."""
        left = np.exp(1j * (u.reshape(-1, 1) * self.wave[:, 0] + self.phase)).astype(np.complex64)
        right = np.exp(1j * (v.reshape(-1, 1) * self.wave[:, 1])).astype(np.complex64)
        return np.asarray((left @ right.T).real * np.float32(np.sqrt(2 / self.phase.size)), dtype=np.float32)
