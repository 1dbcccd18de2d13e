# SPDX-License-Identifier: Apache-2.0
"""Pictures of one heart on one scanner, on any grid: a slice for training or a whole stack."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from vmfseg.phantom.acquisition import field_map
from vmfseg.phantom.chest import mark
from vmfseg.phantom.heart import contraction
from vmfseg.phantom.heart_scene import Convention, HeartScene, draw_heart_scene
from vmfseg.phantom.plane import Plane
from vmfseg.phantom.protocols import CineProtocol, cine_table, draw_cine_protocol
from vmfseg.phantom.relaxation import CODES
from vmfseg.phantom.scanner import Coils, draw_coils, receive, to_grid
from vmfseg.phantom.shapes import Floats, Waves
from vmfseg.phantom.ventricles import Surfaces

__all__ = ["HeartExam", "SliceChoice", "draw_heart_exam", "draw_slice_choice"]

_FINE = 0.95  # mm, spacing of the simulation
_MARGIN = 12.0  # mm that are simulated beyond the picture, where k-space wraps around
_SLABS = 4  # points through the thickness; every two of them share the chest and the place in the plane
_BLOOD = mark("lv_blood", "rv_blood", "left_atrium_blood", "right_atrium_blood", "aorta")


@dataclass(frozen=True)
class SliceChoice:
    """Which slice: position along the axis, contraction, and shift of the breath hold in mm."""

    w: float
    beat: float
    shift: tuple[float, float]
    blur: float = 0.0


@dataclass(frozen=True)
class HeartExam:
    """One person on one scanner.

    Args:
        scene: the person.
        protocol: the sequence.
        table: signal of every tissue over the off-resonance.
        turn: rotation of the picture against the body.
        center: where the middle of the picture lies, from the heart's axis.
        tilt: change of the position along the axis per mm in the plane (a plane that is not quite the short axis).
        coils: receive elements, in the frame of the picture.
        shim: waves of the off-resonance.
        grain: texture of tissues.
        flow: uneven signal of blood.
        spot: off-resonance beside the lung.
        systole: time of end-systole.
    """

    scene: HeartScene
    protocol: CineProtocol
    table: NDArray[np.complex64]
    turn: float
    center: tuple[float, float]
    tilt: tuple[float, float]
    coils: Coils
    shim: Waves
    grain: tuple[Waves, Waves]
    flow: tuple[Waves, float]
    spot: tuple[float, float, float]
    systole: float

    @cached_property
    def reference(self) -> float:
        """Signal of blood on resonance."""
        row = np.abs(self.table[CODES["lv_blood"]])
        return float(row[row.size // 2])

    def picture(self, choice: SliceChoice, count: tuple[int, int], spacing: float, rng: np.random.Generator) -> Floats:
        """Return the picture of one slice on a centered grid of ``count`` points, (columns, rows), raw intensities."""
        size = [fft.next_fast_len(int(np.ceil((n * spacing + 2 * _MARGIN) / _FINE))) for n in count]
        spins, sensitivity = self._spins(choice, (size[0], size[1]))
        stored = receive(spins, sensitivity, _FINE, self.protocol.recon, self.reference, rng)
        return to_grid(stored, (size[0] * _FINE, size[1] * _FINE), _FINE, count, spacing)

    def label(
        self, choice: SliceChoice, count: tuple[int, int], spacing: float, convention: Convention = "cavity"
    ) -> NDArray[np.uint8]:
        """Return a reader's label of that slice on the same grid: 1 LV, 2 MYO, 3 RV."""
        plane = self._plane(choice, count, spacing)
        return self.scene.label(plane, choice.w, choice.beat, self.tilt, convention)

    def _plane(
        self, choice: SliceChoice, count: tuple[int, int], spacing: float, shift: tuple[float, float] = (0.0, 0.0)
    ) -> Plane:
        lean = self.scene.ventricles.lean
        origin = (
            self.center[0] - lean[0] * choice.w + choice.shift[0],
            self.center[1] - lean[1] * choice.w + choice.shift[1],
        )
        return Plane.make(count, spacing, self.turn, origin, shift)

    def _spins(self, choice: SliceChoice, count: tuple[int, int]) -> tuple[NDArray[np.complex64], Floats]:
        scene, protocol = self.scene, self.protocol
        middle = self._plane(choice, count, _FINE)
        where = field_map(middle.u, middle.v, choice.w, protocol.shim, self.shim, self.spot)
        where = np.clip(where + round(protocol.offset / 2.5), 0, self.table.shape[1] - 1)
        flat, columns = self.table.ravel(), np.intp(self.table.shape[1])
        support = scene.support(choice.w)
        spins, blood = np.zeros(count, np.complex64), np.zeros(count, np.uint8)
        known: dict[float, Surfaces] = {}
        for slab in range(_SLABS):
            depth = choice.w + ((slab + 0.5) / _SLABS - 0.5) * protocol.thickness
            beat = float(np.clip(choice.beat + choice.blur * (slab - 1.5), 0, 1))
            if slab % 2 == 0:
                shift = (0.24, 0.24) if slab else (-0.24, -0.24)
                plane = self._plane(choice, count, _FINE, shift)
                ground = scene.chest.tissue(plane, depth + protocol.thickness / 8, support)
            if beat not in known:
                known[beat] = scene.surfaces(choice.w, beat, self.tilt, protocol.thickness)
            tissue = scene.tissue(plane, depth, beat, self.tilt, ground, known[beat])
            spins += np.take(flat, tissue * columns + where)
            blood += _BLOOD[tissue]
        u, v = middle.u, middle.v
        texture = 1 + np.float32(0.04) * self.grain[0](u, v) + np.float32(0.05) * self.grain[1](u, v)
        stream = np.float32(self.flow[1] / _SLABS) * blood * self.flow[0](u, v)
        spins *= (texture + stream) / np.float32(_SLABS)
        return spins, self.coils.sensitivity(u, v)


