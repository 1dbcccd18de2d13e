# SPDX-License-Identifier: Apache-2.0
"""One person's heart in the chest: tissue and label of every point of a plane, at any phase of the beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vmfseg.phantom.chest import Chest, draw_chest, mark
from vmfseg.phantom.plane import Plane
from vmfseg.phantom.relaxation import CODES
from vmfseg.phantom.shapes import Floats, Tissues
from vmfseg.phantom.ventricles import ANGLES, Surfaces, Ventricles, draw_ventricles

__all__ = ["Convention", "HeartScene", "draw_heart_scene"]

#: Where papillary muscles and trabeculae belong: to the cavity, as most readers draw, or to the wall.
Convention = Literal["cavity", "wall"]

_CLOSED = 0.4  # share of the circle with a wall from which a reader draws a closed contour
_CAVITY = mark("lv_blood", "lv_trabeculae")
_Ellipse = tuple[str, float, float, float, float, float]


@dataclass(frozen=True)
class HeartScene:
    """Ventricles, atria, great vessels and chest of one person.

    Args:
        ventricles: both ventricles.
        chest: what surrounds the heart.
        above: atria and great vessels above the mitral plane: tissue, center, half axes and turn of ellipses.
        root: center and radius of the aortic root.
        leaflet: center, half axes and turn of the open mitral valve.
        pulmonary: how far above the tricuspid valve the outflow tract of the right ventricle ends.
        between: fat between atria and vessels, in mm.
        bands: muscle bands across the right ventricle: angle from the septum, bend, half thickness and where
            they start between septum (0) and free wall (1).
        hinge: rise of the mitral plane per mm in the plane: the side of the outflow tract ends nearer to the apex.
        mouth: how far above the mitral plane, in mm, the cavity goes on without a wall of its own: open valve and
            outflow tract.
    """

    ventricles: Ventricles
    chest: Chest
    above: tuple[_Ellipse, ...]
    root: tuple[float, float, float]
    leaflet: tuple[float, float, float, float, float]
    pulmonary: float
    between: float = 3.5
    bands: tuple[tuple[float, float, float, float], ...] = ()
    hinge: tuple[float, float] = (0.0, 0.0)
    mouth: float = 0.0

    def support(self, w: float) -> Floats:
        """Return how far the heart reaches from its axis at end-diastole, a table over the circle."""
        outside: Floats = self.ventricles.surfaces(w, w, 0.0).outside[:, 0]
        return outside

    def surfaces(self, w: float, beat: float, tilt: tuple[float, float], thickness: float = 0.0) -> Surfaces:
        """Return the surfaces of the ventricles for all planes of a slice."""
        extra = 90.0 * float(np.hypot(*tilt)) + thickness / 2
        return self.ventricles.surfaces(w - extra, w + extra, beat)

    def tissue(
        self, plane: Plane, w: float, beat: float, tilt: tuple[float, float], ground: Tissues, surfaces: Surfaces
    ) -> Tissues:
        """Paint the heart over the chest ``ground``; coordinates of ``plane`` are relative to the heart's axis."""
        image = ground.copy()
        reach = self._reach(surfaces, beat)
        near = plane.near(0.0, 0.0, reach)
        part, view = plane.part(near), image[near]
        if 0 in part.shape:
            return image
        r, depth, at = _polar(part, w, tilt, surfaces)
        outside, epi = surfaces.outside.ravel()[at], surfaces.epi.ravel()[at]
        inside = r < outside
        view[r < outside + 1.1] = CODES["pericardium"]
        view[inside] = CODES["epicardial_fat"]
        base = self.ventricles.base_at(beat)
        rise = base - depth - np.float32(self.hinge[0]) * part.x - np.float32(self.hinge[1]) * part.y
        high = rise > 0
        if high.any():
            self._atria(view, part, high, base - w)
            view[high & (rise < self.mouth) & (r < surfaces.endo.ravel()[at])] = CODES["lv_blood"]
        below = ~high
        if self.ventricles.effusion > 0:
            view[below & (r < surfaces.fluid.ravel()[at])] = CODES["effusion"]
        self._right(view, part, surfaces, r, at, self._atrial(part, depth, beat))
        if below.any():
            endo = surfaces.endo.ravel()[at]
            view[below & (r < epi)] = CODES["lv_myocardium"]
            view[below & (r < endo)] = CODES["lv_trabeculae"]
            view[below & (r < surfaces.ridge.ravel()[at])] = CODES["lv_blood"]
            for x, y, along, across, turn in self.ventricles.heads(w, beat):
                part.paint(view, (x, y), (along, across), turn, CODES["papillary"], _CAVITY)
            if self.leaflet[2] > 0 and -2 < w - base < 12:
                x, y, a, b, turn = self.leaflet
                part.paint(view, (x, y), (a, b), turn, CODES["papillary"], mark("lv_blood"))
                part.paint(view, (x + 0.5, y), (a - 0.7, b - 0.9), turn, CODES["lv_blood"], mark("papillary"))
        return image

    def label(
        self, plane: Plane, w: float, beat: float, tilt: tuple[float, float], convention: Convention = "cavity"
    ) -> NDArray[np.uint8]:
        """Return what a reader draws at the points of ``plane``: 1 LV, 2 MYO, 3 RV.

        Where the plane cuts the mitral plane, the reader draws closed contours if the wall surrounds at least two
        fifths of the cavity, and nothing of the left ventricle otherwise.
        """
        label = np.zeros(plane.shape, np.uint8)
        surfaces = self.surfaces(w, beat, tilt)
        near = plane.near(0.0, 0.0, self._reach(surfaces, beat))
        part, view = plane.part(near), label[near]
        if 0 in part.shape:
            return label
        r, depth, at = _polar(part, w, tilt, surfaces)
        epi, endo, rv = (table.ravel()[at] for table in (surfaces.epi, surfaces.endo, surfaces.rv))
        view[(rv > epi + 0.5) & (r >= epi) & (r < rv) & ~self._atrial(part, depth, beat)] = 3
        turn = np.arange(72) * np.pi / 36
        slope = (tilt[0] + self.hinge[0], tilt[1] + self.hinge[1])
        ring = w + self.ventricles.radius * (slope[0] * np.cos(turn) + slope[1] * np.sin(turn))
        if (ring >= self.ventricles.base_at(beat)).mean() >= _CLOSED:
            view[r < epi] = 2
            cavity = r < endo
            if convention == "wall":
                cavity &= r < surfaces.ridge.ravel()[at]
            view[cavity] = 1
            if convention == "wall":
                for x, y, along, across, angle in self.ventricles.heads(w, beat):
                    part.paint(view, (x, y), (along, across), angle, np.uint8(2), np.array([False, True, False, False]))
        return label

    def _reach(self, surfaces: Surfaces, beat: float) -> float:
        """How far from the axis anything of the heart can lie."""
        reach = float(surfaces.outside.max()) + 3
        above = self.ventricles.base_at(beat) + 60.0 * float(np.hypot(*self.hinge)) > surfaces.first
        return max(reach, 95.0 * self.ventricles.radius / 25) if above else reach

    def _atrial(self, part: Plane, depth: Floats, beat: float) -> NDArray[np.bool_]:
        """Whether points lie above the tricuspid or the pulmonary valve; the former is nearer to the apex below."""
        ventricles = self.ventricles
        start = ventricles.rv_range[0] + 1.1 * beat * ventricles.descent
        c, s = np.float32(np.sin(ventricles.septum)), np.float32(-np.cos(ventricles.septum))
        lower = np.float32(ventricles.rv_range[2] / ventricles.radius) * (c * part.x + s * part.y)
        return (depth < start + lower) | (depth < start - np.float32(self.pulmonary))

    def _right(
        self, view: Tissues, part: Plane, surfaces: Surfaces, r: Floats, at: NDArray[np.intp], atrial: NDArray[np.bool_]
    ) -> None:
        rv, epi = surfaces.rv.ravel()[at], surfaces.epi.ravel()[at]
        hollow = (rv > epi + 0.5) & (r >= epi)
        view[hollow & (r < rv + np.float32(self.ventricles.rv_wall))] = CODES["rv_wall"]
        hollow &= r < rv
        view[hollow] = CODES["rv_trabeculae"]
        view[hollow & (r < surfaces.rv_ridge.ravel()[at])] = CODES["rv_blood"]
        for angle, bend, thick, start in self.bands:
            place = self.ventricles.septum + angle
            c, s = np.float32(np.cos(place)), np.float32(np.sin(place))
            share = (r - epi) / np.maximum(rv - epi, np.float32(1))
            off = c * part.y - s * part.x - np.float32(bend) * (r - epi) * (1 + np.float32(0.6) * share)
            line = (np.abs(off) < thick * (1 + share)) & (share > start) & (c * part.x + s * part.y > 0)
            view[hollow & line] = CODES["rv_trabeculae"]
        view[hollow & atrial] = CODES["right_atrium_blood"]

    def _atria(self, view: Tissues, part: Plane, high: NDArray[np.bool_], above: float) -> None:
        """Paint atria and great vessels, with fat between them, where points lie above the mitral plane."""
        scratch = view.copy()
        unit = self.ventricles.radius / 25
        grow = unit * float(np.clip(0.85 + above / 60, 0.8, 1.1))
        for name, x, y, a, b, turn in self.above:
            for border, tissue in ((self.between, "epicardial_fat"), (1.6, "atrial_wall"), (0.0, name)):
                size = (a * grow + border, b * grow + border)
                part.paint(scratch, (x * unit, y * unit), size, turn, CODES[tissue])
        x, y, radius = self.root
        part.paint(scratch, (x, y), (radius + 2.2, radius + 2.2), 0.0, CODES["atrial_wall"])
        part.paint(scratch, (x, y), (radius, radius), 0.0, CODES["aorta"])
        view[high] = scratch[high]


