# SPDX-License-Identifier: Apache-2.0
"""What lies around the heart in a short-axis slice: chest wall, ribs, lungs, diaphragm, liver, spleen, spine, aorta.

In this plane the left of the picture is the front of the chest, the right is the back, and down is towards the feet.
The body is therefore a tall band whose upper and lower ends leave the field of view.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vmfseg.phantom.shapes import Floats, Tissues, Waves, ellipse, ellipse_depth, paint
from vmfseg.phantom.tissues import TISSUES

__all__ = ["Thorax", "draw_thorax"]

_CODE = {name: np.uint8(tissue.code) for name, tissue in TISSUES.items()}
_CHEST = (_CODE["lung"], _CODE["visceral_fat"])
_OVER_TRUNK = (*_CHEST, _CODE["atrial_wall"], _CODE["vessel"], _CODE["aorta"])


@dataclass(frozen=True)
class Thorax:
    """One person's chest, in mm of the short-axis frame. Rows of vessel tables: u, v, radius, w, reach in w, turn."""

    center: tuple[float, float]
    half: tuple[float, float]
    turn: float
    fat: float
    muscle: float
    dome: float
    arch: float
    ceiling: float
    liver_end: float
    aorta: tuple[float, float, float]
    spine: tuple[float, float, float]
    pad: tuple[float, float, float, float]
    stomach: tuple[float, float, float, float]
    gas: float
    trunk: tuple[float, float]
    ribs: NDArray[np.float64]
    lung_vessels: NDArray[np.float64]
    liver_vessels: NDArray[np.float64]
    bend: Waves
    folds: Waves

    def tissue(self, u: Floats, v: Floats, w: float) -> Tissues:
        """Return the tissue of every point of the open grid ``u``, ``v`` in the plane at ``w``, without the heart."""
        depth = ellipse_depth(u, v, self.center, self.half, self.turn) + np.float32(2.5) * self.bend(u, v)
        folds = self.folds(u, v)
        wall = depth - np.float32(self.fat) * (1 + np.float32(0.25) * folds)
        image = np.full(depth.shape, _CODE["air"])
        image[depth > 0] = _CODE["muscle"]
        image[(wall < 0) & (depth > 1.8)] = _CODE["subcutaneous_fat"]
        seam = wall - np.float32(self.muscle) * (np.float32(0.38) + np.float32(0.12) * folds)
        image[(seam > 0) & (seam < 1.1 + 1.2 * folds)] = _CODE["visceral_fat"]
        cavity = wall > self.muscle
        self._ribs(image, u, v, w)
        below = v - self._floor(u, w)
        top = v - np.float32(self.ceiling) - np.float32(0.004) * (u - np.float32(self.center[0])) ** 2 - 4 * folds
        chest = cavity & (below < -2.2) & (top > 0)
        image[cavity & (below < 0) & (top <= 0) & (folds > 0.35)] = _CODE["visceral_fat"]
        belly = cavity & (below > 2.2)
        image[belly] = _CODE["visceral_fat"]
        self._abdomen(image, u, v, w, belly, wall, folds)
        image[chest] = _CODE["lung"]
        image[chest & (wall < self.muscle + 1.5)] = _CODE["visceral_fat"]
        pad = ellipse(u, v, (self.pad[0], self.pad[1] + 0.15 * w), (self.pad[2], self.pad[3]), 0.5)
        image[chest & (pad + np.float32(0.3) * folds < 1 - 0.006 * max(w, 0.0))] = _CODE["visceral_fat"]
        self._back(image, u, v, w)
        self._trunk(image, u, v, w, chest, folds)
        return image

    def _floor(self, u: Floats, w: float) -> Floats:
        flat = np.maximum(np.abs(u - np.float32(self.center[0] - 20)) - 22, 0)
        result: Floats = np.float32(self.dome - 0.1 * w) + np.float32(self.arch) * flat**2
        return result

    def _ribs(self, image: Tissues, u: Floats, v: Floats, w: float) -> None:
        inset = self.fat + 0.66 * self.muscle
        a, b = self.half[0] - inset, self.half[1] - inset
        for side, along, thick, lean in self.ribs:
            x = side * a * np.sqrt(max(0.0, 1 - ((along + lean * w) / b) ** 2))
            y = along + lean * w
            c, s = np.cos(self.turn), np.sin(self.turn)
            at = (self.center[0] + c * x - s * y, self.center[1] + s * x + c * y)
            turn = self.turn - side * 0.5 * y / b
            over = (_CODE["muscle"], _CODE["visceral_fat"])
            paint(image, u, v, at, (thick, 1.9 * thick), turn, _CODE["cortical_bone"], over)
            paint(image, u, v, at, (thick - 1.3, 1.9 * thick - 1.6), turn, _CODE["marrow"])

    def _abdomen(
        self, image: Tissues, u: Floats, v: Floats, w: float, belly: NDArray[np.bool_], wall: Floats, folds: Floats
    ) -> None:
        edge = (
            np.float32(self.liver_end - 0.3 * w)
            + np.float32(8) * folds
            - np.float32(0.25) * (v - np.float32(self.dome))
        )
        image[belly & (u < edge) & (wall > self.muscle + 1.5)] = _CODE["liver"]
        for vu, vv, size, vw, reach, turn in self.liver_vessels:
            if abs(w - vw) < reach:
                paint(image, u, v, (vu, vv), (2.4 * size, size), turn, _CODE["vessel"], (_CODE["liver"],))
        su, sv, sa, sb = self.stomach
        free = (_CODE["visceral_fat"],)
        at = (su - 0.2 * w, sv)
        spleen = belly & (u > edge + 5) & (wall > self.muscle + 3)
        image[spleen & (ellipse(u, v, (su + sa + 20, sv + 6), (38, 52), -0.25) < 1)] = _CODE["spleen"]
        inner = belly & (u > edge + 3)
        image[inner & (ellipse(u, v, at, (sa, sb), 0.3) < 1)] = _CODE["muscle"]
        content = inner & (ellipse(u, v, at, (sa - 3.5, sb - 3.5), 0.3) + np.float32(0.12) * folds < 0.95)
        image[content] = _CODE["stomach"]
        image[content & (u + 0.3 * v < at[0] + 0.3 * at[1] + self.gas * sa)] = _CODE["air"]
        for k in range(4):  # bowel loops below the stomach
            paint(image, u, v, (su - 28 + 26 * k, sv + sb + 20 + 9 * (k % 2)), (15, 13), 0.4 * k, _CODE["muscle"], free)
            loop = (su - 28 + 26 * k, sv + sb + 20 + 9 * (k % 2))
            paint(image, u, v, loop, (12, 10), 0.4 * k, _CODE["stomach"], (_CODE["muscle"],))

    def _back(self, image: Tissues, u: Floats, v: Floats, w: float) -> None:
        for vu, vv, size, vw, reach, turn in self.lung_vessels:
            if abs(w - vw) < reach:
                paint(image, u, v, (vu, vv), (size * (1 + 0.06 * reach), size), turn, _CODE["vessel"], _CHEST[:1])
        su, sv, start = self.spine
        if w < start:
            reach = min(1.0, (start - w) / 25)
            half = (17 * reach**0.5, 75 * reach)
            body = image.copy()
            paint(body, u, v, (su, sv), half, 0.15, _CODE["cortical_bone"], _CHEST)
            paint(body, u, v, (su, sv), (half[0] - 1.5, max(half[1] - 1.5, 1.6)), 0.15, _CODE["marrow"])
            disc = np.abs(np.mod(v + np.float32(0.2) * u, np.float32(30)) - 15) < 3
            body[(body == _CODE["marrow"]) & (image != body) & disc] = _CODE["cartilage"]
            image[...] = body
        au, av, radius = self.aorta
        if w < 22:  # the tube runs down and forward, so the plane leaves it towards the apex
            at = (au - 0.25 * w, av + 0.8 * w)
            over = (*_CHEST, _CODE["vessel"], _CODE["marrow"], _CODE["cortical_bone"], _CODE["cartilage"])
            paint(image, u, v, at, (radius + 4, 1.7 * radius + 5), 0.15, _CODE["visceral_fat"], over)
            paint(image, u, v, at, (radius + 1.3, 1.6 * radius + 1.3), 0.15, _CODE["atrial_wall"], _CHEST)
            paint(image, u, v, at, (radius, 1.6 * radius), 0.15, _CODE["aorta"], (_CODE["atrial_wall"],))
            paint(image, u, v, (at[0] - radius - 8, at[1] - 8), (5.0, 8.5), 0.2, _CODE["muscle"], _CHEST)

    def _trunk(self, image: Tissues, u: Floats, v: Floats, w: float, chest: NDArray[np.bool_], folds: Floats) -> None:
        """Great vessels in mediastinal fat over the heart; they thin out towards the apex."""
        share = float(np.clip((28 - w) / 55, 0, 1))
        if share < 0.15:
            return
        tu, tv = self.trunk
        mantle = ellipse(u, v, (tu, tv), (14 + 16 * share, 34 + 30 * share), 0.2) + np.float32(0.35) * folds
        image[chest & (mantle < 1)] = _CODE["visceral_fat"]
        parts = (
            ("vessel", (-4.0, 18.0), (17.0, 13.0), 0.5),
            ("aorta", (4.0, -14.0), (14.0, 19.0), 0.1),
            ("vessel", (-15.0, -30.0), (8.0, 14.0), 0.2),
            ("vessel", (19.0, 6.0), (9.0, 13.0), 1.0),
        )
        for border, tissue in ((1.4, "atrial_wall"), (0.0, "")):
            for name, at, half, turn in parts:
                size = (half[0] * share**0.6 + border, half[1] * share**0.6 + border)
                paint(image, u, v, (tu + at[0] * share, tv + at[1]), size, turn, _CODE[tissue or name], _OVER_TRUNK)


