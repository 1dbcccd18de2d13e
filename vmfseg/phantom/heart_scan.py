# SPDX-License-Identifier: Apache-2.0
"""One heart on one scanner: short-axis cine, labels at ED and ES, and the true tissue of those frames' voxels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from vmfseg.phantom.acquisition import acquire, coil_sensitivity, field_map, frequency_axis, oblique_frame, store
from vmfseg.phantom.heart import ANGLES, Heart, Section, contraction, draw_heart
from vmfseg.phantom.partial_volume import label_majority, majority, mean_signal, points_of_voxels
from vmfseg.phantom.shapes import Floats, Tissues, Waves, open_grid, paint, window
from vmfseg.phantom.signal import bssfp_signal, bssfp_table
from vmfseg.phantom.thorax import Thorax, draw_thorax
from vmfseg.phantom.tissues import TISSUES
from vmfseg.phantom.vendors import HEART_CENTERS, HeartProtocol
from vmfseg.utils import numpy_rng

__all__ = ["HeartScan", "heart_protocol", "label_of_tissue", "scan_heart"]

_CODE = {name: np.uint8(tissue.code) for name, tissue in TISSUES.items()}
_CAVITY = (_CODE["lv_blood"], _CODE["lv_trabeculae"])
_CODES = max(tissue.code for tissue in TISSUES.values()) + 1
_SLABS = 3  # sub-slices through the thickness
_MARGIN = 8  # voxels at least that are simulated beyond the field of view, where k-space would wrap around
_ATRIA_FROM = -2.0  # the atria show from so many mm above the mitral plane
#: Tissue, place, half axes and turn of the structures above the mitral plane, for a ventricle of 25 mm radius.
_ATRIA = (
    ("right_atrium_blood", (-50.0, 10.0), (25.0, 30.0), 0.3),
    ("left_atrium_blood", (10.0, 14.0), (34.0, 24.0), 0.2),
    ("right_atrium_blood", (-24.0, -36.0), (19.0, 15.0), 0.5),
    ("aorta", (-11.0, -12.0), (14.5, 14.0), 0.0),
)


@dataclass(frozen=True)
class HeartScan:
    """The files of one subject: arrays in the vendor's order of axes, and the row of the CSV."""

    image: NDArray[np.int16]
    label: NDArray[np.uint8]
    factors: NDArray[np.uint8]
    affine: NDArray[np.float64]
    frame_time: float
    row: dict[str, object]