def _polar(
    plane: Plane, w: float, tilt: tuple[float, float], surfaces: Surfaces
) -> tuple[Floats, Floats, NDArray[np.intp]]:
    """Distance from the axis, position along it, and the entry of the raveled tables, of every point."""
    x, y = plane.x, plane.y
    angle = ((np.arctan2(y, x) / np.float32(2 * np.pi) + np.float32(0.5)) * ANGLES).astype(np.intp)
    depth = np.float32(w) + np.float32(tilt[0]) * x + np.float32(tilt[1]) * y
    entry = np.minimum(angle, ANGLES - 1) * surfaces.endo.shape[1] + surfaces.index(depth)
    return np.hypot(x, y), depth, entry


def draw_heart_scene(rng: np.random.Generator) -> HeartScene:
    """Draw a person: ventricles, atria and great vessels, and the chest around them."""
    ventricles = draw_ventricles(rng)
    radius = ventricles.radius
    leaflet = float(rng.uniform(0.45, 0.65)) * radius if rng.random() < 0.4 else 0.0
    support: Floats = ventricles.surfaces(0.0, 0.0, 0.0).outside[:, 0]
    chest = draw_chest(rng, support)

    def around(*values: float) -> tuple[float, ...]:
        """Vary places by millimeters, sizes by some percent."""
        x, y, a, b, turn = values
        size = rng.lognormal(0, 0.12, 2)
        return x + rng.normal(0, 3.5), y + rng.normal(0, 3.5), a * size[0], b * size[1], turn + rng.normal(0, 0.2)

    above = (
        ("right_atrium_blood", *around(-42.0, 17.0, 20.0, 23.0, 0.3)),
        ("left_atrium_blood", *around(8.0, 14.0, 26.0, 18.0, 0.25)),
        ("rv_blood", *around(-30.0, -31.0, 17.0, 12.0, -0.5)),
        ("vessel", *around(14.0, -28.0, 9.0, 14.0, 0.5)),
        ("vessel", *around(-50.0, -16.0, 9.0, 10.0, 0.0)),
    )
    return HeartScene(
        ventricles,
        chest,
        tuple(item if rng.random() < 0.9 else (item[0], item[1], item[2], 1.0, 1.0, 0.0) for item in above),  # type: ignore[misc]
        (-0.4 * radius + rng.normal(0, 3), -0.35 * radius + rng.normal(0, 3), float(rng.uniform(10.5, 15.5))),
        (0.12 * radius, 0.08 * radius, leaflet, 0.4 * radius, float(rng.normal(0.3, 0.4))),
        float(rng.uniform(8, 25)),
        float(rng.uniform(2.0, 6.0)),
        tuple(
            (rng.uniform(-1.1, 1.1), rng.normal(0, 0.4), rng.uniform(0.15, 0.6), rng.uniform(0.1, 0.9))
            for _ in range(int(rng.integers(0, 5)))
        ),
        _toward(float(rng.uniform(0, 0.4)), float(rng.normal(0.7, 0.4))),
        float(rng.uniform(0, 16)),
    )


def _toward(slope: float, angle: float) -> tuple[float, float]:
    return slope * float(np.cos(angle)), slope * float(np.sin(angle))
