# SPDX-License-Identifier: Apache-2.0
"""One neck on one scanner: axial T2*-weighted slices, four raters' masks, and the true tissue of every voxel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from vmfseg.phantom.acquisition import acquire, coil_sensitivity, field_map, frequency_axis, store
from vmfseg.phantom.cord import Neck, Rater, draw_neck, draw_raters
from vmfseg.phantom.partial_volume import majority, mean_signal, points_of_voxels
from vmfseg.phantom.shapes import Tissues, Waves, open_grid
from vmfseg.phantom.signal import inflow_fraction, spoiled_gre_table
from vmfseg.phantom.tissues import TISSUES
from vmfseg.phantom.vendors import CORD_SITES, CordProtocol
from vmfseg.utils import numpy_rng

__all__ = ["CordScan", "cord_name", "cord_protocol", "scan_cord"]

#: Mean speed in mm/s of cerebrospinal fluid (Enzmann and Pelc, Radiology 178:467, 1991) and of blood in the neck.
_SPEED = {"csf": 10.0, "vessel": 120.0, "aorta": 300.0}
_MARGIN = 16  # voxels at least that are simulated beyond the field of view
_SLABS = 2  # sub-slices through the thickness


@dataclass(frozen=True)
class CordScan:
    """The files of one subject: arrays in the site's order of axes, masks only for labeled subjects."""

    image: NDArray[np.int16]
    masks: tuple[NDArray[np.uint8], ...]
    factors: NDArray[np.uint8]
    affine: NDArray[np.float64]
    levels: tuple[str, ...]
    row: dict[str, object]


def cord_protocol(index: int) -> CordProtocol:
    """Return the site of subject ``index``: sites in turn."""
    return CORD_SITES[index % 4]


def cord_name(index: int) -> str:
    """Return the subject's name: labeled (01 to 10) and unlabeled (11 to 20) subjects in turn at every site.

    Example:
        >>> [cord_name(i) for i in (0, 1, 4, 8, 79)]
        ['site1-sc01', 'site2-sc01', 'site1-sc11', 'site1-sc02', 'site4-sc20']
    """
    turn = index // 4
    return f"site{cord_protocol(index).site}-sc{turn // 2 + (11 if turn % 2 else 1):02d}"


