# SPDX-License-Identifier: Apache-2.0
"""Draw one slice: image, truth, prediction, reconstruction and activation maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .activations import ChannelLabel
from .figure_style import INK, MUTED, class_color, new_figure, overlay, upright
from .slice_views import SliceView

__all__ = ["draw_montage"]

Array = npt.NDArray[Any]

_COLUMNS = 6
_PANE, _PITCH, _TITLE, _BAR = 1.66, 1.74, 0.25, 0.45  # inches


def draw_montage(
    view: SliceView,
    labels: Mapping[int, str],
    channels: Sequence[ChannelLabel] | None = None,
    columns: int = _COLUMNS,
) -> Figure:
    """Draw image, truth, prediction, reconstruction and all ``J`` activation maps of one slice.

    A network without kernels has no maps; the first row is drawn alone.

    The maps stand in the order of ``channels``, each with the anatomy it matches; all share one scale from 0 to 1. The
    outline of the truth is drawn over the prediction.

    Args:
        view: the slice.
        labels: name of every class by voxel value.
        channels: from :func:`vmfseg.visualize.activations.order_channels`; by default all, in their own order.
        columns: maps in a row.

    Raises:
        ValueError: if ``channels`` names a kernel that is not there.
    """
    maps = () if view.activations is None else view.activations
    count = len(maps)
    order = [ChannelLabel(j, "", None) for j in range(count)] if channels is None else list(channels)
    if sorted(entry.channel for entry in order) != list(range(count)):
        raise ValueError(
            f"channels must name each of the {count} kernels once, got {[entry.channel for entry in order]}. "
            "Take them from order_channels of the same network."
        )
    columns = max(4, min(columns, count))
    rows = math.ceil(count / columns)
    figure = new_figure(columns * _PITCH + _BAR, (rows + 1) * (_PANE + _TITLE), layout=None)
    low, high = float(view.image.min()), float(max(view.image.max(), view.image.min() + 1e-6))
    gray: dict[str, Any] = {"cmap": "gray", "vmin": low, "vmax": high}
    _show(_pane(figure, 0, 0), view.image, "image", gray)
    truth = _pane(figure, 0, 1)
    _show(truth, view.image, "truth" if view.truth is not None else "no truth", gray)
    pred = _pane(figure, 0, 2)
    _show(pred, view.image, "prediction", gray)
    pred.imshow(upright(overlay(view.pred)), interpolation="nearest")
    if view.truth is not None:
        truth.imshow(upright(overlay(view.truth)), interpolation="nearest")
        _outline(pred, view.truth)
    if view.reconstruction is not None:
        _show(_pane(figure, 0, 3), view.reconstruction, "reconstruction", gray)
    handles = [Patch(color=class_color(label), label=name) for label, name in sorted(labels.items()) if label]
    inside = columns == 4 and view.reconstruction is not None  # no room beside the four panes
    place = pred if inside else _pane(figure, 0, 4 if columns > 4 else 3)
    place.axis("off")
    place.legend(
        handles=handles, loc="lower left" if inside else "center left", frameon=inside, fontsize=8, labelcolor=INK
    )
    heat: dict[str, Any] = {"cmap": "magma", "vmin": 0, "vmax": 1}
    for number, entry in enumerate(order):
        axis = _pane(figure, 1 + number // columns, number % columns)
        title = f"kernel {entry.channel}" + (f": {entry.name}" if entry.name else "")
        shown = _show(axis, maps[entry.channel], title, heat)
        if entry.dice is not None:
            text = f"{entry.dice:.2f}"
            axis.text(0.03, 0.03, text, transform=axis.transAxes, color="white", fontsize=7, va="bottom")
        if number == 0:
            bar = figure.colorbar(shown, cax=_pane(figure, 1, columns, width=0.09))
            bar.ax.tick_params(labelsize=7, colors=MUTED, length=2)
            bar.outline.set_visible(False)
    return figure


def _pane(figure: Figure, row: int, column: int, width: float = _PANE) -> Any:
    """Add axes at a place of the grid, in inches; matplotlib's own layout is slow for many maps."""
    total = figure.get_size_inches()
    left, top = column * _PITCH + 0.04, row * (_PANE + _TITLE) + _TITLE
    return figure.add_axes(
        (left / total[0], 1 - (top + _PANE) / total[1], width / total[0], _PANE / total[1]), frameon=False
    )


def _show(axis: Any, picture: Array, title: str, style: Mapping[str, Any]) -> Any:
    axis.set_title(title, fontsize=8, color=INK, pad=3)
    axis.axis("off")
    return axis.imshow(upright(picture), interpolation="nearest", **style)


def _outline(axis: Any, labels: Array) -> None:
    for label in np.unique(labels):
        if label:
            axis.contour(upright(labels == label), levels=[0.5], colors="white", linewidths=0.8)