def draw_heart_exam(rng: np.random.Generator, rotation: float = 25.0) -> HeartExam:
    """Draw a person, a protocol, and how the plane was set.

    Args:
        rng: source of randomness.
        rotation: standard deviation of the in-plane rotation in degrees.
    """
    scene = draw_heart_scene(rng)
    protocol = draw_cine_protocol(rng)
    turn = float(np.deg2rad(np.clip(rng.normal(0, rotation), -45, 45)))
    radius = scene.ventricles.radius
    away = rng.normal(0, 9, 2) if rng.random() < 0.75 else rng.uniform(-32, 32, 2)
    center = (float(away[0]) - 8.0, float(away[1]))  # between both ventricles
    steep = float(np.tan(np.deg2rad(abs(rng.normal(0, 5)))))
    toward = rng.uniform(0, 2 * np.pi)
    plane = Plane.make((2, 2), 1.0, turn, center)
    support = scene.support(0.0)
    angle, gap = scene.chest.front[0], scene.chest.front[1]
    skin = max(gap, float(support.max() * 0.8)) + scene.chest.muscle + scene.chest.fat + scene.chest.breast[0] + 15
    front = plane.place(skin * np.cos(angle), skin * np.sin(angle))
    back = plane.place(-150 * np.cos(angle), -150 * np.sin(angle))
    spot = plane.place(0.8 * radius, 1.1 * radius)
    return HeartExam(
        scene=scene,
        protocol=protocol,
        table=cine_table(protocol, rng),
        turn=turn,
        center=center,
        tilt=(steep * float(np.cos(toward)), steep * float(np.sin(toward))),
        coils=draw_coils(rng, front, back),
        shim=Waves.draw(rng, 60.0, 8),
        grain=(Waves.draw(rng, 4.0, 24), Waves.draw(rng, 14.0, 16)),
        flow=(Waves.draw(rng, 9.0, 16), float(abs(rng.normal(0, 0.05)))),
        spot=(*spot, float(rng.normal(45, 15)) * protocol.tesla / 1.5),
        systole=float(rng.uniform(0.33, 0.40)),
    )


def draw_slice_choice(rng: np.random.Generator, exam: HeartExam) -> SliceChoice:
    """Draw a slice: often end-diastole or end-systole and about the base, at times above it or below the apex."""
    heart = exam.scene.ventricles
    kind = rng.random()
    beat = 0.0 if kind < 0.45 else 1.0 if kind < 0.75 else contraction(float(rng.random()), exam.systole)
    base, end = heart.base_at(beat), heart.outer_apex
    place = rng.random()
    if place < 0.12:
        w = base - rng.uniform(0, 28)
    elif place < 0.15:
        w = end + rng.uniform(0, 14)
    elif place < 0.35:
        w = base + rng.uniform(-10, 15)
    else:
        w = rng.uniform(base, end)
    shift = rng.normal(0, 1.5, 2)
    return SliceChoice(float(w), beat, (float(shift[0]), float(shift[1])), float(rng.choice([0.0, 0.0, 0.04])))
