# SPDX-License-Identifier: Apache-2.0
"""The points of one picture, in the coordinates of the picture and in those of the body."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vmfseg.phantom.shapes import Floats, Tissues, ellipse, open_grid, window

__all__ = ["Plane"]

Window = tuple[slice, slice]


@dataclass(frozen=True)
class Plane:
    r"""A rectangular grid that is turned and shifted against the body.

    A point :math:`(u, v)` of the picture lies at :math:`(x, y)^T = Q(\theta)\,(u, v)^T + (x_0, y_0)^T` of the body,
    where :math:`Q` turns by the angle :math:`\theta`.

    Args:
        u: columns of the picture in mm, shape (U, 1).
        v: rows of the picture in mm, shape (1, V).
        turn: the angle in radians.
        origin: where the middle of the picture lies in the body.

    Example:
        >>> plane = Plane.make((4, 4), 1.0, np.pi / 2, (10.0, 0.0))
        >>> round(float(plane.x[0, 0]), 3), round(float(plane.y[0, 0]), 3)
        (11.5, -1.5)
    """

    u: Floats
    v: Floats
    turn: float
    origin: tuple[float, float]

    @classmethod
    def make(
        cls,
        count: tuple[int, int],
        spacing: float,
        turn: float = 0.0,
        origin: tuple[float, float] = (0.0, 0.0),
        shift: tuple[float, float] = (0.0, 0.0),
    ) -> Plane:
        """Return a centered grid; ``shift`` moves its points in the picture."""
        u, v = open_grid(count, spacing)
        return cls(u + np.float32(shift[0]), v + np.float32(shift[1]), turn, origin)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of points along both axes of the picture."""
        return self.u.shape[0], self.v.shape[1]

    @cached_property
    def x(self) -> Floats:
        """First coordinate in the body, shape (U, V)."""
        c, s = np.float32(np.cos(self.turn)), np.float32(np.sin(self.turn))
        return (c * self.u + np.float32(self.origin[0])) - s * self.v

    @cached_property
    def y(self) -> Floats:
        """Second coordinate in the body, shape (U, V)."""
        c, s = np.float32(np.cos(self.turn)), np.float32(np.sin(self.turn))
        return (s * self.u + np.float32(self.origin[1])) + c * self.v

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point of the body lies in the picture."""
        c, s = np.cos(self.turn), np.sin(self.turn)
        dx, dy = x - self.origin[0], y - self.origin[1]
        return float(c * dx + s * dy), float(c * dy - s * dx)

    def near(self, x: float, y: float, reach: float) -> Window:
        """Return the part of the grid within ``reach`` mm of a point of the body."""
        return window(self.u, self.v, self.place(x, y), (reach, reach))

    def part(self, where: Window) -> Plane:
        """Return a part of the plane."""
        return Plane(self.u[where[0]], self.v[:, where[1]], self.turn, self.origin)

    def paint(
        self,
        image: Tissues,
        at: tuple[float, float],
        half: tuple[float, float],
        turn: float,
        code: np.uint8,
        over: NDArray[np.bool_] | None = None,
    ) -> None:
        """Fill an ellipse of the body with ``code``, everywhere or only over the tissues that ``over`` marks."""
        center = self.place(*at)
        rows, cols = window(self.u, self.v, center, (max(half), max(half)))
        view = image[rows, cols]
        if view.size:
            inside = ellipse(self.u[rows], self.v[:, cols], center, half, turn - self.turn) < 1
            if over is not None:
                inside &= over[view]
            view[inside] = code
