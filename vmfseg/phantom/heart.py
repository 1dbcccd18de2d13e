# SPDX-License-Identifier: Apache-2.0
r"""A beating heart as radii around the left ventricle's axis.

Frame of the short axis, in mm: ``u`` to the right of the picture (patient: left and back), ``v`` down (feet), ``w``
from base to apex. A point of a slice has polar coordinates :math:`(r, \varphi)` around the axis of the left
ventricle, and every surface of both ventricles is a radius :math:`R(\varphi; w, t)`, so that a slice at a time is a
handful of one-dimensional tables.

Motion. Let :math:`c(t) \in [0, 1]` be the contraction (0 at end-diastole, 1 at end-systole). The base moves towards the
resting apex, which shortens the ventricle by :math:`l(c)`; the cavity keeps the volume fraction
:math:`1 - c\,\mathrm{EF} = a^2 l`, which gives the radial factor :math:`a`; and the wall is incompressible,

.. math:: R_{epi}^2 = R_{endo}^2 + \bigl(R_{epi,0}^2 - R_{endo,0}^2\bigr) / l ,

so that it thickens by itself. Sizes and ejection fractions of the groups are of the order of the normal values of
Kawel-Boehm et al., JCMR 22:87, 2020, and the usual definitions of the diseases. Walls include what readers leave to
the cavity and are thicker than their contours: :mod:`vmfseg.phantom.ventricles` follows the contours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vmfseg.phantom.shapes import Floats

__all__ = ["ANGLES", "PATHOLOGIES", "Heart", "Section", "contraction", "draw_heart"]

#: Entries of the tables over the full circle.
ANGLES = 720
_PHI: NDArray[np.float64] = (np.arange(ANGLES) + 0.5) * 2 * np.pi / ANGLES - np.pi

#: Ranges per group: endocardial radius, wall, ejection fraction, width of the right ventricle and its shortening.
PATHOLOGIES: dict[str, dict[str, tuple[float, float]]] = {
    "NOR": {"radius": (22.5, 26.5), "wall": (7.0, 9.0), "ef": (0.57, 0.70), "rv": (30, 38), "rv_ef": (0.42, 0.55)},
    "HCM": {"radius": (21.0, 24.5), "wall": (8.5, 11.0), "ef": (0.64, 0.76), "rv": (27, 35), "rv_ef": (0.42, 0.55)},
    "DCM": {"radius": (30.0, 36.0), "wall": (6.0, 7.5), "ef": (0.18, 0.38), "rv": (30, 42), "rv_ef": (0.20, 0.38)},
    "HHD": {"radius": (22.5, 26.0), "wall": (11.5, 14.5), "ef": (0.52, 0.66), "rv": (28, 36), "rv_ef": (0.40, 0.52)},
    "ARV": {"radius": (22.0, 25.5), "wall": (6.5, 8.5), "ef": (0.50, 0.62), "rv": (44, 54), "rv_ef": (0.20, 0.34)},
    "IHD": {"radius": (26.0, 30.0), "wall": (7.0, 9.0), "ef": (0.38, 0.52), "rv": (30, 38), "rv_ef": (0.38, 0.50)},
    "AHS": {"radius": (26.0, 29.5), "wall": (9.5, 11.5), "ef": (0.55, 0.65), "rv": (38, 45), "rv_ef": (0.42, 0.52)},
}
_SHARE = (0.36, 0.14, 0.14, 0.10, 0.10, 0.10, 0.06)
_WIDEST = 0.28  # share of the long axis, from the base, where the ventricle is widest


@dataclass(frozen=True)
class Section:
    """The surfaces of one slice at one time, each a table of radii in mm over the angle.

    ``endo`` and ``epi`` bound the left ventricle, ``ridge`` is what trabeculae leave open of its cavity. The right
    ventricle lies between ``core`` (the outer wall of the left one, where there is one) and ``rv``, and ``rv_ridge`` is
    what trabeculae leave open of it. ``outside`` bounds the fat around the heart.
    """

    core: Floats
    endo: Floats
    ridge: Floats
    epi: Floats
    rv: Floats
    rv_ridge: Floats
    outside: Floats
    papillary: tuple[tuple[float, float, float, float, float], ...]
    has_left: bool
    has_right: bool

    def extent(self) -> tuple[float, float, float, float]:
        """Return the box (left, right, top, bottom) around the axis that holds ventricles and fat, and 3 mm more."""
        reach = self.outside + 3
        u, v = reach * np.cos(_PHI), reach * np.sin(_PHI)
        return float(u.min()), float(u.max()), float(v.min()), float(v.max())


@dataclass(frozen=True)
class Heart:
    """One person's heart. Lengths in mm, angles in radians; see :func:`draw_heart` for the ranges."""

    pathology: str
    radius: float
    wall: float
    ef: float
    rv_width: float
    rv_ef: float
    length: float
    base_descent: float
    septum: float
    center: tuple[float, float]
    tilt: tuple[float, float]
    oval: tuple[float, float]
    bump: tuple[float, float, float]
    slack: float
    fat: float
    rv_end: float
    rv_base: float
    rv_span: float
    rv_corner: float
    systole: float
    ridges: float
    ripple: tuple[NDArray[np.float64], NDArray[np.float64]] = field(repr=False)
    papillary: tuple[tuple[float, float, float], ...] = ()

    @property
    def base(self) -> float:
        """Position of the mitral plane at end-diastole; the apex of the cavity is at ``base + length``."""
        return -0.45 * self.length

    @property
    def outer_apex(self) -> float:
        """Position of the outer apex."""
        return self.base + self.length + 0.75 * self.wall

    def axis(self, w: float) -> tuple[float, float]:
        """Return the point of the left ventricle's axis in the slice at ``w``."""
        share = w / self.length
        return self.center[0] + share * self.tilt[0], self.center[1] + share * self.tilt[1]

    def base_at(self, c: float) -> float:
        """Return the position of the mitral plane at contraction ``c``."""
        return self.base + c * self.base_descent

    def section(self, w: float, c: float) -> Section:
        """Return the surfaces of the slice at ``w`` for the contraction ``c``."""
        base = self.base_at(c)
        end = self.base + self.length
        short = (end - base) / self.length
        s = (w - base) / (end - base)
        delta = _wrap(_PHI - self.septum)
        endo0, epi0 = self._rest(s, delta)
        a = np.sqrt(max(1 - c * self.ef, 0.05) / short)
        weak = self.slack * np.exp(-(((_wrap(delta - self.bump[1])) / self.bump[2]) ** 2))
        endo = endo0 * (1 - (1 - a) * (1 - weak))
        epi = np.sqrt(endo**2 + (epi0**2 - endo0**2) / short)
        has_left = s >= 0 and bool(epi0.max() > 0)
        ridge = endo * (1 - self._ripple(0, s) * np.clip(0.1 + 1.3 * s, 0, 1) * self.ridges)
        width, span = self._right(w, c)
        has_right = width > 1.0
        shape = np.clip(np.cos(np.clip(delta / span, -1, 1) * np.pi / 2), 0, 1) ** 0.58
        shape *= 1 + self.rv_corner * np.exp(-(((delta + 0.6 * span) / 0.3) ** 2))  # acute margin
        shape *= 1 + 0.3 * max(0.0, 0.6 - s) * np.exp(-(((delta - 0.55 * span) / 0.35) ** 2))  # outflow tract
        core = epi if has_left else np.full(ANGLES, 0.6 * self.radius)
        thickness = width * shape if has_right else np.zeros(ANGLES)
        rv = core + thickness
        rv_ridge = rv - np.minimum(0.75 * thickness, thickness.max() * self._ripple(7, s) * self.ridges)
        groove = 5.0 * sum(np.exp(-((_wrap(delta - side * 0.93 * span) / 0.2) ** 2)) for side in (-1, 1))
        outer = np.maximum(epi if has_left else 0.0, np.where(thickness > 0.5, rv + 3.5, 0.0))
        mantle = 1 + 0.5 * np.cos(delta) + 0.35 * np.cos(3 * delta + self.ripple[1][2]) * np.cos(2 * delta + 2 * s)
        outside = outer + self.fat * mantle + groove * has_right
        core, endo, ridge, epi, rv, rv_ridge, outside = (
            x.astype(np.float32) for x in (core, endo, ridge, epi, rv, rv_ridge, outside)
        )
        heads = self._papillaries(s, float(endo.mean()), has_left)
        return Section(core, endo, ridge, epi, rv, rv_ridge, outside, heads, has_left, has_right)

    def _rest(self, s: float, delta: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        oval = 1 + self.oval[0] * np.cos(2 * (delta - self.oval[1]))
        thick = self.wall * (1 + 0.08 * np.cos(delta))
        thick += (
            self.bump[0]
            * np.exp(-((_wrap(delta - self.bump[1]) / self.bump[2]) ** 2))
            * np.exp(-((s - 0.4) ** 2) / 0.12)
        )
        outer_end = 1 + 0.75 * self.wall / self.length
        endo = self.radius * oval * _profile(s, 1.0)
        epi = (self.radius * oval + thick) * _profile(s, outer_end)
        return endo, np.maximum(epi, endo)

    def _right(self, w: float, c: float) -> tuple[float, float]:
        start = self.rv_base + 1.15 * c * self.base_descent
        s = (w - start) / (self.base + self.rv_end * self.length - start)
        if not 0 <= s < 1:
            return 0.0, 1.0
        taper = (1 - s**2.4) ** 0.8 * (0.86 + 0.14 * min(1.0, s / 0.25))
        return self.rv_width * taper * (1 - c * self.rv_ef), self.rv_span * (1 - 0.3 * s)

    @cached_property
    def _waves(self) -> dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Sums of waves around each ventricle (0 left, 7 right), as cosine and sine parts of their common shift."""
        order, phase = self.ripple
        angle = order[:, None] * _PHI + phase[:, None]
        parts = {start: angle[start : start + 7] for start in (0, 7)}
        return {start: (np.cos(part).sum(axis=0), np.sin(part).sum(axis=0)) for start, part in parts.items()}

    def _ripple(self, start: int, s: float) -> NDArray[np.float64]:
        phase = self.ripple[1]
        even, odd = self._waves[start]
        waves = np.cos(9.0 * s) * even - np.sin(9.0 * s) * odd
        patch = 0.5 + 0.5 * np.cos(2 * _PHI + phase[start] + 4.0 * s) * np.cos(3 * _PHI + phase[start + 1])
        result: NDArray[np.float64] = np.clip(waves / 3.0 - 0.25, 0, 1) * patch
        return result

    def _papillaries(
        self, s: float, endo: float, has_left: bool
    ) -> tuple[tuple[float, float, float, float, float], ...]:
        if not has_left or not 0.26 < s < 0.8:
            return ()
        grow = np.sin(np.pi * (s - 0.26) / 0.54) ** 0.5
        result = []
        for angle, size, depth in self.papillary:
            phi, reach = self.septum + angle, max(depth * endo, 0.3 * endo)
            at = (reach * np.cos(phi), reach * np.sin(phi))
            result.append((at[0], at[1], size * grow, 1.35 * size * grow, phi))
        return tuple(result)


def _profile(s: float, end: float) -> float:
    """Relative radius of a truncated ellipsoid at ``s`` (0 base, ``end`` apex)."""
    if s >= end:
        return 0.0
    if s < _WIDEST:
        return 1 - 0.1 * ((_WIDEST - max(s, -0.2)) / _WIDEST) ** 2
    return float(np.sqrt(1 - ((s - _WIDEST) / (end - _WIDEST)) ** 2))


def _wrap(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bring angles to the range from -pi to pi."""
    result: NDArray[np.float64] = np.mod(angle + np.pi, 2 * np.pi) - np.pi
    return result


def contraction(t: float, systole: float) -> float:
    """Return the contraction at time ``t`` of the beat (0 and 1: end-diastole), with end-systole at ``systole``.

    Example:
        >>> contraction(0.0, 0.36), contraction(0.36, 0.36), round(contraction(1.0, 0.36), 6)
        (0.0, 1.0, 0.0)
    """
    if t <= systole:
        return float(np.sin(np.pi / 2 * t / systole) ** 2)
    x = (t - systole) / (1 - systole)
    early = 1 - np.exp(-((x / 0.24) ** 2))
    kick = np.clip((x - 0.78) / 0.22, 0, 1) ** 2 * (3 - 2 * np.clip((x - 0.78) / 0.22, 0, 1))
    return float(max(0.0, 1 - 0.76 * early / (1 - np.exp(-(1 / 0.24**2))) - 0.24 * kick))


def draw_heart(rng: np.random.Generator) -> Heart:
    """Draw a heart: group, size, thickness by segment, function, position and rotation."""
    pathology = str(rng.choice(list(PATHOLOGIES), p=_SHARE))
    ranges = {key: float(rng.uniform(*limits)) for key, limits in PATHOLOGIES[pathology].items()}
    body = float(rng.normal(1.0, 0.045))
    bump, slack = (0.0, 0.0, 0.8), 0.0
    if pathology == "HCM":
        bump = (float(rng.uniform(6, 12)), float(rng.uniform(-0.5, 0.7)), float(rng.uniform(0.7, 1.1)))
    if pathology == "IHD":
        bump = (-float(rng.uniform(2.5, 4.5)), float(rng.uniform(-np.pi, np.pi)), float(rng.uniform(0.5, 0.9)))
        slack = float(rng.uniform(0.6, 1.0))
    length = (float(rng.uniform(78, 92)) + 1.1 * (ranges["radius"] - 24)) * body
    side = (float(rng.uniform(2.2, 2.5)), -float(rng.uniform(1.25, 1.65)))
    heads = []
    for angle in side:
        heads.append((angle, float(rng.uniform(3.6, 5.4)), float(rng.uniform(0.62, 0.76))))
        if rng.random() < 0.5:
            heads.append((angle + float(rng.uniform(0.35, 0.5)), float(rng.uniform(2.2, 3.4)), 0.74))
    return Heart(
        pathology=pathology,
        radius=ranges["radius"] * body,
        wall=ranges["wall"],
        ef=ranges["ef"],
        rv_width=ranges["rv"] * body,
        rv_ef=ranges["rv_ef"],
        length=length,
        base_descent=float(rng.uniform(9, 14)) * min(1.0, ranges["ef"] / 0.6),
        septum=float(np.pi + rng.normal(0.12, 0.17)),
        center=(float(rng.normal(8, 7)), float(rng.normal(0, 7))),
        tilt=(float(rng.normal(5, 5)), float(rng.normal(4, 4))),
        oval=(float(rng.uniform(0.01, 0.05)), float(rng.uniform(0, np.pi))),
        bump=bump,
        slack=slack,
        fat=float(rng.uniform(1.5, 5.5)),
        rv_end=float(rng.uniform(0.8, 0.95)),
        rv_base=float(-0.45 * length - rng.uniform(-4, 9)),
        rv_span=float(rng.uniform(1.2, 1.42)),
        rv_corner=float(rng.uniform(0.15, 0.5)),
        systole=float(rng.uniform(0.33, 0.40)),
        ridges=float(rng.uniform(0.25, 0.5)),
        ripple=(rng.integers(7, 24, 14).astype(np.float64), rng.uniform(0, 2 * np.pi, 14)),
        papillary=tuple(heads),
    )
