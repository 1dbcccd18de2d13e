# SPDX-License-Identifier: Apache-2.0
"""Facts of scans that decide how they are learnt from: grid, orientation, intensity, where the labels are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.data.datalist import Datalist, Row
from vmfseg.data.geometry import voxel_sizes
from vmfseg.data.masks import read_frame, read_row_label
from vmfseg.data.orientation import Pose, class_direction, slice_frame, stack_affine, stack_array
from vmfseg.transforms.annotation import slice_table
from vmfseg.transforms.annotation_text import slices_text
from vmfseg.transforms.spatial import ANISOTROPY, slice_axis, slice_stack_axcodes
from vmfseg.utils import VmfError

__all__ = ["ScanFacts", "by_domain", "measure_scan", "measure_scans", "refuse_isotropic", "undrawn_ends"]

_LARGE = 0.25  # of the largest area in a slice: anatomy that ends within the stack tapers off at one end at least
_DEEP = 24  # slices from which a stack of thin slices is a volume and not a few slices


@dataclass(frozen=True)
class ScanFacts:
    """Facts of one scan in slice space: axes ``(H, W, D)``, the slice axis last.

    Attributes:
        row: of the datalist.
        spacing: along the three axes in mm.
        shape: voxels along the three axes.
        codes: where the axes point to, for instance ``"RAS"``.
        pose: frame and directions between structures.
        intensity: percentiles 1, 50 and 99.
        reach: how far labels lie from the center of the image at most, along ``H`` and ``W`` in mm; none without label.
        widths: of each class, diameter in mm of a disc of its area, the median over its slices.
        drawn: slices that count as annotated, none for an unlabelled scan.
        empty: slices among ``drawn`` without a label.
        undrawn: drawn slices as text, where the ends of the stack look as if nobody had drawn them.
    """

    row: Row
    spacing: tuple[float, float, float]
    shape: tuple[int, int, int]
    codes: str
    pose: Pose
    intensity: tuple[float, float, float]
    reach: tuple[float, float] | None = None
    widths: Mapping[int, float] = field(default_factory=dict)
    drawn: int = 0
    empty: int = 0
    undrawn: str | None = None

    @property
    def in_plane(self) -> float:
        """In-plane spacing in mm, the geometric mean of both axes."""
        return math.sqrt(self.spacing[0] * self.spacing[1])

    @property
    def extent(self) -> tuple[float, float]:
        """Field of view in mm."""
        return self.spacing[0] * self.shape[0], self.spacing[1] * self.shape[1]

    @property
    def is_isotropic(self) -> bool:
        """Whether it is a volume of cubes rather than a stack of slices."""
        return self.shape[2] >= _DEEP and self.spacing[2] < (ANISOTROPY - 1e-3) * max(self.spacing[:2])


def measure_scans(
    datalist: Datalist, *, workers: int = 1, progress: Callable[[int, int], None] | None = None
) -> list[ScanFacts]:
    """Measure every row of a datalist, in its order.

    Args:
        datalist: what to read.
        workers: threads that read files.
        progress: called with (rows done, all rows).

    Raises:
        VmfError: what the reader refuses; ``vmfseg verify`` lists all of it.
    """
    found = []
    with ThreadPoolExecutor(workers) as pool:
        for facts in pool.map(lambda row: measure_scan(datalist, row), datalist.rows):
            found.append(facts)
            if progress is not None:
                progress(len(found), len(datalist.rows))
    return found


def measure_scan(datalist: Datalist, row: Row) -> ScanFacts:
    """Read one row and measure it.

    Raises:
        VmfError: what the reader refuses.
    """
    image = read_frame(datalist.path(row.images[0]), row.frame)
    axis = slice_axis(image.affine, image.array.shape)
    codes = slice_stack_axcodes(image.affine, image.array.shape)
    pixels = stack_array(image.array, image.affine)
    across, along, thick = (float(size) for size in voxel_sizes(stack_affine(image.affine, image.array.shape)))
    spacing = (across, along, thick)
    frame = slice_frame(image.affine, image.array.shape)
    low, middle, high = (float(value) for value in np.percentile(pixels, (1, 50, 99)))
    height, width, depth = pixels.shape
    facts: dict[str, Any] = {}
    directions: dict[tuple[int, int], tuple[float, float]] = {}
    if row.is_labeled:
        label = read_row_label(datalist, row, image)
        classes = stack_array(label.array, image.affine)
        directions = class_direction(classes, spacing[:2])
        areas = (label.array > 0).sum(axis=tuple(k for k in range(3) if k != axis))
        slices = datalist.slices_of(row)
        known = np.ones(len(areas), bool)
        if slices is not None:
            known = slice_table(slices_text(slices), datalist.num_classes, len(areas))[0].numpy()
        facts = {
            "reach": _reach(classes > 0, spacing),
            "widths": _widths(classes, spacing),
            "drawn": int(known.sum()),
            "empty": int((known & (areas == 0)).sum()),
            "undrawn": None if slices is not None else undrawn_ends(areas),
        }
    pose = Pose(row.domain, row.subject, frame, directions)
    return ScanFacts(row, spacing, (height, width, depth), codes, pose, (low, middle, high), **facts)


def by_domain(facts: Sequence[ScanFacts]) -> dict[str, list[ScanFacts]]:
    """Group scans by domain, sorted."""
    groups: dict[str, list[ScanFacts]] = defaultdict(list)
    for scan in facts:
        groups[scan.row.domain].append(scan)
    return dict(sorted(groups.items()))


def refuse_isotropic(facts: Sequence[ScanFacts]) -> None:
    """Refuse isotropic volumes: networks of this package look at slices.

    Raises:
        VmfError: VMF242.
    """
    cubes = [scan for scan in facts if scan.is_isotropic]
    if cubes:
        first = cubes[0]
        sizes = " x ".join(f"{size:.2g}" for size in first.spacing)
        raise VmfError(
            "VMF242",
            subject=", ".join(first.row.images),
            found=f"voxels of {sizes} mm, {first.shape[2]} slices ({len(cubes)} of {len(facts)} scans like that)",
        )


def undrawn_ends(areas: npt.NDArray[Any]) -> str | None:
    """Return the drawn slices as text, if slices at an end of a stack look as if nobody had drawn them.

    Anatomy that ends within the stack tapers off at one end at least (a heart at its apex). So slices were left out
    where an end is empty and no end tapers: both the first and the last drawn area are at least a quarter of the
    largest.

    Args:
        areas: labelled voxels of each slice.

    Example:
        >>> undrawn_ends(np.array([90, 99, 95, 0, 0])), undrawn_ends(np.array([0, 90, 99, 40, 9])) is None
        ('0-2', True)
    """
    drawn = np.flatnonzero(areas)
    if not len(drawn) or (areas[0] and areas[-1]) or min(areas[drawn[0]], areas[drawn[-1]]) < _LARGE * areas.max():
        return None
    return f"{drawn[0]}-{drawn[-1]}"


def _reach(mask: npt.NDArray[np.bool_], spacing: Sequence[float]) -> tuple[float, float] | None:
    """Return how far a mask reaches from the center of the image along the in-plane axes, in mm."""
    found = []
    for axis in (0, 1):
        places = np.flatnonzero(mask.any(axis=(1 - axis, 2)))
        if not len(places):
            return None
        center = mask.shape[axis] / 2
        found.append(max(center - places[0], places[-1] + 1 - center) * spacing[axis])
    return float(found[0]), float(found[1])


def _widths(classes: npt.NDArray[np.float32], spacing: Sequence[float]) -> dict[int, float]:
    widths = {}
    for value in np.unique(classes):
        areas = (classes == value).sum(axis=(0, 1))
        area = float(np.median(areas[areas > 0])) * spacing[0] * spacing[1]
        widths[int(value)] = 2 * math.sqrt(area / math.pi)
    return {value: width for value, width in widths.items() if value}
