# SPDX-License-Identifier: Apache-2.0
"""What surrounds the heart in a short-axis plane, fitted to the heart it holds, for any angle of the plane.

Frame of :mod:`vmfseg.phantom.ventricles`. The front wall of the chest comes nearer towards the apex and lies to the
upper left of the picture, more to the left or more to the top as the plane is turned; the diaphragm lies below, with
the liver on the left, stomach, spleen and bowel on the right; lung, descending aorta and spine are behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vmfseg.phantom.plane import Plane
from vmfseg.phantom.relaxation import CODES, COUNT
from vmfseg.phantom.shapes import Floats, Tissues, Waves

__all__ = ["Chest", "draw_chest", "mark"]

Point = tuple[float, float]


def mark(*names: str) -> NDArray[np.bool_]:
    """Return a table that is true for the codes of these tissues."""
    table = np.zeros(COUNT, bool)
    table[[CODES[name] for name in names]] = True
    return table


_LUNG = mark("lung")
_AIRY = mark("lung", "vessel")
_SOFT = mark("lung", "visceral_fat")
_LIVER = mark("liver")
_BACK = mark("lung", "visceral_fat", "vessel", "marrow", "cortical_bone", "cartilage")


@dataclass(frozen=True)
class Chest:
    """One person's chest. Lengths in mm, angles in radians; see :func:`draw_chest` for the ranges.

    ``front`` and ``floor`` are (angle, distance, change per mm towards the apex, radius of curvature); with ``close``
    of 1 they touch the heart in every plane instead. ``fill`` is the depth and half width of fat behind the chest wall.
    """

    front: tuple[float, float, float, float]
    floor: tuple[float, float, float, float]
    fat: float
    breast: tuple[float, float, float]
    muscle: float
    ribs: tuple[tuple[float, float, float, float], ...]
    liver_end: float
    stomach: tuple[float, float, float, float, float]
    content: str
    spleen: tuple[float, float, float]
    aorta: tuple[float, float, float]
    spine: tuple[float, float, float]
    pads: tuple[tuple[float, float, float], ...]
    close: float
    fill: tuple[float, float]
    lung_vessels: NDArray[np.float64]
    liver_vessels: NDArray[np.float64]
    streaks: float
    pleura: float
    arm: float
    coarse: Waves
    middle: Waves
    twigs: tuple[Waves, float]

    def tissue(self, plane: Plane, w: float, support: Floats) -> Tissues:
        """Return the tissue of every point of ``plane`` at ``w``, without the heart.

        Args:
            plane: the points, around the heart's axis.
            w: position of the plane.
            support: how far the heart reaches from its axis in every direction, a table over the circle.
        """
        coarse, middle = self.coarse(plane.u, plane.v), self.middle(plane.u, plane.v)
        wall, along = self._front(plane, w, support)
        wall = wall + np.float32(1.5) * coarse
        below = self._below(plane, w, support) + np.float32(1.5) * coarse
        image = np.full(plane.shape, CODES["lung"])
        image[self.twigs[0](plane.u, plane.v) > self.twigs[1] - 0.4 * coarse] = CODES["vessel"]
        deep, wide = self.fill
        beside = np.clip(1 - (along / np.float32(wide)) ** 2, 0, 1)
        image[wall < 2 + middle + np.float32(deep) * beside * (1 + np.float32(0.25) * coarse)] = CODES["visceral_fat"]
        self._pads(image, plane, support, coarse, middle)
        self._vessels(image, plane, w, self.lung_vessels, _AIRY)
        if self.pleura > 0:
            image[(below > -self.pleura - 4 * middle) & _LUNG[image] & (plane.x > 25)] = CODES["effusion"]
        self._behind(image, plane, w)
        self._abdomen(image, plane, w, below, coarse, middle)
        self._wall(image, plane, w, wall, along, coarse, middle)
        return image

    def _front(self, plane: Plane, w: float, support: Floats) -> tuple[Floats, Floats]:
        """Depth behind the inner surface of the chest wall, and the distance along that surface."""
        angle, gap, change, radius = self.front
        n, t = (np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))
        reach = self._reach(support, angle, gap, change * w)
        along = np.float32(t[0]) * plane.x + np.float32(t[1]) * plane.y
        depth = np.float32(reach) - along**2 / np.float32(2 * radius)
        return depth - np.float32(n[0]) * plane.x - np.float32(n[1]) * plane.y, along

    def _reach(self, support: Floats, angle: float, gap: float, less: float) -> float:
        """Distance of chest wall or diaphragm: close to the heart in every plane, or on its own surface."""
        touching = _toward(support, angle) + 1.2
        return max(touching, self.close * touching + (1 - self.close) * (gap - less))

    def _below(self, plane: Plane, w: float, support: Floats) -> Floats:
        angle, gap, change, radius = self.floor
        n, t = (np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))
        reach = self._reach(support, angle, gap, change * w)
        along = np.float32(t[0]) * plane.x + np.float32(t[1]) * plane.y - np.float32(10)
        result: Floats = np.float32(n[0]) * plane.x + np.float32(n[1]) * plane.y - np.float32(reach)
        result -= np.maximum(np.abs(along) - 15, 0) ** 2 / np.float32(2 * radius)
        return result

    def _pads(self, image: Tissues, plane: Plane, support: Floats, coarse: Floats, middle: Floats) -> None:
        """Fat beside the heart: bumps on its outline."""
        phi = ((np.arange(support.size) + 0.5) * 2 * np.pi / support.size - np.pi).astype(np.float32)
        outline = np.array(support, dtype=np.float32)
        for angle, thick, spread in self.pads:
            away = np.mod(phi - np.float32(angle) + np.float32(np.pi), np.float32(2 * np.pi)) - np.float32(np.pi)
            outline += np.float32(thick) * np.exp(-((away / np.float32(spread)) ** 2))
        near = plane.near(0.0, 0.0, float(outline.max()) + 8)
        part = plane.part(near)
        if 0 in part.shape:
            return
        turn = (np.arctan2(part.y, part.x) / np.float32(2 * np.pi) + np.float32(0.5)) * support.size
        edge = outline[np.minimum(turn.astype(np.intp), support.size - 1)]
        inside = np.hypot(part.x, part.y) < edge * (1 + np.float32(0.04) * coarse[near]) + middle[near]
        image[near][inside] = CODES["visceral_fat"]

    def _vessels(
        self, image: Tissues, plane: Plane, w: float, table: NDArray[np.float64], over: NDArray[np.bool_]
    ) -> None:
        near = table[np.abs(table[:, 3] - w) < table[:, 4]]
        for x, y, size, _, reach, turn in near:
            plane.paint(image, (x, y), (size * (1 + 0.08 * reach), size), turn, CODES["vessel"], over)

    def _behind(self, image: Tissues, plane: Plane, w: float) -> None:
        x, y, start = self.spine
        if w < start:
            share = min(1.0, (start - w) / 25)
            half = (20 * share**0.5, 80 * share)
            plane.paint(image, (x, y), half, 0.15, CODES["cortical_bone"], _SOFT)
            plane.paint(image, (x, y), (half[0] - 1.4, max(half[1] - 1.4, 1.5)), 0.15, CODES["marrow"])
            for disc in range(-3, 4):
                plane.paint(image, (x, y + 29 * disc), (half[0], 3.2), 0.15, CODES["cartilage"], mark("marrow"))
        x, y, radius = self.aorta
        at = (x - 0.25 * w, y + 0.7 * w)
        plane.paint(image, at, (radius + 3.5, 1.3 * radius + 4), 0.2, CODES["visceral_fat"], _BACK)
        plane.paint(image, at, (radius + 0.9, 1.25 * radius + 0.9), 0.2, CODES["atrial_wall"])
        plane.paint(image, at, (radius, 1.25 * radius), 0.2, CODES["aorta"])
        plane.paint(image, (at[0] - radius - 7, at[1] - 9), (4.5, 7.0), 0.3, CODES["muscle"], _SOFT)

    def _abdomen(self, image: Tissues, plane: Plane, w: float, below: Floats, coarse: Floats, middle: Floats) -> None:
        inside = below > 0
        if not inside.any():
            return
        image[inside] = CODES["muscle"]
        belly = below > 2.5 + 0.8 * middle
        image[belly] = CODES["visceral_fat"]
        x, y, a, b, gas = self.stomach
        at = (x - 0.15 * w, y + _toward_floor(self.floor))
        free = mark("visceral_fat")
        if self.spleen[2] > 0:
            spot = (at[0] + a + self.spleen[0], at[1] + self.spleen[1])
            self._over(image, plane, belly, spot, (30.0, 40.0), -0.3, "spleen")
        self._over(image, plane, belly, at, (a, b), 0.3, "muscle", middle)
        wall = 2.5 if self.content != "bowel" else 3.5
        self._over(image, plane, belly, at, (a - wall, b - wall), 0.3, self.content, middle)
        if gas > 0:
            plane.paint(image, (at[0], at[1] - 0.4 * b), (gas * a, 0.5 * b), 0.3, CODES["air"], mark(self.content))
        for k in range(3):
            loop = (at[0] - 20 + 28 * k, at[1] + b + 14 + 8 * (k % 2))
            plane.paint(image, loop, (15, 12), 0.5 * k, CODES["muscle"], free)
            plane.paint(image, loop, (12, 9), 0.5 * k, CODES["bowel" if k % 2 else self.content], mark("muscle"))
        edge = np.float32(self.liver_end - 0.25 * w) + np.float32(6) * coarse - np.float32(0.3) * (below - 10)
        image[belly & (plane.x < edge) & (below > 3.5)] = CODES["liver"]
        self._vessels(image, plane, w, self.liver_vessels, _LIVER)

    @staticmethod
    def _over(
        image: Tissues,
        plane: Plane,
        where: NDArray[np.bool_],
        at: Point,
        half: Point,
        turn: float,
        name: str,
        noise: Floats | None = None,
    ) -> None:
        near = plane.near(*at, max(half) * 1.2)
        part = plane.part(near)
        if 0 in part.shape:
            return
        c, s = np.cos(turn), np.sin(turn)
        dx, dy = part.x - np.float32(at[0]), part.y - np.float32(at[1])
        radius = ((c * dx + s * dy) / half[0]) ** 2 + ((c * dy - s * dx) / half[1]) ** 2
        inside = radius < (1.0 if noise is None else 1.0 + 0.15 * noise[near])
        image[near][where[near] & inside] = CODES[name]

    def _wall(
        self, image: Tissues, plane: Plane, w: float, wall: Floats, along: Floats, coarse: Floats, middle: Floats
    ) -> None:
        outside = wall < 0
        if not outside.any():
            return
        image[outside] = CODES["muscle"]
        image[outside & (np.abs(middle) < self.streaks)] = CODES["visceral_fat"]
        depth = wall + np.float32(0.5 * self.muscle)
        image[outside & (np.abs(depth + 2 * coarse - 1.5) < 0.8 * middle)] = CODES["visceral_fat"]
        for place, lean, size, stretch in self.ribs:
            rib = along - np.float32(place + lean * w)
            radius = (rib / np.float32(stretch * size)) ** 2 + ((depth + 1.5 * coarse) / np.float32(size)) ** 2
            image[outside & (radius < 1)] = CODES["cortical_bone"]
            image[outside & (radius < 0.6)] = CODES["marrow"]
        swell = self.breast[0] * np.exp(-(((along - np.float32(self.breast[1])) / np.float32(45)) ** 2))
        layer = np.float32(self.muscle) + np.float32(0.8) * middle
        image[wall < -layer] = CODES["subcutaneous_fat"]
        if self.breast[0] > 8:
            gland = (wall < -layer - 6) & (wall > -layer - swell) & (middle + 0.5 * coarse > self.breast[2])
            image[gland] = CODES["gland"]
        skin = -layer - np.float32(self.fat) * (1 + np.float32(0.15) * coarse) - swell
        image[wall < skin] = CODES["muscle"]
        image[wall < skin - 1.8] = CODES["air"]
        if self.arm > 0:
            limb = (np.abs(along - np.float32(self.arm)) / 38) ** 2 + ((wall - skin + 45) / 38) ** 2
            image[limb < 1] = CODES["subcutaneous_fat"]
            image[limb < 0.7] = CODES["muscle"]


def _toward(support: Floats, angle: float) -> float:
    """How far a star-shaped outline reaches in one direction."""
    phi = (np.arange(support.size) + 0.5) * 2 * np.pi / support.size - np.pi
    return float((support * np.cos(phi - angle)).max())


def _toward_floor(floor: tuple[float, float, float, float]) -> float:
    return floor[1]


def draw_chest(rng: np.random.Generator, support: Floats) -> Chest:
    """Draw a chest around a heart whose middle plane reaches ``support`` mm from its axis."""
    uniform = rng.uniform
    front = float(np.pi + uniform(0.0, 1.35))
    floor = float(np.pi / 2 + rng.normal(0.0, 0.22))
    reach = _toward(support, front) + float(rng.gamma(1.3, 4.5))
    low = _toward(support, floor) + float(rng.gamma(1.0, 3.0))
    fat = float(np.clip(rng.gamma(3.0, 4.5), 3, 45))
    right = _toward(support, 0.0)
    pads = []
    for _ in range(int(rng.integers(1, 6))):  # mostly towards the front and the floor
        angle = float(rng.choice([front, front, floor + 0.9, front + 0.7, floor - 0.6])) + float(rng.normal(0, 0.35))
        pads.append((angle, float(rng.gamma(1.6, 5.0)), float(uniform(0.2, 0.7))))
    return Chest(
        front=(front, reach, float(uniform(0.1, 1.0)), float(uniform(90, 300))),
        floor=(floor, low, float(uniform(-0.1, 0.6)), float(uniform(70, 260))),
        fat=fat,
        breast=(float(uniform(10, 45)) if rng.random() < 0.3 else 0.0, float(rng.normal(10, 30)), uniform(-0.5, 0.8)),
        muscle=float(uniform(8, 17)),
        ribs=tuple(
            (place + rng.normal(0, 7), rng.normal(0, 0.5), uniform(2.5, 4.8), uniform(1.3, 4.5))
            for place in np.arange(uniform(-130, -100), 130, uniform(30, 48))
            if rng.random() < 0.5
        ),
        liver_end=float(rng.normal(12, 28)),
        stomach=(uniform(20, 55), uniform(12, 34), uniform(18, 36), uniform(12, 26), uniform(-0.6, 0.9)),
        content=str(rng.choice(["stomach", "bowel", "effusion", "visceral_fat"], p=[0.4, 0.3, 0.15, 0.15])),
        spleen=(float(uniform(10, 28)), float(uniform(-4, 16)), float(rng.random() < 0.7)),
        aorta=(right + float(uniform(14, 60)), float(uniform(-5, 45)), float(uniform(8.5, 13.5))),
        spine=(right + float(uniform(38, 70)), float(uniform(-25, 25)), float(uniform(-45, 15))),
        pads=tuple(pads),
        close=float(np.clip(rng.normal(0.75, 0.4), 0, 1)),
        fill=(float(rng.gamma(1.5, 8.0)), float(uniform(35, 90))),
        lung_vessels=_vessels(rng, int(rng.integers(60, 220)), (right + 25, -25), (42, 48), (1.6, 0.7)),
        liver_vessels=_vessels(rng, 22, (-25, low + 32), (38, 22), (2.4, 0.7)),
        streaks=float(uniform(0.0, 0.18)),
        pleura=float(uniform(4, 25)) if rng.random() < 0.06 else 0.0,
        arm=float(rng.choice([-1, 1]) * uniform(60, 110)) if rng.random() < 0.05 else 0.0,
        coarse=Waves.draw(rng, 30.0),
        middle=Waves.draw(rng, 10.0),
        twigs=(Waves.draw(rng, 2.6, 32), float(uniform(1.9, 3.2))),
    )


def _vessels(rng: np.random.Generator, count: int, at: Point, spread: Point, size: Point) -> NDArray[np.float64]:
    columns = (
        rng.normal(at[0], spread[0], count),
        rng.normal(at[1], spread[1], count),
        rng.gamma(size[0], size[1], count) + 0.5,
        rng.uniform(-70, 70, count),
        rng.uniform(4, 18, count),
        rng.uniform(0, np.pi, count),
    )
    return np.stack(columns, axis=1)
