# SPDX-License-Identifier: Apache-2.0
"""A neck in axial planes at any level from C1 to C7: cord, gray matter, cerebrospinal fluid, bones, muscles, vessels.

Frame in mm: ``x`` to the patient's left, ``y`` towards the back, the middle of the dural sac at 0. ``level`` counts
vertebrae from the upper edge of C1, so that 3.5 is the middle of C4.

===============  ======================================================================================================
quantity         source
===============  ======================================================================================================
cord             width x depth 12.4 x 8.8 mm at C2, 14 x 8.7 at C4, 11.4 x 7.4 at C7: Sherman et al., AJNR 11:369, 1990;
                 area 78 +- 9 and 74 +- 9 mm2 at C5: Kato et al., Eur Spine J 21:1499, 2012 (so scaled by about 0.94)
dural sac        the cord fills 58 +- 7 % of it at C5: Kato et al., 2012
gray matter      about 15 to 20 % of the cord, more in the cervical enlargement; unverified
bones, muscles   unverified
===============  ======================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vmfseg.phantom.chest import mark
from vmfseg.phantom.plane import Plane
from vmfseg.phantom.relaxation import CODES
from vmfseg.phantom.shapes import Floats, Tissues, Waves, stroke

__all__ = ["NeckScene", "draw_neck_scene"]

_LEVELS = np.arange(1.0, 8.0) - 0.5
_WIDTH = np.array([11.8, 12.4, 13.2, 14.0, 13.9, 13.0, 11.4]) / 2
_DEPTH = np.array([8.9, 8.8, 8.7, 8.7, 8.3, 7.8, 7.4]) / 2
_ENLARGED = np.array([0.0, 0.05, 0.35, 0.8, 1.0, 0.9, 0.5])  # how much of the cervical enlargement
_FILL = np.array([0.36, 0.42, 0.52, 0.58, 0.58, 0.57, 0.52])  # share of the sac that the cord takes
_CSF = mark("csf")
_SOFT = mark("muscle", "visceral_fat")


@dataclass(frozen=True)
class NeckScene:
    """One person's neck. Factors around 1 scale the curves of the module; lengths in mm, angles in radians.

    Args:
        size: of the cord, width and depth.
        sac: room in the dural sac, its flatness, and how triangular it is at lower levels.
        offset: of the cord in the sac, as shares of the free room (x, y).
        horns: width of the front horns, of the back horns, reach of the back horns, height of the commissure.
        spread: how far the back horns splay, above and in the enlargement.
        uneven: differences between left and right.
        septa: thickness of the dark lines between the columns of white matter.
        lean: shift of the cord per mm along the neck.
        body: half width and half depth of a vertebral body.
        places: further distances of bones, vessels and muscle layers.
        roots: nerve roots in the fluid: angle, reach, thickness.
        rim: thickness of dura and ligaments around the sac.
        epidural: share of bright veins and fat beside the sac.
        outline: of the cord, small waves.
        fibers: texture of muscles, fine and coarse.
        streaks: how many muscle septa are seen.
    """

    size: tuple[float, float]
    sac: tuple[float, float, float]
    offset: tuple[float, float]
    horns: tuple[float, float, float, float]
    spread: tuple[float, float]
    uneven: NDArray[np.float64]
    septa: float
    lean: tuple[float, float]
    body: tuple[float, float]
    places: NDArray[np.float64]
    roots: NDArray[np.float64]
    rim: float
    epidural: float
    outline: Waves
    fibers: tuple[Waves, Waves]
    streaks: float

    def half(self, level: float) -> tuple[float, float]:
        """Return half the width and half the depth of the cord."""
        return (
            self.size[0] * float(np.interp(level, _LEVELS, _WIDTH)),
            self.size[1] * float(np.interp(level, _LEVELS, _DEPTH)),
        )

    def sac_half(self, level: float) -> tuple[float, float]:
        """Return half the width and half the depth of the dural sac."""
        a, b = self.half(level)
        area = a * b / (float(np.interp(level, _LEVELS, _FILL)) * self.sac[0])
        flat = self.sac[1] * (1.0 + 0.32 * float(np.interp(level, _LEVELS, _ENLARGED)))
        depth = max(np.sqrt(area / flat), b + 0.7)
        return max(area / depth, a + 1.2), depth

    def center(self, level: float, along: float = 0.0) -> tuple[float, float]:
        """Return the middle of the cord, ``along`` mm above the plane."""
        a, b = self.half(level)
        wide, deep = self.sac_half(level)
        x = self.offset[0] * (wide - a) + self.lean[0] * along
        return x, self.offset[1] * (deep - b) + self.lean[1] * along

    def cord_distance(self, plane: Plane, level: float, along: float = 0.0) -> Floats:
        """Return the signed distance in mm to the surface of the cord, negative inside."""
        (a, b), (x, y) = self.half(level), self.center(level, along)
        dx, dy = (plane.x - np.float32(x)) / np.float32(a), (plane.y - np.float32(y)) / np.float32(b)
        power = np.float32(2.25)
        radius = (np.abs(dx) ** power + np.abs(dy) ** power) ** (1 / power)
        radius += np.float32(0.03) * np.exp(-(dx**2) / 0.05) * (dy < 0)  # the front fissure dents the outline
        result: Floats = (radius - 1) * np.float32(min(a, b)) + np.float32(0.1) * self.outline(plane.u, plane.v)
        return result

    def gray_distance(self, plane: Plane, level: float, along: float = 0.0) -> Floats:
        """Return the signed distance in mm to the gray matter: commissure, front and back horns as tapered strokes."""
        (a, b), (x, y) = self.half(level), self.center(level, along)
        enlarged = float(np.interp(level, _LEVELS, _ENLARGED))
        front, back, reach, height = self.horns
        top = (1 - enlarged) * self.spread[0] + enlarged * self.spread[1]
        parts = []

        def at(dx: float, dy: float) -> tuple[float, float]:
            return plane.place(x + dx * a, y + dy * b)

        bar = 0.20 + 0.06 * enlarged
        parts.append(stroke(plane.u, plane.v, at(-bar, height), at(bar, height), (0.42, 0.42)))
        for side, k in ((-1.0, 0), (1.0, 4)):
            e = self.uneven[k : k + 4]
            root = at(side * bar, height)
            tip = at(side * (0.24 + 0.13 * enlarged) * e[0], (height - 0.36) * e[1])
            thick = (0.55 * front, (0.55 + 0.35 * enlarged) * front)
            parts.append(stroke(plane.u, plane.v, root, tip, thick))
            bend = at(side * (bar + 0.06) * e[2], height + 0.28)
            end = at(side * top * e[2], reach * e[3])
            parts.append(stroke(plane.u, plane.v, root, bend, (0.5 * back, 0.45 * back)))
            parts.append(stroke(plane.u, plane.v, bend, end, (0.45 * back, 0.36 * back)))
        result: Floats = np.minimum.reduce(parts) + np.float32(0.05) * self.outline(plane.u, plane.v)
        return result

    def surroundings(self, plane: Plane, level: float) -> Tissues:
        """Return muscles, vessels and bones at every point of ``plane``."""
        image = self._muscles(plane)
        self._bones(image, plane, level)
        return image

    def tissue(self, plane: Plane, level: float, along: float, ground: Tissues) -> Tissues:
        """Paint sac and cord over the surroundings ``ground``; the plane lies ``along`` mm above the slice's middle."""
        image = ground.copy()
        self._sac(image, plane, level)
        reach = max(self.sac_half(level)) + 2
        near = plane.near(0.0, 0.0, reach)
        part, view = plane.part(near), image[near]
        if 0 in part.shape:
            return image
        cord = self.cord_distance(part, level, along) < 0
        view[cord] = CODES["white_matter"]
        b, (x, y) = self.half(level)[1], self.center(level, along)
        for start, end, thick in (((0.0, -1.05), (0.0, -0.45), 0.22), ((0.0, 0.3), (0.0, 0.95), 0.1)):
            line = part.place(x + start[0], y + start[1] * b), part.place(x + end[0], y + end[1] * b)
            thin = (thick * self.septa, 0.6 * thick * self.septa)
            view[cord & (stroke(part.u, part.v, *line, thin) < 0)] = CODES["csf" if thick > 0.15 else "ligament"]
        view[cord & (self.gray_distance(part, level, along) < 0)] = CODES["gray_matter"]
        return image

    def _muscles(self, plane: Plane) -> Tissues:
        fine, coarse = self.fibers[0](plane.u, plane.v), self.fibers[1](plane.u, plane.v)
        image = np.full(plane.shape, CODES["muscle"])
        p = self.places
        lines = np.sin((np.abs(plane.x) * np.float32(0.55) + plane.y) * np.float32(6.3 / p[9]) + 0.9 * coarse)
        image[np.abs(lines + 0.12 * fine) < self.streaks] = CODES["visceral_fat"]
        image[np.abs(lines - 0.75) < 0.3 * self.streaks] = CODES["ligament"]
        image[fine > 2.1 - 0.3 * coarse] = CODES["vessel"]
        front = plane.y < np.float32(-p[0])
        image[front & (fine > 0.6)] = CODES["visceral_fat"]
        for side, k in ((-1.0, 0), (1.0, 1)):
            plane.paint(image, (side * p[1], -p[0] - 2), (p[2] + k, p[2]), 0.3, CODES["aorta"])
            plane.paint(image, (side * (p[1] + 7), -p[0] + 4), (p[2] + 2.5 - k, p[2] + 0.5), 0.6, CODES["vessel"])
            plane.paint(image, (side * (p[3] + 4 * k), p[4]), (1.7, 1.3), 0.0, CODES["vessel"])
        plane.paint(image, (0.0, -p[0] - 16), (13.0, 9.5), 0.0, CODES["cartilage"])
        plane.paint(image, (0.0, -p[0] - 16), (10.5, 7.5), 0.0, CODES["air"])
        return image

    def _bones(self, image: Tissues, plane: Plane, level: float) -> None:
        wide, deep = self.sac_half(level)
        p = self.places
        shell, core = CODES["cortical_bone"], CODES["marrow"]
        disc = (level % 1.0) > 0.72 and level > 1.8
        a, b = self.body
        front = -deep - self.rim - 0.6 - b
        if level < 1.6:  # dens between the masses of the atlas
            plane.paint(image, (0.0, front + 2), (5.5, 5.5), 0.0, shell)
            plane.paint(image, (0.0, front + 2), (4.3, 4.3), 0.0, core)
            for side in (-1.0, 1.0):
                plane.paint(image, (side * (wide + 7.5), -5.0), (7.5, 9.0), side * 0.4, shell)
                plane.paint(image, (side * (wide + 7.5), -5.0), (6.0, 7.5), side * 0.4, core)
        else:
            plane.paint(image, (0.0, front), (a + 0.6, b + 0.6), 0.0, CODES["ligament"])
            plane.paint(image, (0.0, front), (a, b), 0.0, CODES["cartilage"] if disc else shell)
            if not disc:
                plane.paint(image, (0.0, front), (a - 1.0, b - 1.0), 0.0, core)
        for side in (-1.0, 1.0):
            if disc:  # foramen: root and veins leave the canal
                line = plane.place(side * (wide - 1), -1.0), plane.place(side * (wide + 13), -4.0)
                image[stroke(plane.u, plane.v, *line, (2.6, 3.2)) < 0] = CODES["visceral_fat"]
                image[stroke(plane.u, plane.v, *line, (1.2, 2.2)) < 0] = CODES["nerve_root"]
            if not disc and level > 1.6:  # pedicle
                self._bone(image, plane, (side * a, front + 0.6 * b), (side * (wide + 6.0), 1.0), p[5] - 1.0, False)
            self._bone(image, plane, (side * (wide + 4.5), 2.5), (side * (wide + 10.0), 0.0), p[5], disc)
            self._bone(image, plane, (side * (wide + 3.0), 0.4 * deep), (side * 1.5, deep + p[6] + 2.5), p[7], disc)
            plane.paint(image, (side * (wide + p[8]), -6.5), (2.9, 2.8), 0.0, shell)
            plane.paint(image, (side * (wide + p[8]), -6.5), (2.3, 2.2), 0.0, CODES["aorta"])
        self._bone(image, plane, (0.0, deep + p[6] + 2.0), (0.0, deep + p[6] + 12.0), p[10], disc)
        line = plane.place(0.0, deep + p[6] + 8.0), plane.place(0.0, 60.0)
        image[stroke(plane.u, plane.v, *line, (0.5 * p[10], 0.3 * p[10])) < 0] = CODES["ligament"]

    @staticmethod
    def _bone(
        image: Tissues, plane: Plane, start: tuple[float, float], end: tuple[float, float], thick: float, soft: bool
    ) -> None:
        line = plane.place(*start), plane.place(*end)
        distance = stroke(plane.u, plane.v, *line, (thick, 0.8 * thick))
        image[distance < 0] = CODES["ligament" if soft else "cortical_bone"]
        if not soft:
            image[distance < -1.0] = CODES["marrow"]

    def _sac(self, image: Tissues, plane: Plane, level: float) -> None:
        wide, deep = self.sac_half(level)
        reach = max(wide, deep) + self.rim + 5
        near = plane.near(0.0, 0.0, reach)
        part, view = plane.part(near), image[near]
        if 0 in part.shape:
            return
        angle = np.arctan2(part.y, part.x)
        edge = self.sac[2] * float(np.interp(level, _LEVELS, _ENLARGED))
        shape = 1 + np.float32(edge) * np.cos(3 * (angle - np.float32(np.pi / 2)))
        radius = np.hypot(part.x / np.float32(wide), part.y / np.float32(deep)) / shape
        away = (radius - 1) * np.float32(deep)
        view[away < self.rim + 0.8] = CODES["cortical_bone"]
        beside = (away < self.rim + 1.5 * np.abs(np.cos(angle)) * self.epidural) & (part.y < 0.3 * deep)
        view[beside] = CODES["visceral_fat"]
        view[away < self.rim] = CODES["ligament"]
        view[away < 0] = CODES["csf"]
        x, y = self.center(level)
        a, b = self.half(level)
        for turn, length, thick in self.roots:
            start = (x + 0.95 * a * np.cos(turn), y + 0.9 * b * np.sin(turn))
            end = (start[0] + length * np.sign(np.cos(turn)), start[1] + 0.25 * length * np.sin(turn))
            line = stroke(part.u, part.v, part.place(*start), part.place(*end), (thick, thick))
            view[(line < 0) & _CSF[view]] = CODES["nerve_root"]


