# SPDX-License-Identifier: Apache-2.0
"""Draw the slices of a prediction with their labels on top."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.patches import Patch
from monai.data import MetaTensor

from vmfseg.model.prediction import Prediction
from vmfseg.transforms.intensity import PercentileNormalize
from vmfseg.transforms.spatial import ToSliceStack
from vmfseg.visualize.figure_style import INK, class_color, new_figure, overlay, png_bytes, upright

__all__ = ["draw_overlay"]

_PANE = 1.9  # inches
_MARGIN = 0.35  # of the structures' size around them
_SLICES = 40


def draw_overlay(prediction: Prediction, labels: Mapping[int, str], frame: int | None = None) -> bytes:
    """Draw the slices of a frame with their labels, cropped to where there are any, as PNG.

    Slices are shown as radiologists look at them. Of many slices, evenly spaced ones are shown.

    Args:
        prediction: of a scan.
        labels: class names by value.
        frame: which one of a cine; default the first that was segmented.
    """
    number = prediction.frames[0] if frame is None else frame
    image = prediction.scan.frame(number)
    grid = prediction.labels.reshape(prediction.scan.header.shape)
    voxels = grid[..., number] if grid.ndim == 4 else grid
    mask = MetaTensor(torch.from_numpy(np.ascontiguousarray(voxels))[None], affine=image.affine)
    stack = ToSliceStack()
    pixels = PercentileNormalize(0.5, 99.5)(stack(image))[0].numpy()
    classes = stack(mask)[0].numpy()
    steps = stack(image).pixdim.tolist()
    count = pixels.shape[2]
    chosen = np.unique(np.linspace(0, count - 1, min(count, _SLICES)).round().astype(int))
    box = _box(classes.any(axis=2), steps[0] / steps[1])
    columns = min(6, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    size = ((box[0].stop - box[0].start) * steps[0], (box[1].stop - box[1].start) * steps[1])
    height = _PANE * size[1] / size[0] + 0.2
    figure = new_figure(max(4.0, _PANE * columns), height * rows + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, k in zip(axes.flat, chosen, strict=False):
        shape: dict[str, Any] = {"interpolation": "nearest", "aspect": steps[1] / steps[0]}
        axis.imshow(upright(pixels[..., k][box]), cmap="gray", vmin=0, vmax=1, **shape)
        axis.imshow(upright(overlay(classes[..., k][box], alpha=0.4)), **shape)
        axis.set_title(f"slice {k + 1} of {count}", fontsize=7, color=INK, pad=2)
    if prediction.scan.num_frames > 1:
        figure.suptitle(f"frame {number}", fontsize=9, color=INK)
    handles = [Patch(color=class_color(value), label=name) for value, name in sorted(labels.items()) if value]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    return png_bytes(figure)


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
