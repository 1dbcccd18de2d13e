# SPDX-License-Identifier: Apache-2.0
"""A neck in axial slices: cord with a butterfly of gray matter, cerebrospinal fluid, bones, muscles, vessels, airway.

Frame in mm: ``u`` to the right of the picture (patient's left), ``v`` down (back), ``w`` up along the cord; the canal
is at 0. Sizes follow Sherman et al., AJNR 11:369, 1990 (cord, 11.4 to 14 mm wide and 7.4 to 8.8 mm deep in the neck).
Boundaries that raters draw are kept as signed distances (negative inside), so that each rater can shift them a
little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vmfseg.phantom.shapes import Floats, Tissues, Waves, ellipse, ellipse_depth, paint, stroke, window
from vmfseg.phantom.tissues import TISSUES

__all__ = ["Neck", "Rater", "draw_neck", "draw_raters"]

_CODE = {name: np.uint8(tissue.code) for name, tissue in TISSUES.items()}
_LEVELS = ("C1", "C2", "C3", "C4", "C5", "C6", "C7")
_LEVEL_MM = 16.0  # height of a vertebra with its disc


@dataclass(frozen=True)
class Neck:
    """One person's neck. ``top`` is the level of ``w = 0``, in vertebrae from the upper edge of C1."""

    size: tuple[float, float]
    gray: float
    horns: tuple[float, float, float]
    center: tuple[float, float]
    lean: tuple[float, float]
    canal: tuple[float, float]
    outline: tuple[float, float]
    fat: float
    top: float
    turn: float
    folds: Waves
    fibers: Waves
    edge: Waves

    def level(self, w: float) -> str:
        """Return the vertebral level at ``w``."""
        return _LEVELS[int(np.clip(self._along(w), 0, len(_LEVELS) - 1))]

    def axis(self, w: float) -> tuple[float, float]:
        """Return the middle of the cord at ``w``."""
        return self.center[0] + self.lean[0] * w, self.center[1] + self.lean[1] * w

    def cord_distance(self, u: Floats, v: Floats, w: float) -> Floats:
        """Return the signed distance in mm to the surface of the cord."""
        half = self._half(w)
        result: Floats = np.float32(0.12) * self.edge(u, v) - ellipse_depth(u, v, self.axis(w), half, self.turn)
        return result

    def gray_distance(self, u: Floats, v: Floats, w: float) -> Floats:
        """Return the signed distance in mm to the gray matter: commissure, front and back horns as tapered strokes."""
        half, at = self._half(w), self.axis(w)
        c, s = np.cos(self.turn), np.sin(self.turn)
        swell = 1 + 0.22 * np.exp(-((self._along(w) - 4.6) ** 2) / 1.6)  # the cervical enlargement feeds the arms
        x, y = self.gray * half[0], self.gray * half[1]
        front, back, spread = self.horns

        def place(a: float, b: float) -> tuple[float, float]:
            return at[0] + c * a * x - s * b * y, at[1] + s * a * x + c * b * y

        parts = [stroke(u, v, place(-0.2, 0.02), place(0.2, 0.02), (0.45, 0.45))]
        for side in (-1, 1):
            horn = (0.95 * front * swell, 0.8 * front * swell)
            parts.append(stroke(u, v, place(side * 0.27, -0.04), place(side * 0.4, -0.45), horn))
            parts.append(stroke(u, v, place(side * 0.26, 0.05), place(side * spread, 0.72), (0.62 * back, 0.34 * back)))
        result: Floats = np.minimum.reduce(parts) + np.float32(0.06) * self.edge(u, v)
        return result

    def tissue(self, u: Floats, v: Floats, w: float) -> Tissues:
        """Return the tissue of every point of the open grid ``u``, ``v`` at ``w``."""
        image = self._soft(u, v, w)
        self._bones(image, u, v, w)
        at = self.axis(w)
        sac = (self.canal[0], self.canal[1])
        paint(image, u, v, (0.4 * at[0], 0.4 * at[1]), (sac[0] + 1.8, sac[1] + 1.6), 0.0, _CODE["visceral_fat"])
        paint(image, u, v, (0.4 * at[0], 0.4 * at[1]), (sac[0] + 0.6, sac[1] + 0.6), 0.0, _CODE["ligament"])
        paint(image, u, v, (0.4 * at[0], 0.4 * at[1]), sac, 0.0, _CODE["csf"])
        half = self._half(w)
        for side in (-1, 1):
            for row in (-0.45, 0.5):
                root = (at[0] + side * (half[0] + 1.4), at[1] + row * half[1])
                paint(image, u, v, root, (0.9, 0.5), side * row, _CODE["nerve_root"], (_CODE["csf"],))
        near = self.canal_window(u, v)
        u, v, view = u[near[0]], v[:, near[1]], image[near]
        cord = self.cord_distance(u, v, w) < 0
        view[cord] = _CODE["white_matter"]
        fissure = (at[0], at[1] - half[1]), (at[0], at[1] - 0.35 * half[1])
        view[cord & (stroke(u, v, *fissure, (0.32, 0.1)) < 0)] = _CODE["csf"]
        view[cord & (self.gray_distance(u, v, w) < 0)] = _CODE["gray_matter"]
        return image

    def canal_window(self, u: Floats, v: Floats) -> tuple[slice, slice]:
        """Return the slices of the grid that hold the canal; the cord lies inside it at every level."""
        return window(u, v, (0.0, 0.0), (self.canal[0] + 4, self.canal[1] + 4))

    def _along(self, w: float) -> float:
        return self.top - w / _LEVEL_MM

    def _half(self, w: float) -> tuple[float, float]:
        swell = 1 + 0.1 * np.exp(-((self._along(w) - 4.6) ** 2) / 1.6)
        return self.size[0] * swell, self.size[1] * (1 + 0.02 * np.sin(0.1 * w))

    def _soft(self, u: Floats, v: Floats, w: float) -> Tissues:
        folds, fibers = self.folds(u, v), self.fibers(u, v)
        depth = ellipse_depth(u, v, (0.0, 2.0), self.outline) + 2 * folds
        image = np.full(depth.shape, _CODE["air"])
        image[depth > 0] = _CODE["muscle"]
        image[(depth > 1.5) & (depth < self.fat * (1 + 0.3 * folds))] = _CODE["subcutaneous_fat"]
        inside = depth > self.fat
        image[inside & (np.abs(fibers) < 0.1)] = _CODE["visceral_fat"]
        ring = ellipse(u, v, (0.0, 18.0), (30.0, 34.0)) + np.float32(0.12) * folds
        image[inside & (np.abs(ring - 1) < 0.045) & (v > 4)] = _CODE["visceral_fat"]
        paint(image, u, v, (0.0, -32.0), (17.0, 8.0), 0.0, _CODE["visceral_fat"])
        for side in (-1, 1):
            paint(image, u, v, (side * 7.0, -30.5), (6.0, 3.6), side * 0.3, _CODE["muscle"])
            paint(image, u, v, (side * 27.0, -28.0), (11.0, 9.0), 0.0, _CODE["visceral_fat"])
            paint(image, u, v, (side * 25.0, -31.0), (3.4, 3.4), 0.0, _CODE["aorta"])
            paint(image, u, v, (side * 31.5, -27.0), (5.5 - side, 4.0), side * 0.4, _CODE["vessel"])
            paint(image, u, v, (side * 38.0, -20.0), (5.0, 13.0), side * 0.5, _CODE["muscle"])
        paint(image, u, v, (0.0, -45.0), (12.0, 10.0), 0.0, _CODE["cartilage"])
        paint(image, u, v, (0.0, -45.0), (9.5, 7.5), 0.0, _CODE["air"])
        paint(image, u, v, (-2.0, -35.0), (6.5, 2.6), 0.0, _CODE["muscle"])
        return image

    def _bones(self, image: Tissues, u: Floats, v: Floats, w: float) -> None:
        along = self._along(w)
        disc = along % 1.0 > 0.72
        front = -self.canal[1] - 9.5
        shell, core = _CODE["cortical_bone"], _CODE["marrow"]
        paint(image, u, v, (0, front), (12.5, 8.5), 0.0, _CODE["ligament"])
        paint(image, u, v, (0, front), (12.0, 8.0), 0.0, _CODE["cartilage"] if disc else shell)
        if not disc:
            paint(image, u, v, (0, front), (10.9, 6.9), 0.0, core)
        wide, back = self.canal[0] + 7.5, self.canal[1] + 3.5
        for side in (-1, 1):
            paint(image, u, v, (side * wide, -1.0), (6.8, 6.0), side * 0.3, shell)
            paint(image, u, v, (side * wide, -1.0), (5.6, 4.8), side * 0.3, core if not disc else _CODE["cartilage"])
            paint(image, u, v, (side * (wide - 1), -10.5), (4.6, 4.2), 0.0, shell)
            paint(image, u, v, (side * (wide - 1), -10.5), (2.4, 2.4), 0.0, _CODE["aorta"])
            if not disc:
                self._bar(image, u, v, (side * (wide - 3), 3.5), (0.0, back + 2.5), 3.2)
        if not disc:
            self._bar(image, u, v, (0.0, back + 2.5), (0.0, back + 12.0), 3.0)
            for side in (-1, 1):
                self._bar(image, u, v, (0.0, back + 12.0), (side * 4.0, back + 17.0), 2.6)
        else:
            paint(image, u, v, (0.0, back + 3.0), (8.0, 2.2), 0.0, _CODE["ligament"])

    @staticmethod
    def _bar(
        image: Tissues, u: Floats, v: Floats, start: tuple[float, float], end: tuple[float, float], thick: float
    ) -> None:
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        near = window(u, v, middle, (abs(end[0] - start[0]) / 2 + thick, abs(end[1] - start[1]) / 2 + thick))
        distance = stroke(u[near[0]], v[:, near[1]], start, end, (thick, 0.75 * thick))
        image[near][distance < 0] = _CODE["cortical_bone"]
        image[near][distance < -1.1] = _CODE["marrow"]


