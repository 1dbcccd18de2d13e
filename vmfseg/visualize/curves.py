# SPDX-License-Identifier: Apache-2.0
"""Draw training curves, and box plots of the scores by domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vmfseg.metrics.scores import ScoreRow
from vmfseg.utils import numpy_rng

from .figure_style import INK, MUTED, WARN, class_color, new_figure

__all__ = ["draw_boxes", "draw_history"]

_LINES = ("#1b2430", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")


def draw_history(epochs: Sequence[Mapping[str, Any]], selected: int | None = None) -> Figure:
    """Draw the loss terms and the validation scores of ``history.json`` against iterations.

    Args:
        epochs: its entries.
        selected: epoch whose weights became the model; it is marked.

    Raises:
        ValueError: if there is no epoch.
    """
    if not epochs:
        raise ValueError("epochs must be at least one, got none. Give the entries of history.json.")
    terms = list(dict.fromkeys(name for row in epochs for name in row.get("terms", {})))
    scores = list(dict.fromkeys(name for row in epochs for name in row.get("validation", {})))
    figure = new_figure(9.2 if scores else 5.2, 2.9)
    axes = figure.subplots(1, 2 if scores else 1, squeeze=False)[0]
    for place, (axis, title, names, key) in enumerate(
        zip(axes, ("loss terms", "Dice on source validation"), (terms, scores), ("terms", "validation"), strict=False)
    ):
        for color, name in zip(_cycle(len(names)), names, strict=True):
            points = [(row.get("iteration", row["epoch"]), row.get(key, {}).get(name)) for row in epochs]
            known = [(x, y) for x, y in points if y is not None]
            if known:
                axis.plot(*zip(*known, strict=True), color=color, label=_title(name), linewidth=1.6, marker="o", ms=2.5)
        _dress(axis, title)
        axis.set_xlabel("iteration", fontsize=8, color=MUTED)
        if place:
            axis.set_ylim(-0.02, 1.02)
        mark = [row.get("iteration", row["epoch"]) for row in epochs if row["epoch"] == selected]
        if mark and place:
            axis.axvline(mark[0], color=MUTED, linestyle=":", linewidth=1)
            axis.annotate(
                "chosen", (mark[0], 0.02), xytext=(-3, 0), textcoords="offset points", fontsize=7, color=MUTED,
                ha="right", va="bottom", rotation=90,
            )  # fmt: skip
        if names:
            axis.legend(fontsize=7, frameon=False, labelcolor=INK, loc="best")
    return figure


def draw_boxes(rows: Sequence[ScoreRow]) -> Figure:
    """Draw the Dice of every volume by domain and class: box (quartiles), whiskers (1.5 IQR) and all points.

    Missed and spurious structures are crosses at 0; excluded ones are not drawn.

    Args:
        rows: from :func:`vmfseg.metrics.evaluate_cases`.

    Raises:
        ValueError: if there is nothing to draw.
    """
    counted = [row for row in rows if row.dice is not None]
    if not counted:
        raise ValueError("rows must hold at least one Dice, got none. All structures were excluded.")
    domains = sorted({row.domain for row in counted})
    classes = dict(sorted({row.label: row.class_name for row in counted}.items()))
    figure = new_figure(min(11.0, max(4.6, 1.2 + 0.5 * len(domains) * (len(classes) + 1))), 3.1)
    axis = figure.subplots()
    for d, domain in enumerate(domains):
        for c, (label, name) in enumerate(classes.items()):
            here = [row for row in counted if row.domain == domain and row.label == label]
            if not here:
                continue
            x = d * (len(classes) + 1) + c
            color = class_color(label)
            values = np.array([row.dice for row in here], dtype=np.float64)
            axis.boxplot(
                values, positions=[x], widths=0.66, showfliers=False, patch_artist=True,
                boxprops={"facecolor": color, "alpha": 0.35, "edgecolor": color}, medianprops={"color": INK},
                whiskerprops={"color": color}, capprops={"color": color}, label=name if d == 0 else None,
            )  # fmt: skip
            shift = numpy_rng("jitter", domain, label).uniform(-0.18, 0.18, len(values))
            failed = np.array([row.status != "scored" for row in here])
            axis.scatter(
                x + shift[~failed], values[~failed], s=9, color=color, edgecolor="white", linewidth=0.4, zorder=3
            )
            axis.scatter(x + shift[failed], values[failed], s=22, color=WARN, marker="x", linewidth=1.2, zorder=4)
    middle = [(len(classes) + 1) * d + (len(classes) - 1) / 2 for d in range(len(domains))]
    axis.set_xticks(middle, [f"domain {domain}" for domain in domains], fontsize=8)
    axis.set_xlim(-0.8, (len(classes) + 1) * len(domains) - 1.2)
    axis.set_ylim(-0.04, 1.02)
    _dress(axis, "Dice of each volume")
    axis.tick_params(axis="x", length=0)
    axis.legend(
        fontsize=7, frameon=False, labelcolor=INK, ncols=min(len(classes), 6), loc="lower right",
        bbox_to_anchor=(1, 1), borderaxespad=0.2, handlelength=1.2, columnspacing=1.2,
    )  # fmt: skip
    return figure


def _dress(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=9, color=INK, loc="left")
    axis.tick_params(labelsize=8, colors=MUTED)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color("#c8d0d8")
    axis.grid(axis="y", color="#e8ecf0", linewidth=0.8)
    axis.set_axisbelow(True)


def _cycle(count: int) -> list[str]:
    return [_LINES[k % len(_LINES)] for k in range(count)]


def _title(name: str) -> str:
    return {"val_mean_dice": "mean Dice", "partner_mean_dice": "mean Dice, partner"}.get(name, name.replace("_", " "))
