# SPDX-License-Identifier: Apache-2.0
"""Contact sheet: one slice of each domain, so that turned or mirrored sites are seen before a training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.patches import Patch, Rectangle

from vmfseg.data.datalist import Datalist
from vmfseg.data.masks import read_frame, read_row_label
from vmfseg.data.orientation import stack_array
from vmfseg.data.scan_facts import ScanFacts, by_domain
from vmfseg.visualize.figure_style import INK, class_color, new_figure, outer_first, png_bytes, upright

__all__ = ["SheetPane", "draw_contact_sheet", "sheet_panes"]

Array = npt.NDArray[Any]

_PANE, _COLUMNS = 2.7, 4  # inches
_OPPOSITE = {"R": "L", "A": "P", "S": "I"}


@dataclass(frozen=True)
class SheetPane:
    """The slice of one domain in slice space.

    Attributes:
        title: domain, subject, slice and spacing.
        image: ``HW`` intensities.
        label: ``HW`` class numbers, or ``None``.
        spacing: of the pixels in mm.
        codes: where the two axes point to, ``"RA"``.
    """

    title: str
    image: Array
    label: Array | None
    spacing: tuple[float, float]
    codes: str


def sheet_panes(datalist: Datalist, facts: Sequence[ScanFacts]) -> list[SheetPane]:
    """Read one slice of each domain: of its first labelled scan the slice with most label, else a middle slice.

    Args:
        datalist: where the files are.
        facts: of its scans.
    """
    panes = []
    for domain, scans in by_domain(facts).items():
        scan = next((scan for scan in scans if scan.reach is not None), scans[0])
        row = scan.row
        image = read_frame(datalist.path(row.images[0]), row.frame)
        pixels, classes, k = stack_array(image.array, image.affine), None, scan.shape[2] // 2
        if scan.reach is not None:
            stack = stack_array(read_row_label(datalist, row, image).array, image.affine)
            k = int((stack > 0).sum(axis=(0, 1)).argmax())
            classes = stack[..., k].astype(np.uint8)
        whose = domain if row.subject == domain else f"{domain}\n{row.subject}"
        text = f"{whose}\nslice {k + 1} of {scan.shape[2]}, {scan.in_plane:.2g} mm"
        panes.append(SheetPane(text, pixels[..., k], classes, scan.spacing[:2], scan.codes[:2]))
    return panes


def draw_contact_sheet(panes: Sequence[SheetPane], labels: Mapping[int, str], window: float | None = None) -> bytes:
    """Draw the slices at one scale, as the network gets them, with the outlines of their labels, as PNG.

    Letters at the edges say where the sides lie by the header: right, left, anterior, posterior, superior, inferior.
    Sites that lie alike show the organ alike; one that is turned or mirrored stands out.

    Args:
        panes: from :func:`sheet_panes`.
        labels: class names by number.
        window: side in mm of the square that the network will see, drawn dashed.
    """
    columns = min(_COLUMNS, len(panes))
    rows = math.ceil(len(panes) / columns)
    figure = new_figure(max(4.5, _PANE * columns), (_PANE + 0.5) * rows + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False)
    extents = [(size * step) for pane in panes for size, step in zip(pane.image.shape, pane.spacing, strict=True)]
    half = max([*extents, window or 0.0]) / 2 * 1.04
    for axis in axes.flat:
        axis.axis("off")
    for axis, pane in zip(axes.flat, panes, strict=False):
        _draw(axis, pane, half, window)
    shown = sorted({int(value) for pane in panes if pane.label is not None for value in np.unique(pane.label)} - {0})
    handles: list[Any] = [Patch(color=class_color(value), label=labels[value]) for value in shown]
    if window is not None:
        handles.append(
            Patch(fill=False, linestyle="--", edgecolor=INK, label=f"window of the network, {window:.0f} mm")
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=max(1, len(handles)), frameon=False, fontsize=8)
    figure.suptitle("One slice of each domain, as the network gets it", fontsize=10, color=INK)
    return png_bytes(figure)


def _draw(axis: Any, pane: SheetPane, half: float, window: float | None) -> None:
    low, high = (float(value) for value in np.percentile(pane.image, (0.5, 99.5)))
    sides = [size * step / 2 for size, step in zip(pane.image.shape, pane.spacing, strict=True)]
    place: dict[str, Any] = {"extent": (-sides[0], sides[0], -sides[1], sides[1])}
    axis.set_facecolor("black")
    axis.add_patch(Rectangle((-half, -half), 2 * half, 2 * half, color="black", zorder=0))
    axis.imshow(
        upright(pane.image), cmap="gray", vmin=low, vmax=max(high, low + 1e-6), interpolation="nearest", **place
    )
    for value in [] if pane.label is None else outer_first(pane.label):
        mask = upright(np.asarray(pane.label == value))
        axis.contour(mask, levels=[0.5], colors=class_color(value), linewidths=1.0, origin="upper", **place)
    if window is not None:
        corner = (-window / 2, -window / 2)
        axis.add_patch(Rectangle(corner, window, window, fill=False, linestyle="--", edgecolor="white", linewidth=0.8))
    first, second = pane.codes[0], pane.codes[1]
    edges = ((0.03, 0.5, first), (0.97, 0.5, _OPPOSITE[first]), (0.5, 0.96, second), (0.5, 0.04, _OPPOSITE[second]))
    for x, y, letter in edges:
        axis.text(x, y, letter, transform=axis.transAxes, color="#f0e442", fontsize=8, ha="center", va="center")
    axis.set_xlim(-half, half)
    axis.set_ylim(-half, half)
    axis.set_aspect("equal")
    axis.set_title(pane.title, fontsize=8, color=INK, pad=3)