@dataclass(frozen=True)
class Rater:
    """How one rater draws: habits (mm outwards) for gray matter and cord, and an unsteady hand (mm, waves)."""

    gray_habit: float
    cord_habit: float
    hand: float
    gray_waves: Waves
    cord_waves: Waves

    def mask(self, gray: Floats, cord: Floats, u: Floats, v: Floats) -> NDArray[np.uint8]:
        """Return this rater's mask (1 gray matter, 2 white matter) from the signed distances at voxel centers."""
        hand = np.float32(self.hand)
        inside = cord < np.float32(self.cord_habit) + hand * self.cord_waves(u, v)
        horn = inside & (gray < np.float32(self.gray_habit) + hand * self.gray_waves(u, v))
        return np.where(horn, 1, np.where(inside, 2, 0)).astype(np.uint8)


def draw_neck(rng: np.random.Generator) -> Neck:
    """Draw a neck: sizes, shape of the butterfly, position and level."""
    size = (float(rng.uniform(6.1, 7.2)), float(rng.uniform(3.7, 4.5)))
    return Neck(
        size=size,
        gray=float(rng.uniform(0.86, 0.98)),
        horns=(float(rng.uniform(0.85, 1.1)), float(rng.uniform(0.9, 1.2)), float(rng.uniform(0.5, 0.62))),
        center=(float(rng.normal(0, 0.8)), float(rng.normal(-0.3, 0.6))),
        lean=(float(rng.normal(0, 0.02)), float(rng.normal(0, 0.03))),
        canal=(size[0] + float(rng.uniform(3.6, 5.2)), size[1] + float(rng.uniform(2.2, 3.4))),
        outline=(float(rng.uniform(58, 70)), float(rng.uniform(56, 66))),
        fat=float(rng.uniform(4, 11)),
        top=float(rng.uniform(2.2, 3.6)),
        turn=float(rng.normal(0, 0.05)),
        folds=Waves.draw(rng, 25.0),
        fibers=Waves.draw(rng, 13.0, 16),
        edge=Waves.draw(rng, 3.0),
    )


def draw_raters(rng: np.random.Generator) -> tuple[Rater, Rater, Rater, Rater]:
    """Draw the four raters of a scan; habits belong to the person, the hand to the moment."""
    habits = ((-0.08, 0.05), (0.1, -0.08), (0.02, 0.1), (-0.02, -0.04))
    drawn = [
        Rater(
            gray + float(rng.normal(0, 0.03)),
            cord + float(rng.normal(0, 0.03)),
            float(rng.uniform(0.1, 0.17)),
            Waves.draw(rng, 2.0),
            Waves.draw(rng, 3.0),
        )
        for gray, cord in habits
    ]
    return drawn[0], drawn[1], drawn[2], drawn[3]
