# SPDX-License-Identifier: Apache-2.0
"""Draw the slices of a prediction with the outlines of its structures and its flag."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from monai.data import MetaTensor

from vmfseg.model.prediction import Prediction
from vmfseg.transforms.intensity import PercentileNormalize
from vmfseg.transforms.spatial import ToSliceStack
from vmfseg.visualize.figure_style import FLAGS, INK, class_color, new_figure, outer_first, png_bytes, upright

__all__ = ["draw_overlay", "overlay_figure"]

_PANE = 1.9  # inches
_MARGIN = 0.35  # of the structures' size around them
_SLICES = 40
_COLUMNS = 6  # at most
_LETTERS = 12  # of the title, in an inch
_FRAMES = 4  # of a cine, if its phases are not known


def draw_overlay(prediction: Prediction, labels: Mapping[int, str], frame: int | None = None) -> bytes:
    """Return :func:`overlay_figure` as PNG."""
    return png_bytes(overlay_figure(prediction, labels, frame))


def overlay_figure(prediction: Prediction, labels: Mapping[int, str], frame: int | None = None) -> Figure:
    """Draw the slices with the outlines of the structures, cropped to where there are any.

    Slices are shown as radiologists look at them: those with structures and their neighbors, of many evenly spaced
    ones; all where there is no structure. Of a cine, end-diastole and end-systole are shown where they are known, else
    the first frames that were segmented; every frame is named. The flag is in the corner, with its reasons.

    Args:
        prediction: of a scan.
        labels: class names by value.
        frame: this one alone; default those above.
    """
    numbers = [frame] if frame is not None else _frames(prediction)
    grid = prediction.labels.reshape(prediction.scan.header.shape)
    stacks = [_stack(prediction, grid, number) for number in numbers]
    _, shown, steps = stacks[0]
    count = shown.shape[2]
    drawn = np.flatnonzero(np.any([classes.any(axis=(0, 1)) for _, classes, _ in stacks], axis=0))
    first, last = (max(0, drawn[0] - 1), min(count - 1, drawn[-1] + 1)) if len(drawn) else (0, count - 1)
    shown_at_most = min(last - first + 1, max(4, _SLICES // len(stacks)))
    chosen = np.unique(np.linspace(first, last, shown_at_most).round().astype(int))
    box = _box(np.any([classes.any(axis=2) for _, classes, _ in stacks], axis=0), steps[0] / steps[1])
    rows = math.ceil(len(chosen) / _COLUMNS)
    columns = math.ceil(len(chosen) / rows)  # rows of equal length: 4 and 3, not 6 and 1
    size = ((box[0].stop - box[0].start) * steps[0], (box[1].stop - box[1].start) * steps[1])
    height = _PANE * size[1] / size[0] + 0.2
    figure = new_figure(max(5.0, _PANE * columns), height * rows * len(stacks) + 0.9)
    axes = figure.subplots(rows * len(stacks), columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for position, (number, (pixels, classes, _)) in enumerate(zip(numbers, stacks, strict=True)):
        name = _frame_name(prediction, number)
        panes = axes[position * rows : (position + 1) * rows].flat
        for axis, k in zip(panes, chosen, strict=False):
            aspect = steps[1] / steps[0]
            picture = upright(pixels[..., k][box])
            axis.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect=aspect)
            _outline(axis, upright(classes[..., k][box]))
            axis.set_title(f"{name}slice {k + 1} of {count}", fontsize=7, color=INK, pad=2)
    handles = [Line2D([], [], color=class_color(v), label=name) for v, name in sorted(labels.items()) if v]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    light = str(prediction.quality.get("light", "unknown"))
    reasons = "; ".join(prediction.quality.get("light_reasons", []))
    dice = prediction.quality.get("predicted_dice")
    text = (
        light.upper() + ("" if dice is None else f"  predicted Dice {dice:.2f}") + (f"  {reasons}" if reasons else "")
    )
    lines = textwrap.wrap(text, int(_LETTERS * figure.get_figwidth()), max_lines=2, placeholder=" ...")
    title = figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=8, color="white", weight="bold")
    title.set_bbox({"facecolor": FLAGS[light], "edgecolor": "none", "boxstyle": "round,pad=0.3"})
    return figure


def _frames(prediction: Prediction) -> list[int]:
    phases = prediction.quality.get("phases", {})
    named = list(dict.fromkeys(number for _, number in sorted(phases.items()) if number in prediction.frames))
    return named or list(prediction.frames[:_FRAMES])


def _frame_name(prediction: Prediction, number: int) -> str:
    if prediction.scan.num_frames == 1:
        return ""
    phase = next((p for p, n in prediction.quality.get("phases", {}).items() if n == number), "")
    return f"{phase} (frame {number}), " if phase else f"frame {number}, "


def _stack(
    prediction: Prediction, grid: npt.NDArray[Any], number: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], list[float]]:
    """Return gray values and classes of a frame with the slices last, and the spacings."""
    image = prediction.scan.frame(number)
    voxels = grid[..., number] if grid.ndim == 4 else grid
    mask = MetaTensor(torch.from_numpy(np.ascontiguousarray(voxels))[None], affine=image.affine)
    stack = ToSliceStack()
    ordered = stack(image)
    return PercentileNormalize(0.5, 99.5)(ordered)[0].numpy(), stack(mask)[0].numpy(), ordered.pixdim.tolist()


def _outline(axis: Any, classes: npt.NDArray[Any]) -> None:
    """Draw the border of every class along the edges of its pixels' centers, inner ones over outer ones."""
    for value in outer_first(classes):
        padded = np.pad(classes == value, 1).astype(float)  # so that a structure at the edge is closed
        places = (np.arange(padded.shape[1]) - 1, np.arange(padded.shape[0]) - 1)
        axis.contour(*places, padded, levels=[0.5], colors=[class_color(value)], linewidths=0.9)


def _box(shown: npt.NDArray[np.bool_], ratio: float) -> tuple[slice, slice]:
    """Return a square in mm around what is shown, with a margin; all of the picture where nothing is."""
    if not shown.any():
        return slice(0, shown.shape[0]), slice(0, shown.shape[1])
    first = [np.flatnonzero(shown.any(axis=1 - axis))[[0, -1]] for axis in (0, 1)]
    scale = (ratio, 1.0)  # length of a pixel along each axis, in pixels of the second
    side = max((high - low + 1) * scale[axis] for axis, (low, high) in enumerate(first)) * (1 + 2 * _MARGIN)
    slices = []
    for axis, (low, high) in enumerate(first):
        middle, half = (low + high + 1) / 2, side / scale[axis] / 2
        start, stop = max(0, round(middle - half)), min(shown.shape[axis], round(middle + half))
        slices.append(slice(int(start), int(max(stop, start + 1))))
    return slices[0], slices[1]