def scan_cord(index: int, seed: int, size: int | None = None) -> CordScan:
    """Make subject ``index`` of the phantom ``seed``. Nothing else decides what comes out.

    Args:
        index: number of the subject; it also picks the site.
        seed: seed of the phantom.
        size: largest in-plane matrix; sites with a finer one cover the same field of view with ``size`` voxels.
    """
    protocol = cord_protocol(index)
    person = numpy_rng(seed, "cord", index)
    neck, raters = draw_neck(person), draw_raters(person)
    machine = numpy_rng(seed, "cord", index, "scanner")
    camera = _Camera(neck, protocol, size, machine)
    places = [(k - (protocol.slices - 1) / 2) * protocol.thickness for k in range(protocol.slices)]
    image = np.zeros((*camera.shape, len(places)), np.int16, order="F")  # the order of the file
    factors = np.zeros(image.shape, np.uint8, order="F")
    labeled = (index // 4) % 2 == 0
    masks = np.zeros((4 if labeled else 0, *image.shape), np.uint8)
    for k, w in enumerate(places):
        image[..., k], factors[..., k] = camera.expose(w)
        for number in range(len(masks)):
            masks[number, ..., k] = camera.rate(raters[number], w)
    affine = _affine(camera, places, machine)
    receiver = protocol.receiver
    stored, world = store(image, affine, receiver)
    return CordScan(
        stored.astype(np.int16, copy=False),
        tuple(store(mask, affine, receiver)[0].astype(np.uint8, copy=False) for mask in masks),
        store(factors, affine, receiver)[0].astype(np.uint8, copy=False),
        world,
        tuple(neck.level(w) for w in (places[::-1] if receiver.flips[2] else places)),
        {"site": protocol.site, "scanner": protocol.scanner, "labeled": labeled},
    )


def _affine(camera: _Camera, places: list[float], rng: np.random.Generator) -> NDArray[np.float64]:
    tilt, sway = np.deg2rad(rng.normal(9, 4)), np.deg2rad(rng.normal(0, 2))
    nod = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    turn = np.array([[np.cos(sway), -np.sin(sway), 0], [np.sin(sway), np.cos(sway), 0], [0, 0, 1]])
    frame = turn @ nod @ np.diag([-1.0, -1.0, 1.0])
    affine = np.eye(4)
    affine[:3, :3] = frame * np.array([camera.spacing, camera.spacing, camera.protocol.thickness])
    corner = [-(n - 1) / 2 * camera.spacing for n in camera.shape]
    affine[:3, 3] = frame @ np.array([*corner, places[0]]) + rng.normal(0, 6, 3)
    return affine


class _Camera:
    """Everything that stays the same over the slices of one subject."""

    def __init__(self, neck: Neck, protocol: CordProtocol, size: int | None, rng: np.random.Generator) -> None:
        self.neck, self.protocol, self.rng = neck, protocol, rng
        count = [2 * round(f / protocol.spacing / 2) for f in protocol.fov]
        self.spacing = protocol.spacing
        if size is not None and size < max(count):
            self.spacing = max(protocol.fov) / size
            count = [2 * round(f / self.spacing / 2) for f in protocol.fov]
        self.shape = (count[0], count[1])
        wide = [fft.next_fast_len(n + 2 * _MARGIN) for n in count]
        wide = [n + (n - c) % 2 for n, c in zip(wide, count, strict=True)]
        edge = [(n - c) // 2 for n, c in zip(wide, count, strict=True)]
        self.view = (slice(edge[0], edge[0] + count[0]), slice(edge[1], edge[1] + count[1]))
        self.samples = min(3, max(1, round(self.spacing / 0.25)))
        self.u, self.v = open_grid((wide[0], wide[1]), self.spacing, self.samples)
        self.cu, self.cv = open_grid((wide[0], wide[1]), self.spacing)
        self.matrix = (
            round(wide[0] * self.spacing / protocol.acquired[0]),
            round(wide[1] * self.spacing / protocol.acquired[1]),
        )
        length = protocol.slab
        inflow = {name: inflow_fraction(speed, protocol.tr, length) for name, speed in _SPEED.items()}
        self.tables = spoiled_gre_table(
            frequency_axis(),
            tesla=protocol.tesla,
            tr=protocol.tr,
            echoes=protocol.echoes,
            flip=protocol.flip,
            inflow=inflow,
            fat_suppression=protocol.fat_suppression,
        )
        middle = self.tables.shape[2] // 2
        self.fluid = float(np.abs(self.tables[:, TISSUES["csf"].code, middle]).mean())
        self.gain = protocol.receiver.scale / self.fluid * float(np.exp(rng.normal(0, 0.12)))
        self.shim, self.grain = Waves.draw(rng, 50.0, 8), Waves.draw(rng, 1.5, 24)
        self.spot = (0.0, -40.0, float(rng.normal(60, 20)))

    def expose(self, w: float) -> tuple[NDArray[np.int16], Tissues]:
        """Return the stored slice at ``w`` and the tissue of its voxels."""
        thickness = self.protocol.thickness
        depths = [w + ((slab + 0.5) / _SLABS - 0.5) * thickness for slab in range(_SLABS)]
        points = points_of_voxels(np.stack([self.neck.tissue(self.u, self.v, d) for d in depths]), self.samples)
        receiver = self.protocol.receiver
        where = field_map(self.cu, self.cv, w, receiver.shim, self.shim, self.spot)
        texture = 1 + np.float32(0.025) * self.grain(self.cu, self.cv)
        sense = coil_sensitivity(self.cu, self.cv, w, receiver, (0.0, -75.0), (0.0, 75.0), axis=0)
        spins = np.stack([mean_signal(points, where, table) * texture for table in self.tables])
        # averaging n echoes lowers the noise by the root of n; the stated ratio is that of the final image
        sigma = self.fluid / receiver.snr * len(self.tables) ** 0.5
        echoes = acquire(spins, sense, self.matrix, receiver.window, sigma, receiver.normalized, self.rng)
        image = self.gain * echoes.mean(axis=0)[self.view]
        return np.clip(np.rint(image), 0, 32767).astype(np.int16), majority(points)[self.view]

    def rate(self, rater: Rater, w: float) -> NDArray[np.uint8]:
        """Return the mask that ``rater`` draws on the slice at ``w``."""
        u, v = self.cu[self.view[0]], self.cv[:, self.view[1]]
        near = self.neck.canal_window(u, v)
        mask = np.zeros(self.shape, np.uint8)
        u, v = u[near[0]], v[:, near[1]]
        mask[near] = rater.mask(self.neck.gray_distance(u, v, w), self.neck.cord_distance(u, v, w), u, v)
        return mask