def heart_protocol(index: int) -> HeartProtocol:
    """Return the center of subject ``index``: vendors in turn, the two Philips centers in turn.

    Example:
        >>> [heart_protocol(i).center for i in range(8)]
        [1, 2, 4, 5, 1, 3, 4, 5]
    """
    return HEART_CENTERS[(0, 1 + (index // 4) % 2, 3, 4)[index % 4]]


def label_of_tissue() -> NDArray[np.uint8]:
    """Return the M&Ms label of every tissue code: 1 LV cavity (with papillaries and trabeculae), 2 MYO, 3 RV cavity."""
    table = np.zeros(_CODES, np.uint8)
    for label, names in enumerate(
        (("lv_blood", "papillary", "lv_trabeculae"), ("lv_myocardium",), ("rv_blood", "rv_trabeculae")), start=1
    ):
        table[[TISSUES[name].code for name in names]] = label
    return table


def scan_heart(index: int, seed: int, frames: int, size: int | None = None) -> HeartScan:
    """Make subject ``index`` of the phantom ``seed``. Nothing else decides what comes out.

    Args:
        index: number of the subject; it also picks the scanner.
        seed: seed of the phantom.
        frames: frames of the cine.
        size: largest in-plane matrix; scanners with a finer one cover the same field of view with ``size`` voxels.
    """
    protocol = heart_protocol(index)
    body = numpy_rng(seed, "heart", index)
    sex = "M" if body.random() < 0.58 else "F"
    height = float(np.clip(body.normal(176 if sex == "M" else 163, 7), 148, 202))
    weight = float(np.clip((height / 100) ** 2 * body.normal(25.5, 3.4), 42, 130))
    age = int(body.integers(19, 83))
    heart = draw_heart(body)
    outer = heart.radius + heart.wall
    thorax = draw_thorax(body, heart.axis(0), outer, outer + heart.rv_width + 4, weight)
    plan = numpy_rng(seed, "heart", index, "plan")
    ed = int(plan.integers(frames - max(1, frames // 5), frames)) if plan.random() < protocol.ed_late else 0
    beats = [contraction(((k - ed) % frames) / frames, heart.systole) for k in range(frames)]
    es = int(np.argmax(beats))
    machine = numpy_rng(seed, "heart", index, "scanner")
    spacing, count = _grid(protocol, size)
    step = protocol.thickness + protocol.gap
    first = heart.base - float(plan.uniform(0.8, 1.9)) * step
    slices = math.ceil((heart.outer_apex - first) / step + float(plan.uniform(0.2, 1.1)))
    places = [first + k * step for k in range(slices)]
    shape = (*count, slices, frames)
    image = np.zeros(shape, np.int16, order="F")  # the order of the file
    label, factors = np.zeros(shape, np.uint8, order="F"), np.zeros(shape, np.uint8, order="F")
    camera = _Camera(heart, thorax, protocol, spacing, count, machine)
    for k, w in enumerate(places):
        image[:, :, k], recorded = camera.expose(w, beats, (ed, es))
        for frame, (labels, tissues) in recorded.items():
            label[:, :, k, frame], factors[:, :, k, frame] = labels, tissues
    affine = _affine(protocol, places, spacing, count, machine)
    stored = [store(array, affine, protocol.receiver) for array in (image, label, factors)]
    volume = spacing**2 * step / 1000
    row: dict[str, object] = {
        "VendorName": protocol.vendor_name, "Vendor": protocol.vendor, "Centre": protocol.center, "ED": ed, "ES": es,
        "Age": age, "Pathology": heart.pathology, "Sex": sex, "Height": round(height, 1), "Weight": round(weight, 1),
        "lv_volume_ml": [round(float((label[..., f] == 1).sum() * volume), 2) for f in (ed, es)],
    }  # fmt: skip
    return HeartScan(
        stored[0][0].astype(np.int16, copy=False),
        stored[1][0].astype(np.uint8, copy=False),
        stored[2][0].astype(np.uint8, copy=False),
        stored[0][1],
        0.0 if protocol.receiver.zero_frame_time else round(float(machine.uniform(0.75, 1.05)) / frames, 4),
        row,
    )


def _grid(protocol: HeartProtocol, size: int | None) -> tuple[float, tuple[int, int]]:
    count = [max(8, 2 * round(f / protocol.spacing / 2)) for f in protocol.fov]
    if size is None or size >= max(count):
        return protocol.spacing, (count[0], count[1])
    spacing = max(protocol.fov) / size
    return spacing, (min(size, 2 * round(protocol.fov[0] / spacing / 2)), size)


def _affine(
    protocol: HeartProtocol, places: list[float], spacing: float, count: tuple[int, int], rng: np.random.Generator
) -> NDArray[np.float64]:
    frame = oblique_frame(protocol.obliquity + rng.normal(0, 5), rng.uniform(9, 28), rng.normal(0, 4))
    step = places[1] - places[0]
    affine = np.eye(4)
    affine[:3, :3] = frame * np.array([spacing, spacing, step])
    corner = np.array([-(count[0] - 1) / 2 * spacing, -(count[1] - 1) / 2 * spacing, places[0]])
    affine[:3, 3] = frame @ corner + np.array([-45.0, 5.0, 0.0]) + rng.normal(0, 8, 3)
    return affine


class _Camera:
    """Everything that stays the same over the slices of one subject."""

    def __init__(
        self,
        heart: Heart,
        thorax: Thorax,
        protocol: HeartProtocol,
        spacing: float,
        count: tuple[int, int],
        rng: np.random.Generator,
    ) -> None:
        self.heart, self.thorax, self.protocol, self.rng = heart, thorax, protocol, rng
        sizes = [fft.next_fast_len(n + 2 * _MARGIN) for n in count]
        self.count = (sizes[0] + (sizes[0] - count[0]) % 2, sizes[1] + (sizes[1] - count[1]) % 2)
        edge = [(wide - n) // 2 for wide, n in zip(self.count, count, strict=True)]
        self.view = (slice(edge[0], edge[0] + count[0]), slice(edge[1], edge[1] + count[1]))
        self.samples = min(3, max(1, round(spacing / 0.7)))
        self.u, self.v = open_grid(self.count, spacing, self.samples)
        self.cu, self.cv = open_grid(self.count, spacing)
        sequence = {"tesla": protocol.tesla, "tr": protocol.tr, "te": protocol.te, "flip": protocol.flip}
        self.table = bssfp_table(frequency_axis(), **sequence)
        self.labels = label_of_tissue()
        t1, t2, _ = TISSUES["lv_blood"].times(protocol.tesla)
        blood = TISSUES["lv_blood"]
        signal = bssfp_signal(t1, t2, blood.pd, tr=protocol.tr, te=protocol.te, flip=protocol.flip)
        self.blood = float(abs(signal))
        self.gain = protocol.receiver.scale / self.blood * float(np.exp(rng.normal(0, 0.12)))
        fov = (self.count[0] * spacing, self.count[1] * spacing)
        self.matrix = (round(fov[0] / protocol.acquired[0]), round(fov[1] / protocol.acquired[1]))
        self.shim, self.grain = Waves.draw(rng, 90.0, 8), Waves.draw(rng, 5.0, 24)
        self.shift_hz = float(rng.normal(0, 12))
        axis = heart.axis(0)
        self.spot = (axis[0] + 0.8 * heart.radius, axis[1] + 1.1 * heart.radius, float(rng.normal(45, 15)))
        wide = thorax.half[0]
        self.front = (thorax.center[0] - wide - 15, axis[1] + float(rng.normal(0, 15)))
        self.back = (thorax.center[0] + wide + 12, axis[1] + float(rng.normal(0, 15)))

    def expose(
        self, w: float, beats: list[float], record: tuple[int, int]
    ) -> tuple[NDArray[np.int16], dict[int, tuple[Tissues, Tissues]]]:
        """Return the cine of one slice (u, v, t), and labels and tissues of the frames to ``record``."""
        sway = self.rng.normal(0, 1.0, 2)  # breath holds differ between slices
        u, v = self.u - np.float32(sway[0]), self.v - np.float32(sway[1])
        thickness = self.protocol.thickness
        depths = [w + (slab + 0.5) / _SLABS * thickness - thickness / 2 for slab in range(_SLABS)]
        still = self.thorax.tissue(u, v, w)  # the chest changes slowly along w: one plane stands for the thickness
        where = field_map(self.cu, self.cv, w, self.protocol.receiver.shim, self.shim, self.spot)
        points = points_of_voxels(still[None], self.samples)
        scene = mean_signal(points, where, self.table)
        ground = majority(points)
        box, inner = self._box(u, v, depths, beats)
        polar = [self._polar(u[inner[0]], v[:, inner[1]], depth) for depth in depths]
        spins = np.repeat(scene[None], len(beats), axis=0)
        recorded = {}
        for frame, beat in enumerate(beats):
            moving = [
                _compose(still[inner], self.heart, depth, beat, *at) for depth, at in zip(depths, polar, strict=True)
            ]
            points = points_of_voxels(np.stack(moving), self.samples)
            spins[frame][box] = mean_signal(points, where[box], self.table)
            if frame in record:
                factor, label = ground.copy(), np.zeros_like(ground)
                factor[box], label[box] = majority(points), label_majority(points, self.labels)
                recorded[frame] = (label[self.view], factor[self.view])
        spins *= 1 + np.float32(0.035) * self.grain(self.cu, self.cv)
        receiver = self.protocol.receiver
        sense = coil_sensitivity(self.cu, self.cv, w, receiver, self.front, self.back, axis=1)
        sigma = self.blood / receiver.snr
        image = acquire(spins, sense, self.matrix, receiver.window, sigma, receiver.normalized, self.rng)
        counts = np.clip(np.rint(self.gain * image), 0, 32767).astype(np.int16)
        return np.moveaxis(counts[(slice(None), *self.view)], 0, -1), recorded

    def _box(
        self, u: Floats, v: Floats, depths: list[float], beats: list[float]
    ) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
        """Return the voxels that the heart ever covers in this slice, and their points."""
        sides: list[NDArray[np.float64]] = []
        for depth in depths:
            at = np.array(self.heart.axis(depth)).repeat(2)
            boxes = [self.heart.section(depth, beat).extent() for beat in (min(beats), max(beats))]
            if self.heart.base_at(max(beats)) - depth > _ATRIA_FROM:
                boxes.append(_atria_extent(self.heart))
            sides.extend(at + np.array(box) for box in boxes)
        left, right, top, bottom = np.array(sides).T
        n = self.samples
        found = []
        for grid, low, high in ((u[::n, 0], left.min(), right.max()), (v[0, ::n], top.min(), bottom.max())):
            first, last = np.searchsorted(grid, (low, high))
            found.append(slice(max(0, int(first) - 1), int(last) + 1))
        inner = [slice(part.start * n, part.stop * n) for part in found]
        return (found[0], found[1]), (inner[0], inner[1])

    def _polar(self, u: Floats, v: Floats, w: float) -> tuple[Floats, Floats, Floats, NDArray[np.intp]]:
        at = self.heart.axis(w)
        du, dv = u - np.float32(at[0]), v - np.float32(at[1])
        angle = ((np.arctan2(dv, du) / (2 * np.pi) + 0.5) * ANGLES).astype(np.intp)
        return du, dv, np.hypot(du, dv), np.minimum(angle, ANGLES - 1)


def _compose(
    ground: Tissues, heart: Heart, w: float, beat: float, du: Floats, dv: Floats, r: Floats, angle: NDArray[np.intp]
) -> Tissues:
    """Paint the heart over the chest: fat, atria, right ventricle, left ventricle, papillaries."""
    section: Section = heart.section(w, beat)
    image = ground.copy()
    above = heart.base_at(beat) - w
    left, right, top, bottom = section.extent()
    middle, half = ((left + right) / 2, (top + bottom) / 2), ((right - left) / 2, (bottom - top) / 2)
    rows, cols = window(du, dv, middle, half)
    view, near, r, angle = image[rows, cols], (du[rows], dv[:, cols]), r[rows, cols], angle[rows, cols]
    if section.has_left or section.has_right:
        outside = section.outside[angle]
        view[r < outside + 1.5] = _CODE["pericardium"]
        view[r < outside] = _CODE["epicardial_fat"]
    if above > _ATRIA_FROM:
        _atria(image, du, dv, heart, above, beat)
    if section.has_right:
        rv, core = section.rv[angle], section.core[angle]
        hollow = (rv > core + 0.5) & (r >= core)
        view[hollow & (r < rv + 3.5)] = _CODE["rv_wall"]
        view[hollow & (r < rv)] = _CODE["rv_trabeculae"]
        view[hollow & (r < section.rv_ridge[angle])] = _CODE["rv_blood"]
    if section.has_left:
        view[r < section.epi[angle]] = _CODE["lv_myocardium"]
        view[r < section.endo[angle]] = _CODE["lv_trabeculae"]
        view[r < section.ridge[angle]] = _CODE["lv_blood"]
        for pu, pv, across, along, turn in section.papillary:
            paint(view, *near, (pu, pv), (along, across), turn, _CODE["papillary"], _CAVITY)
    return image


def _atria(image: Tissues, du: Floats, dv: Floats, heart: Heart, above: float, beat: float) -> None:
    """Paint both atria, the aortic root and the outflow tract ``above`` mm over the mitral plane."""
    grow = float(np.clip(0.75 + above / 30, 0.5, 1.0)) * (1 + 0.08 * beat) * heart.radius / 25
    unit = heart.radius / 25
    for border, tissue in ((6.0, "epicardial_fat"), (1.4, "atrial_wall"), (0.0, "")):
        for name, at, half, turn in _ATRIA:
            size = (half[0] * grow + border, half[1] * grow + border)
            paint(image, du, dv, (at[0] * unit, at[1] * unit), size, turn, _CODE[tissue or name])


def _atria_extent(heart: Heart) -> tuple[float, float, float, float]:
    unit = 1.1 * heart.radius / 25
    low = [min(at[k] - max(half) for _, at, half, _ in _ATRIA) * unit - 8 for k in (0, 1)]
    high = [max(at[k] + max(half) for _, at, half, _ in _ATRIA) * unit + 8 for k in (0, 1)]
    return low[0], high[0], low[1], high[1]