def draw_neck_scene(rng: np.random.Generator) -> NeckScene:
    """Draw a neck: sizes, shape of the gray matter, position of the cord, bones and vessels."""
    uniform = rng.uniform
    scale = float(np.clip(rng.normal(0.93, 0.055), 0.8, 1.07))
    shape = float(rng.normal(0, 0.035))
    roots = [
        (side * uniform(0.4, 0.9) + (np.pi if right else 0.0), uniform(1.5, 6.0), uniform(0.15, 0.45))
        for right in (False, True)
        for side in (-1.0, 1.0)
        for _ in range(int(rng.integers(0, 3)))
    ]
    low = np.array([26.0, 26.0, 2.6, 18.0, 18.0, 4.0, 1.0, 3.0, 4.5, 7.0, 1.8])
    high = np.array([34.0, 34.0, 4.6, 30.0, 34.0, 6.5, 3.5, 5.0, 8.0, 22.0, 3.8])
    return NeckScene(
        size=(scale * (1 + shape), scale * (1 - shape)),
        sac=(float(uniform(0.52, 1.1)), float(uniform(1.0, 1.3)), float(uniform(0.02, 0.14))),
        offset=(float(rng.normal(0, 0.12)), float(np.clip(rng.normal(0.1, 0.3), -0.6, 0.75))),
        horns=(
            float(uniform(0.8, 1.2)),
            float(uniform(0.65, 1.1)),
            float(uniform(0.6, 0.9)),
            float(rng.normal(-0.06, 0.06)),
        ),
        spread=(float(uniform(0.45, 0.68)), float(uniform(0.3, 0.5))),
        uneven=rng.normal(1, 0.07, 8),
        septa=float(uniform(0.2, 1.3)),
        lean=(float(rng.normal(0, 0.04)), float(rng.normal(0, 0.12))),
        body=(float(uniform(10.5, 14.0)), float(uniform(7.0, 9.5))),
        places=rng.uniform(low, high),
        roots=np.array(roots).reshape(-1, 3),
        rim=float(uniform(0.4, 1.3)),
        epidural=float(uniform(0.0, 2.2)),
        outline=Waves.draw(rng, 2.5),
        fibers=(Waves.draw(rng, 2.5, 20), Waves.draw(rng, 7.0, 16)),
        streaks=float(uniform(0.0, 0.22)),
    )
