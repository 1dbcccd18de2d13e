# SPDX-License-Identifier: Apache-2.0
"""Style of all figures: color-blind safe colors, no display, reproducible PNG files."""

from __future__ import annotations

import io
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

__all__ = [
    "FLAGS",
    "INK",
    "MUTED",
    "WARN",
    "class_color",
    "new_figure",
    "outer_first",
    "overlay",
    "png_bytes",
    "upright",
]

Array = npt.NDArray[Any]

INK, MUTED, WARN = "#1b2430", "#6b7785", "#c0392b"
#: Colors of the flags, dark enough for white letters.
FLAGS = {"green": "#1e7d46", "amber": "#b26a00", "red": "#c0392b", "unknown": "#6b7785"}
_COLORS = ("#e69f00", "#009e73", "#56b4e9", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#999999")


def class_color(label: int) -> str:
    """Return the color of a class; 0 is background and has none of its own.

    Example:
        >>> class_color(1), class_color(9) == class_color(1)
        ('#e69f00', True)
    """
    return _COLORS[(label - 1) % len(_COLORS)]


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Figure:
    """Return an empty figure of the house style, in inches; it is bound to no display."""
    figure = Figure(figsize=(width, height), facecolor="white", layout=layout)
    FigureCanvasAgg(figure)
    return figure


def png_bytes(figure: Figure, dpi: int = 110) -> bytes:
    r"""Return a figure as PNG. The same figure gives the same bytes.

    Example:
        >>> png_bytes(new_figure(1, 1), dpi=10)[:4]
        b'\x89PNG'
    """
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None})
    return stream.getvalue()


def upright(picture: Array) -> Array:
    """Turn a slice ``HW`` as radiologists look at it.

    In slice space the axes point to the patient's right and to the front or head; on the screen the right side is on
    the left, front or head on top.
    """
    return np.swapaxes(picture, 0, 1)[::-1, ::-1]


def outer_first(labels: Array) -> list[int]:
    """Return the classes of a label map by their extent: drawn so, an inner outline lies over the outer one.

    Example:
        >>> outer_first(np.array([[2, 2, 2], [2, 1, 2], [2, 2, 2]]))
        [2, 1]
    """
    values = [int(value) for value in np.unique(labels) if value]
    return sorted(values, key=lambda value: -float((np.ptp(np.argwhere(labels == value), axis=0) + 1).prod()))


def overlay(labels: Array, alpha: float = 0.5) -> Array:
    """Return a label map ``HW`` as RGBA ``HW4``, the background transparent."""
    picture = np.zeros((*labels.shape, 4))
    for label in np.unique(labels):
        if label:
            picture[labels == label] = (*to_rgb(class_color(int(label))), alpha)
    return picture
