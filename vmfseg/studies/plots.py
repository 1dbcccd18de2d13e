# SPDX-License-Identifier: Apache-2.0
"""Plots of a study: Dice against labelled fraction, per target, and against CPU seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from vmfseg.studies.summary import AVERAGE, Table
from vmfseg.visualize.figure_style import INK, MUTED, class_color, new_figure

__all__ = ["draw_costs", "draw_fractions", "draw_targets"]

_MARKERS = "osD^vP*Xp<>"


def draw_fractions(tables: Sequence[Table]) -> Figure:
    """Draw the average Dice over targets of every method against the fraction of labelled subjects."""
    figure = new_figure(7.2, 3.6)
    axis = figure.subplots()
    fractions = sorted(table.fraction for table in tables)
    for index, name in enumerate(_names(tables)):
        points = []
        for table in sorted(tables, key=lambda table: table.fraction):
            line = next((line for line in table.lines if line.name == name), None)
            if line is not None and AVERAGE in line.dice:
                points.append((table.fraction, line.dice[AVERAGE]))
        if points:
            axis.errorbar(
                [100 * fraction for fraction, _ in points],
                [100 * spread.mean for _, spread in points],
                [100 * (spread.sd or 0) for _, spread in points],
                label=name, **_style(index, "-"),
            )  # fmt: skip
    axis.set_xscale("log")
    axis.set_xticks([100 * fraction for fraction in fractions], [f"{100 * fraction:g}" for fraction in fractions])
    axis.minorticks_off()
    _dress(axis, "Dice against labels, average over targets", "labelled subjects in %")
    return figure


def draw_targets(table: Table) -> Figure:
    """Draw the Dice of every method on every target, with its standard deviation over seeds."""
    columns = [*table.targets, AVERAGE]
    figure = new_figure(max(7.2, 1.0 + 0.22 * len(columns) * len(table.lines)), 3.4)
    axis = figure.subplots()
    width = 0.8 / max(1, len(table.lines))
    for index, line in enumerate(table.lines):
        shown = [(place, line.dice[column]) for place, column in enumerate(columns) if column in line.dice]
        if shown:
            axis.errorbar(
                [place + (index - (len(table.lines) - 1) / 2) * width for place, _ in shown],
                [100 * spread.mean for _, spread in shown],
                [100 * (spread.sd or 0) for _, spread in shown],
                label=line.name, **_style(index, "none"),
            )  # fmt: skip
    for edge in range(len(columns) - 1):
        axis.axvline(edge + 0.5, color="#e1e6eb", linewidth=0.8)
    axis.set_xticks(range(len(columns)), columns)
    axis.set_xlim(-0.5, len(columns) - 0.5)
    _dress(axis, f"Dice per target, {100 * table.fraction:g} % labelled", "target")
    return figure


def draw_costs(tables: Sequence[Table]) -> Figure:
    """Draw the average Dice of every method against the CPU seconds of a run, one panel a fraction."""
    figure = new_figure(max(7.2, 3.8 * len(tables)), 3.4)
    axes = np.atleast_1d(figure.subplots(1, len(tables), sharey=True))
    names = _names(tables)
    for axis, table in zip(axes, tables, strict=True):
        for line in table.lines:
            if AVERAGE in line.dice and line.cpu_seconds is not None:
                spread = line.dice[AVERAGE]
                style = _style(names.index(line.name), "none")
                axis.errorbar(
                    line.cpu_seconds.mean, 100 * spread.mean, 100 * (spread.sd or 0), label=line.name, **style
                )
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        _dress(axis, f"Dice against cost, {100 * table.fraction:g} % labelled", "CPU seconds of a run")
    return figure


def _names(tables: Sequence[Table]) -> list[str]:
    return list(dict.fromkeys(line.name for table in tables for line in table.lines))


def _style(index: int, line: str) -> dict[str, Any]:
    color = INK if index == 0 else class_color(index)
    marker = _MARKERS[index % len(_MARKERS)]
    return {"color": color, "marker": marker, "ms": 5, "linestyle": line, "linewidth": 1.4, "capsize": 2}


def _dress(axis: Any, title: str, label: str) -> None:
    axis.set_title(title, fontsize=10, color=INK, loc="left")
    axis.set_xlabel(label, fontsize=8, color=MUTED)
    axis.set_ylabel("Dice in %", fontsize=8, color=MUTED)
    axis.tick_params(labelsize=8, colors=MUTED)
    axis.grid(axis="y", color="#e1e6eb", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    if axis.get_legend_handles_labels()[1]:
        axis.legend(fontsize=7, frameon=False, labelcolor=INK, loc="center left", bbox_to_anchor=(1.0, 0.5))