def draw_thorax(
    rng: np.random.Generator, heart: tuple[float, float], outer: float, front: float, weight: float
) -> Thorax:
    """Draw a chest that fits around a heart.

    Args:
        rng: source of randomness.
        heart: position of the heart's axis.
        outer: radius of the left ventricle's outer wall.
        front: distance from that axis to the front of the right ventricle.
        weight: body weight in kg; it sets the fat layers.
    """
    fat = float(np.clip(rng.normal(0.22 * (weight - 45), 3.0), 5.0, 26.0))
    muscle = float(rng.uniform(12, 17))
    left = heart[0] - front - float(rng.uniform(4, 14)) - muscle - fat
    right = heart[0] + outer + float(rng.uniform(62, 90)) + muscle + fat
    dome = heart[1] + outer + float(rng.uniform(3, 8))
    ceiling = heart[1] - float(rng.uniform(118, 145))
    ribs = [
        (side, along + float(rng.normal(0, 3)), float(rng.uniform(4.2, 5.8)), side * float(rng.uniform(0.3, 0.6)))
        for side, shift in ((-1.0, float(rng.uniform(0, 37))), (1.0, float(rng.uniform(0, 37))))
        for along in np.arange(-190 + shift, 190, 37.0)
    ]
    place = rng.uniform
    return Thorax(
        center=((left + right) / 2, float(rng.normal(10, 12))),
        half=((right - left) / 2, float(place(270, 340))),
        turn=float(rng.normal(0.1, 0.06)),
        fat=fat,
        muscle=muscle,
        dome=dome,
        arch=float(place(0.003, 0.006)),
        ceiling=ceiling,
        liver_end=heart[0] + float(place(0, 30)),
        aorta=(heart[0] + outer + float(place(20, 32)), heart[1] + float(place(0, 22)), float(place(9.5, 12.5))),
        spine=(heart[0] + outer + float(place(44, 56)), heart[1] + float(place(-20, 20)), float(place(-38, -8))),
        pad=(heart[0] - front * 0.85, heart[1] + float(place(8, 20)), float(place(20, 34)), float(place(26, 40))),
        stomach=(
            heart[0] + float(place(36, 52)),
            dome + float(place(26, 34)),
            float(place(26, 36)),
            float(place(20, 28)),
        ),
        gas=float(place(-0.9, 0.7)),
        trunk=(heart[0] + float(place(-30, -12)), heart[1] - outer - float(place(38, 52))),
        ribs=np.array(ribs),
        lung_vessels=_vessels(rng, 130, (heart[0] + 62, heart[1] - 30), (38, 48), (1.7, 0.75)),
        liver_vessels=_vessels(rng, 16, (heart[0] - 38, dome + 45), (34, 26), (3.0, 0.7)),
        bend=Waves.draw(rng, 60.0),
        folds=Waves.draw(rng, 30.0),
    )


def _vessels(
    rng: np.random.Generator,
    count: int,
    at: tuple[float, float],
    spread: tuple[float, float],
    size: tuple[float, float],
) -> NDArray[np.float64]:
    return np.stack(
        [
            rng.normal(at[0], spread[0], count),
            rng.normal(at[1], spread[1], count),
            rng.gamma(size[0], size[1], count) + 0.6,
            rng.uniform(-60, 70, count),
            rng.uniform(5, 20, count),
            rng.uniform(0, np.pi, count),
        ],
        axis=1,
    )
