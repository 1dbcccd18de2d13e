# SPDX-License-Identifier: Apache-2.0
"""Pictures of one spinal cord on one scanner, on any grid: a slice for training or a whole stack.

============================  =========================================================================================
quantity                      range and source
============================  =========================================================================================
2-D multi-echo                TR 539 ms, TE 5.4 to 19 ms averaged, flip 35 degrees; 3-D fat-suppressed TR 23, TE 5, flip
                              7: page of the 2016 challenge (Prados et al., NeuroImage 152:312, 2017); wider here
short TR, small flip          TR 22 to 60 ms, TE 12.5 to 25 ms, flip 3 to 18 degrees: Enzmann and Rubin,
                              Radiology 166:467, 1988
resolution                    0.38 to 1.0 mm, slices of 2.5 to 7.5 mm
fluid against white matter    drawn from 0.8 to 3.2: pulsation and inflow decide it; development scans have 1.0 to 2.4
gray against white matter     drawn from 1.08 to 1.40, as magnetization transfer adds to densities and times;
                              development scans have 1.1 to 1.3
============================  =========================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from vmfseg.phantom.acquisition import field_map, frequency_axis
from vmfseg.phantom.chest import mark
from vmfseg.phantom.neck import NeckScene, draw_neck_scene
from vmfseg.phantom.plane import Plane
from vmfseg.phantom.protocols import draw_reconstruction
from vmfseg.phantom.relaxation import CODES, COUNT, draw_relaxation, fat_shift
from vmfseg.phantom.scanner import Coils, Reconstruction, draw_coils, receive, to_grid
from vmfseg.phantom.shapes import Floats, Waves
from vmfseg.phantom.signal import spoiled_gre_signal

__all__ = ["CordExam", "draw_cord_exam"]

_FINE = 0.27  # mm, spacing of the simulation
_MARGIN = 5.0  # mm that are simulated beyond the picture
_SLABS = 3  # points through the thickness
_FLUID = mark("csf")


@dataclass(frozen=True)
class CordExam:
    """One person on one scanner.

    Args:
        scene: the person.
        name: field and sequence in short.
        thickness: of a slice in mm.
        table: signal of every tissue over the off-resonance, one row of tables for each echo.
        recon: what happens to k-space.
        turn: rotation of the picture against the body.
        center: where the middle of the picture lies, from the middle of the dural sac.
        coils: receive elements.
        shim: residual off-resonance in Hz and its waves.
        grain: texture of tissues.
        pulse: uneven signal of the fluid and its amplitude.
        habit: how far a reader draws gray matter and cord outside their surfaces, in mm.
    """

    scene: NeckScene
    name: str
    thickness: float
    table: NDArray[np.complex64]
    recon: Reconstruction
    turn: float
    center: tuple[float, float]
    coils: Coils
    shim: tuple[float, Waves]
    grain: tuple[Waves, Waves]
    pulse: tuple[Waves, float]
    habit: tuple[float, float]

    def picture(self, level: float, count: tuple[int, int], spacing: float, rng: np.random.Generator) -> Floats:
        """Return the picture at a level on a centered grid of ``count`` points, (columns, rows), raw intensities."""
        size = [fft.next_fast_len(int(np.ceil((n * spacing + 2 * _MARGIN) / _FINE))) for n in count]
        spins, sensitivity = self._spins(level, (size[0], size[1]))
        middle = self.table.shape[-1] // 2
        reference = float(np.abs(self.table[:, CODES["white_matter"], middle]).mean()) * len(self.table) ** 0.5
        stored = receive(spins, sensitivity, _FINE, self.recon, reference, rng)
        return to_grid(stored, (size[0] * _FINE, size[1] * _FINE), _FINE, count, spacing)

    def label(self, level: float, count: tuple[int, int], spacing: float) -> NDArray[np.uint8]:
        """Return a reader's label of that slice on the same grid: 1 gray matter, 2 white matter."""
        plane = Plane.make(count, spacing, self.turn, self.center)
        cord = self.scene.cord_distance(plane, level) < self.habit[1]
        gray = cord & (self.scene.gray_distance(plane, level) < self.habit[0])
        return np.where(gray, 1, np.where(cord, 2, 0)).astype(np.uint8)

    def _spins(self, level: float, count: tuple[int, int]) -> tuple[NDArray[np.complex64], Floats]:
        middle = Plane.make(count, _FINE, self.turn, self.center)
        where = field_map(middle.u, middle.v, 0.0, self.shim[0], self.shim[1], (0.0, -40.0, 2 * self.shim[0]))
        columns = np.intp(self.table.shape[2])
        spins = np.zeros((len(self.table), *count), np.complex64)
        fluid = np.zeros(count, np.uint8)
        ground = self.scene.surroundings(middle, level)  # one plane stands for the thickness outside the sac
        for slab in range(_SLABS):
            along = ((slab + 0.5) / _SLABS - 0.5) * self.thickness
            shift = 0.3 * _FINE * (slab - 1)
            plane = Plane.make(count, _FINE, self.turn, self.center, (shift, -shift))
            tissue = self.scene.tissue(plane, level - along / 16.0, along, ground)
            entry = tissue * columns + where
            for echo, table in enumerate(self.table):
                spins[echo] += np.take(table.ravel(), entry)
            fluid += _FLUID[tissue]
        u, v = middle.u, middle.v
        texture = 1 + np.float32(0.012) * self.grain[0](u, v) + np.float32(0.025) * self.grain[1](u, v)
        stream = np.float32(self.pulse[1] / _SLABS) * fluid * self.pulse[0](u, v)
        spins *= (texture + stream) / np.float32(_SLABS)
        return spins, self.coils.sensitivity(u, v)


