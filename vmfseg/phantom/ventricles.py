# SPDX-License-Identifier: Apache-2.0
r"""Both ventricles as surfaces :math:`R(\varphi, w)` around the axis of the left one, for any plane that cuts them.

Frame in mm: ``x`` from the septum to the lateral wall, ``y`` towards the feet, ``w`` from base to apex. At
end-diastole the cavity has the radius :math:`R\,f(s)` at the share :math:`s` of its length, with a blunt apex

.. math:: f(s) = \bigl(1 - \bigl((s - s_0)/(1 - s_0)\bigr)^{p}\bigr)^{1/2} \quad (s > s_0),

and the compact wall is :math:`t(s, \varphi)` thick, thickest at the base and thinnest at the apex. With the
contraction :math:`c` the base descends, the cavity keeps the fraction :math:`1 - c\,\mathrm{EF}` of its volume and
the wall keeps its own, as in :mod:`vmfseg.phantom.heart`; trabeculae and papillary muscles keep their size, so that
they fill the cavity of a contracted heart. A reader's contour runs outside all of them and a little into the gray rim
of the blood, which ``lining`` stands for: in the development scans a fifth (base) to a half (middle, end-systole) of
the points inside the contour are as dark as muscle.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vmfseg.phantom.pathology import Patch, draw_group, draw_patches
from vmfseg.phantom.shapes import Floats

__all__ = ["ANGLES", "Surfaces", "Ventricles", "draw_ventricles"]

#: Entries of the tables over the full circle.
ANGLES = 360
_PHI: NDArray[np.float64] = (np.arange(ANGLES) + 0.5) * 2 * np.pi / ANGLES - np.pi
_WIDEST = 0.3
_Table = NDArray[np.float64]


@dataclass(frozen=True)
class Surfaces:
    """Radii in mm, tables of shape (ANGLES, W) over the angle and the positions ``first + k * step`` along the axis.

    ``endo`` and ``epi`` bound the wall of the left ventricle, ``ridge`` is what trabeculae leave open of its cavity;
    the right ventricle lies between ``epi`` and ``rv`` where that is larger, ``rv_ridge`` is what its trabeculae leave
    open. ``fluid`` bounds a pericardial effusion, ``outside`` the fat around the heart.
    """

    first: float
    step: float
    endo: Floats
    ridge: Floats
    epi: Floats
    rv: Floats
    rv_ridge: Floats
    fluid: Floats
    outside: Floats

    def index(self, w: Floats) -> NDArray[np.intp]:
        """Return the row of the tables that belongs to the positions ``w``."""
        last = self.endo.shape[1] - 1
        rows: NDArray[np.float32] = np.rint((w - np.float32(self.first)) / np.float32(self.step))
        return np.clip(rows, 0, last).astype(np.intp)


@dataclass(frozen=True)
class Ventricles:
    """The ventricles of one person. Lengths in mm, angles in radians; see :func:`draw_ventricles` for the ranges."""

    group: str
    radius: float
    wall: float
    skew: float
    ef: float
    length: float
    descent: float
    septum: float
    center: tuple[float, float]
    lean: tuple[float, float]
    oval: tuple[float, float, float, float]
    blunt: float
    apex: tuple[float, float]
    outflow: tuple[float, float]
    patches: tuple[Patch, ...]
    rv_width: float
    rv_ef: float
    rv_range: tuple[float, float, float]
    rv_span: tuple[float, float]
    rv_shape: tuple[float, float, float, float]
    rv_wall: float
    fat: tuple[float, float, float]
    effusion: float
    lining: float
    trabeculae: tuple[float, float]
    waves: tuple[_Table, _Table] = field(repr=False)
    papillary: tuple[tuple[float, float, float, float, float], ...] = field(repr=False, default=())

    @property
    def base(self) -> float:
        """Position of the mitral plane at end-diastole; the apex of the cavity is at ``base + length``."""
        return -0.45 * self.length

    def base_at(self, c: float) -> float:
        """Return the position of the mitral plane at contraction ``c``."""
        return self.base + c * self.descent

    @property
    def outer_apex(self) -> float:
        """Position of the outer apex."""
        return self.base + self.length + self.apex[1]

    def axis(self, w: float) -> tuple[float, float]:
        """Return the point of the left ventricle's axis in the plane at ``w``."""
        return self.center[0] + w * self.lean[0], self.center[1] + w * self.lean[1]

    def surfaces(self, low: float, high: float, c: float, step: float = 1.0) -> Surfaces:
        """Return the surfaces between the positions ``low`` and ``high`` at contraction ``c``."""
        w = np.arange(low, high + step, step)[None, :]
        base, end = self.base_at(c), self.base + self.length
        short = (end - base) / self.length
        s = (w - base) / (end - base)
        delta = _wrap(_PHI - self.septum)[:, None]
        endo0, wall0, weak = self._rest(s, delta)
        a = np.sqrt(max(1 - c * self.ef, 0.05) / short)
        endo = endo0 * (1 - (1 - a) * np.clip(1 - weak, 0, 1))
        epi = np.sqrt(endo**2 + ((endo0 + wall0) ** 2 - endo0**2) / short)
        lining = self.lining * (1 + 0.3 * c) * np.clip(0.75 + 0.5 * s, 0.75, 1.2)
        ridge = endo - lining - self._layer(0, s, delta, self.trabeculae[0] * np.clip(0.35 + 1.2 * s, 0.3, 1.5))
        thick, position = self._right(w, c, delta)
        rv = epi + thick
        deep = self.trabeculae[1] * np.clip(0.5 + position, 0.4, 1.4) * np.ones_like(w)
        rv_ridge = rv - np.minimum(0.75 * thick, self._layer(6, s, delta, deep))
        mantle = self.fat[0] * (0.6 + 0.4 * np.cos(delta)) + self.fat[1] * (0.5 + 0.5 * np.cos(2 * delta + self.fat[2]))
        span = np.where(delta < 0, -self.rv_span[0], self.rv_span[1])
        groove = np.exp(-(((delta - 0.95 * span) / 0.22) ** 2)) * (3.0 + self.fat[0]) * (thick.max(axis=0) > 1)
        outer = np.maximum(epi, np.where(thick > 0.5, rv + self.rv_wall, 0.0))
        fluid = outer + self.effusion * np.clip(0.6 + 0.6 * np.cos(delta + self.fat[2]), 0, 1)
        outside = fluid + np.maximum(mantle, 0.3) + groove
        tables = (endo, np.maximum(ridge, 0), epi, rv, np.maximum(rv_ridge, epi), fluid, outside)
        return Surfaces(float(w[0, 0]), step, *(np.ascontiguousarray(x, dtype=np.float32) for x in tables))

    def heads(self, w: float, c: float) -> tuple[tuple[float, float, float, float, float], ...]:
        """Return the papillary muscles at ``w``: (x, y) from the axis, half axes and turn of ellipses."""
        base, end = self.base_at(c), self.base + self.length
        s = (w - base) / (end - base)
        found = []
        profile = float(self._profile(np.array(s)))
        endo = self.radius * profile * np.sqrt(max(1 - c * self.ef, 0.05) * self.length / (end - base))
        for angle, size, start, stop, reach in self.papillary:
            share = (s - start) / (stop - start)
            if not 0 < share < 1 or endo < 4:
                continue
            grow = size * float(np.sin(np.pi * share)) ** 0.5 * (1 + 0.1 * c)
            depth = max(endo - grow * (reach * (1 - share) + 0.3 * share), 0.25 * endo)
            phi = self.septum + angle
            found.append((depth * np.cos(phi), depth * np.sin(phi), 1.25 * grow, grow, phi))
        return tuple(found)

    def _profile(self, s: _Table) -> _Table:
        toward = np.clip((s - _WIDEST) / (1 - _WIDEST), 0, 1)
        away = np.clip((_WIDEST - s) / _WIDEST, 0, 1.2)
        result: _Table = np.sqrt(1 - toward**self.blunt) * (1 - 0.1 * away**2)
        return result

    def _rest(self, s: _Table, delta: _Table) -> tuple[_Table, _Table, _Table]:
        """Radius of the cavity and thickness of the wall at end-diastole, and how weak the wall is."""
        oval = 1 + self.oval[0] * np.cos(2 * (delta - self.oval[1])) + self.oval[2] * np.cos(3 * (delta - self.oval[3]))
        endo = self.radius * oval * self._profile(s)
        thin = 1 + 0.12 * np.clip(1 - s / 0.45, 0, 1) - (1 - self.apex[0]) * np.clip((s - 0.4) / 0.5, 0, 1)
        wall = self.wall * thin * (1 + self.skew * np.cos(delta))
        near = np.clip(1 - s / 0.16, 0, 1)
        membrane = np.exp(-((_wrap(delta - self.outflow[1]) / 0.55) ** 2))
        wall = wall * (1 - self.outflow[0] * near * membrane) * (1 - 0.35 * np.clip(1 - s / 0.08, 0, 1))
        weak = np.zeros_like(wall)
        for patch in self.patches:
            away = (_wrap(delta - patch.angle) / patch.spread[0]) ** 2 + ((s - patch.along) / patch.spread[1]) ** 2
            bump = np.exp(-away)
            wall = np.maximum(wall * (1 + (patch.thick - 1) * bump), 1.8)
            endo = endo + patch.bulge * bump * (endo > 0)
            weak = weak + patch.slack * bump
        cap = np.sqrt(np.clip(1 - np.maximum((s - 1) * self.length / max(self.apex[1], 1.0), 0) ** 2, 0, 1))
        return endo, wall * cap, weak

    def _right(self, w: _Table, c: float, delta: _Table) -> tuple[_Table, _Table]:
        """Distance from the wall of the left ventricle to the free wall of the right one, and the share of length."""
        start, stop, _ = self.rv_range
        start = start + 1.1 * c * self.descent
        s = (w - start) / (stop - start)
        taper = np.clip(1 - np.clip(s, 0, 1) ** 2.2, 0, 1) ** 0.75
        taper = np.where(s < 0, 1 - 0.6 * np.clip(-s / 0.28, 0, 1) ** 1.5, taper)
        power, corner, tract, wave = self.rv_shape
        span = np.where(delta < 0, self.rv_span[0], self.rv_span[1]) * (1 - 0.3 * np.clip(s, 0, 1))
        lobe = np.clip(np.cos(np.clip(delta / span, -1, 1) * np.pi / 2), 0, 1) ** power
        lobe = lobe * (1 + corner * np.exp(-(((delta + 0.62 * span) / 0.32) ** 2)))
        lobe = lobe * (1 + tract * np.clip(0.7 - s, 0, 1) * np.exp(-(((delta - 0.55 * span) / 0.4) ** 2)))
        lobe = lobe * (1 + 0.08 * np.cos(3 * delta + wave))
        return self.rv_width * (1 - c * self.rv_ef) * taper * lobe, s

    def _layer(self, start: int, s: _Table, delta: _Table, depth: _Table) -> _Table:
        """Trabeculae: waves around the circle that turn along the axis, in patches."""
        order, phase = self.waves
        waves = np.zeros(np.broadcast_shapes(s.shape, delta.shape))
        for k in range(start, start + 6):  # cos(a + b), so that cosines are taken of vectors only
            around, along = order[k] * delta + phase[k], (6 + order[k] / 2) * np.sin(phase[k]) * s
            waves += np.cos(around) * np.cos(along) - np.sin(around) * np.sin(along)
        patch = 0.6 + 0.4 * np.cos(2 * delta + phase[start] + 3.0 * s) * np.cos(delta + phase[start + 1])
        smooth = 1 - (0.75 if start == 0 else 0.4) * np.exp(-((delta / 0.8) ** 2))
        result: _Table = depth * np.clip(waves / 2.4 + 0.25, 0, 1.3) * patch * smooth
        return result


