# SPDX-License-Identifier: Apache-2.0
"""Render the report as one self-contained HTML file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import jinja2
from matplotlib.figure import Figure

from vmfseg import __version__

from .figure_style import png_bytes

__all__ = ["Page", "Picture", "picture"]


@dataclass(frozen=True)
class Picture:
    """A picture in the page: PNG as text, size in CSS pixels, and what a reader who cannot see it gets."""

    data: str
    width: int
    height: int
    alt: str


@dataclass
class Page:
    """Everything the template shows; whatever is empty leaves its section out. All text is escaped.

    Attributes:
        title: of the run.
        lead: one line below it.
        cards: headline figures as ``(value, what it is, whether it is bad news)``.
        notes: what the reader should know first.
        cases: worst first: ``title``, ``facts`` (lines) and ``picture``.
        typical: the same of the median case, or ``None``.
        classes: rows of the table domain × class.
        class_names: columns of the table of volumes.
        volumes: rows of that table.
        boxes: picture of the scores.
        history: picture of the training.
        confusion: picture of kernels and tissues.
        confusion_note: how to read it.
        kernels: rows of the table of kernels.
        kernel_note: where their figures come from.
        cardiac: rows of the table of volumes and ejection fraction.
        reference: lines of the reference's figures, if asked for.
        facts: groups of the manifest as ``(title, [(key, value), ...])``.
        definitions: ``(name, unit, text)``.
        policy: of empty masks.
    """

    title: str
    lead: str
    cards: list[tuple[str, str, bool]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)
    typical: dict[str, Any] | None = None
    classes: list[dict[str, Any]] = field(default_factory=list)
    class_names: list[str] = field(default_factory=list)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    boxes: Picture | None = None
    history: Picture | None = None
    confusion: Picture | None = None
    confusion_note: str = ""
    kernels: list[dict[str, Any]] = field(default_factory=list)
    kernel_note: str = ""
    cardiac: list[dict[str, Any]] = field(default_factory=list)
    reference: list[str] = field(default_factory=list)
    facts: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=list)
    definitions: list[tuple[str, str, str]] = field(default_factory=list)
    policy: str = ""

    def render(self) -> str:
        """Return the HTML. The same page gives the same text: no time, no path."""
        source = resources.files("vmfseg.visualize").joinpath("assets/report.html").read_text(encoding="utf-8")
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters.update(figure=_figure, signed=lambda value, digits: _figure(value, digits, sign=True))
        return environment.from_string(source).render(page=self, version=__version__)


def picture(figure: Figure, alt: str, dpi: int = 132) -> Picture:
    """Put a figure into the page, at 96 CSS pixels an inch whatever its resolution."""
    width, height = figure.get_size_inches()
    data = base64.b64encode(png_bytes(figure, dpi)).decode("ascii")
    return Picture(data, round(float(width) * 96), round(float(height) * 96), alt)


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested plain values as lines ``(dotted key, text)``.

    Example:
        >>> flatten({"a": {"b": 1}, "c": [1, 2], "d": None})
        [('a.b', '1'), ('c', '1, 2'), ('d', '–')]
    """
    lines: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += flatten(value, f"{prefix}{key}.")
        else:
            lines.append((f"{prefix}{key}", _text(value)))
    return lines


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_text(item) for item in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _figure(value: float | None, digits: int, sign: bool = False) -> str:
    if value is None:
        return "–"
    return f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