def draw_cord_exam(rng: np.random.Generator, rotation: float = 5.0) -> CordExam:
    """Draw a person, a protocol, and how the plane was set.

    Args:
        rng: source of randomness.
        rotation: standard deviation of the in-plane rotation in degrees.
    """
    uniform = rng.uniform
    scene = draw_neck_scene(rng)
    tesla = float(rng.choice([1.5, 3.0], p=[0.25, 0.75]))
    kind = str(rng.choice(["me2d", "fast3d", "small"], p=[0.55, 0.25, 0.2]))
    if kind == "me2d":
        count = int(rng.integers(1, 4))
        tr, flip, echoes = uniform(300, 900), uniform(20, 45), np.sort(uniform(5, 26, count))
    elif kind == "fast3d":
        tr, flip, echoes = uniform(20, 60), uniform(5, 14), uniform(4, 20, 1)
    else:
        tr, flip, echoes = uniform(22, 60), uniform(4, 18), uniform(11, 25, 1)
    turn = float(np.deg2rad(np.clip(rng.normal(0, rotation), -40, 40)))
    away = rng.normal(0, 3, 2) if rng.random() < 0.7 else uniform(-14, 14, 2)
    shim = uniform(3, 14) * tesla / 1.5
    recon = draw_reconstruction(rng, (0.38, 0.76), (0.25, 0.8), (22.0, 130.0))
    return CordExam(
        scene=scene,
        name=f"{tesla:g}T-{kind}",
        thickness=float(rng.choice([2.5, 3.0, 4.0, 5.0, 7.5], p=[0.15, 0.3, 0.15, 0.3, 0.1])),
        table=_tables(rng, tesla, tr, echoes, flip),
        recon=recon,
        turn=turn,
        center=(float(away[0]), float(away[1])),
        coils=draw_coils(rng, (0.0, -80.0), (0.0, 70.0)),
        shim=(float(shim), Waves.draw(rng, 30.0, 8)),
        grain=(Waves.draw(rng, 1.1, 24), Waves.draw(rng, 5.0, 16)),
        pulse=(Waves.draw(rng, 3.0, 16), float(abs(rng.normal(0, 0.07)))),
        habit=(float(max(rng.normal(0.06, 0.08), -0.04)), float(rng.normal(0.03, 0.1))),
    )


def _tables(
    rng: np.random.Generator, tesla: float, tr: float, echoes: NDArray[np.float64], flip: float
) -> NDArray[np.complex64]:
    """Signals of all tissues for every echo, shape (echoes, COUNT, frequencies)."""
    t1, _, t2_star, density = draw_relaxation(rng, tesla, spread=0.06)
    hertz = frequency_axis()[None, :] + fat_shift(tesla)[:, None]
    renewed = np.zeros(COUNT)
    renewed[[CODES["aorta"], CODES["vessel"]]] = rng.uniform(0.0, 1.0, 2)
    factor = np.exp(rng.normal(0, 0.2, COUNT))
    factor[[CODES["white_matter"], CODES["nerve_root"]]] = 1.0
    fatty = [CODES[name] for name in ("subcutaneous_fat", "visceral_fat", "epicardial_fat")]
    factor[fatty] = rng.uniform(0.1, 1.1)  # fat may be suppressed
    factor[CODES["marrow"]] *= rng.uniform(0.1, 1.0)  # trabeculae spoil the field
    tables = []
    for echo in echoes:
        signal = spoiled_gre_signal(
            t1[:, None],
            t2_star[:, None],
            density[:, None],
            tr=float(tr),
            te=float(echo),
            flip=float(flip),
            off_resonance=hertz,
            inflow=renewed[:, None],
        )
        tables.append(signal * factor[:, None])
    result = np.asarray(tables)
    middle = result.shape[2] // 2
    mean = np.abs(result[:, :, middle]).mean(axis=0)
    wanted = rng.uniform(0.8, 1.3) if rng.random() < 0.25 else rng.uniform(1.3, 3.2)
    for name, ratio in (("csf", wanted), ("gray_matter", rng.uniform(1.08, 1.40))):
        result[:, CODES[name]] *= ratio * mean[CODES["white_matter"]] / max(mean[CODES[name]], 1e-9)
    return result.astype(np.complex64)