def _wrap(angle: _Table) -> _Table:
    """Bring angles to the range from -pi to pi."""
    result: _Table = np.mod(angle + np.pi, 2 * np.pi) - np.pi
    return result


def draw_ventricles(rng: np.random.Generator) -> Ventricles:
    """Draw the ventricles of one person."""
    uniform = rng.uniform
    group, values = draw_group(rng)
    radius = values["radius"]
    length = float(np.clip(rng.normal(88 + 0.9 * (radius - 25), 6), 66, 118))
    ef = float(np.clip(values["ef"], 0.12, 0.80))
    base = -0.45 * length
    heads = []
    for side in (float(uniform(2.0, 2.6)), -float(uniform(1.2, 1.8))):
        for turn, size in ((0.0, uniform(3.4, 6.4)), (uniform(0.3, 0.55), uniform(1.8, 4.2))):
            if turn == 0.0 or rng.random() < 0.6:
                heads.append((side + turn, size, uniform(0.18, 0.32), uniform(0.7, 0.92), uniform(1.0, 1.9)))
    for _ in range(int(rng.integers(2, 8))):  # trabeculae that stand free, mostly towards the apex
        start = uniform(0.3, 0.75)
        heads.append((uniform(-np.pi, np.pi), uniform(0.9, 2.2), start, start + uniform(0.12, 0.35), uniform(0.6, 2.5)))
    return Ventricles(
        group=group,
        radius=radius,
        wall=values["wall"],
        skew=float(rng.normal(0.03, 0.06)),
        ef=ef,
        length=length,
        descent=float(uniform(9, 15)) * min(1.0, ef / 0.6),
        septum=float(np.pi + rng.normal(0.1, 0.3)),
        center=(0.0, 0.0),
        lean=(float(rng.normal(0.05, 0.06)), float(rng.normal(0.04, 0.06))),
        oval=(float(abs(rng.normal(0, 0.045))), uniform(0, np.pi), float(abs(rng.normal(0, 0.012))), uniform(0, np.pi)),
        blunt=float(uniform(1.9, 2.9)),
        apex=(float(uniform(0.45, 0.85)), float(uniform(2.5, 6.0))),
        outflow=(float(uniform(0.3, 0.75)), float(rng.normal(0.7, 0.3))),
        patches=draw_patches(rng, group),
        rv_width=max(values["rv"], 18.0),
        rv_ef=float(np.clip(values["rv_ef"], 0.1, 0.6)),
        rv_range=(base + float(uniform(-10, 10)), base + float(uniform(0.78, 1.02)) * length, float(uniform(2, 11))),
        rv_span=(float(uniform(1.05, 1.5)), float(uniform(1.15, 1.75))),
        rv_shape=(float(uniform(0.35, 0.75)), float(uniform(0.0, 0.7)), float(uniform(0.0, 0.8)), uniform(0, 6.3)),
        rv_wall=float(uniform(1.6, 3.6)),
        fat=(float(rng.gamma(2.0, 1.9)), float(rng.gamma(1.2, 1.8)), uniform(0, 6.3)),
        effusion=float(uniform(3, 12)) if rng.random() < 0.05 else 0.0,
        lining=float(np.clip(rng.normal(1.8, 0.7), 0.0, 3.5)),
        trabeculae=(max(values["trabeculae"], 0.4), float(uniform(2.0, 12.0))),
        waves=(rng.integers(3, 17, 12).astype(np.float64), rng.uniform(0, 2 * np.pi, 12)),
        papillary=tuple(heads),
    )
