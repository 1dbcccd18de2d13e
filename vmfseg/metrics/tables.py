# SPDX-License-Identifier: Apache-2.0
"""Text table of a summary of scores."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["counted", "format_table", "protocol_words", "reference_notes"]

_HEADER = ("domain", "class", "n", "Dice", "HD95 mm", "missed", "spurious", "excluded")


def format_table(summary: Mapping[str, Any], plain: bool = False) -> str:
    """Return the table of Dice and HD95 per domain and class, mean ± sample SD, with the counts of failures.

    Args:
        summary: from :func:`vmfseg.metrics.summarize` or read from ``metrics.json``.
        plain: text without colors and box lines, for logs and pipes.

    Example:
        >>> from vmfseg.metrics import Case, evaluate_cases, summarize
        >>> import numpy as np
        >>> truth = np.ones((4, 4, 2), np.uint8)
        >>> rows = evaluate_cases([Case(truth, truth, (1, 1, 5), "s1", "A")], {1: "LV"})
        >>> print(format_table(summarize(rows, {1: "LV"}), plain=True))
        1 volume of 1 subject, target domain unseen, mean Dice 1.000
        <BLANKLINE>
        domain  class  n  Dice   HD95 mm  missed  spurious  excluded
        A       LV     1  1.000     0.00       0         0         0
        <BLANKLINE>
        Missed or spurious: Dice 0, distance = image diagonal. Excluded: both empty or not annotated.
    """
    groups = list(summary["domains"].items())
    if len(groups) > 1:
        groups.append(("all", summary["overall"]))
    lines = []
    for domain, group in groups:
        for name, entry in group["classes"].items():
            counts = [str(entry["dice"][key]) for key in ("n", "n_missed", "n_spurious", "n_excluded")]
            figures = [_figure(entry["dice"], 3), _figure(entry["hd95_mm"], 2)]
            lines.append([domain, name, counts[0], *figures, *counts[1:]])
    text = _plain(lines) if plain else _rich(lines)
    return "\n".join([_headline(summary), "", text, "", *_notes(summary)])


def _headline(summary: Mapping[str, Any]) -> str:
    overall = summary["overall"]
    dice = "undefined" if summary["mean_dice"] is None else f"{summary['mean_dice']:.3f}"
    volumes, subjects = (counted(overall[f"n_{word}s"], word) for word in ("volume", "subject"))
    return ", ".join(
        part for part in (f"{volumes} of {subjects}", protocol_words(summary), f"mean Dice {dice}") if part
    )


def protocol_words(summary: Mapping[str, Any]) -> str:
    """Return what the protocol of a summary means; nothing for label maps whose origin is not known.

    Example:
        >>> protocol_words({"protocol": "clean"}), protocol_words({"protocol": "clean", "inputs": {}})
        ('target domain unseen', '')
    """
    if summary["protocol"] == "clean":
        return "" if "inputs" in summary else "target domain unseen"
    return "protocol of the paper's reference code"


def _notes(summary: Mapping[str, Any]) -> list[str]:
    notes = []
    for cavity, measures in summary["cardiac"]["summary"].items():
        parts = []
        for key, title, unit in (("edv_ml", "EDV", "ml"), ("esv_ml", "ESV", "ml"), ("ef_percent", "EF", "points")):
            entry = measures[key]
            if entry["bias"] is not None:
                spread = "" if entry["sd_of_difference"] is None else f" ± {entry['sd_of_difference']:.1f}"
                parts.append(f"{title} {entry['bias']:+.1f}{spread} {unit}")
        count = counted(measures["edv_ml"]["n"], "subject")
        notes.append(f"{cavity} predicted minus true: {', '.join(parts)} ({count})")
    notes += reference_notes(summary)
    notes.append("Missed or spurious: Dice 0, distance = image diagonal. Excluded: both empty or not annotated.")
    return notes


def reference_notes(summary: Mapping[str, Any]) -> list[str]:
    """Return the figures of the reference code in words, if the summary has them."""
    figures = summary.get("reference_figures")
    if figures is None:
        return []
    lines = [
        f"Reference figures, {domain}: slice_micro_dice {entry['slice_micro_dice']['mean']:.3f}, "
        f"mask_set_distance {entry['mask_set_distance']['mean']:.2f}."
        for domain, entry in figures["domains"].items()
    ]
    return [*lines, "mask_set_distance is the published 'HD': a root of a pixel count, no distance, no unit."]


def counted(number: int, word: str) -> str:
    """Return a number with its noun: ``1 volume``, ``2 volumes``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _figure(entry: Mapping[str, Any], digits: int) -> str:
    if entry["mean"] is None:
        return "-"
    return f"{entry['mean']:.{digits}f}" + ("" if entry["sd"] is None else f" ± {entry['sd']:.{digits}f}")


def _plain(lines: list[list[str]]) -> str:
    table = [list(_HEADER), *lines]
    widths = [max(len(line[column]) for line in table) for column in range(len(_HEADER))]
    left = 2  # the names; figures are set flush right so that their digits stand below each other
    rows = (
        "  ".join(
            cell.ljust(w) if k < left else cell.rjust(w) for k, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in table
    )
    return "\n".join(row.rstrip() for row in rows)


def _rich(lines: list[list[str]]) -> str:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, title in enumerate(_HEADER):
        table.add_column(title, justify="left" if column < 2 else "right", no_wrap=True)
    for number, line in enumerate(lines):
        last = number + 1 == len(lines) or lines[number + 1][0] != line[0]
        first = number == 0 or lines[number - 1][0] != line[0]
        failures = [f"[red]{cell}[/red]" if cell != "0" else cell for cell in line[5:7]]
        table.add_row(
            line[0] if first else "", *line[1:5], *failures, line[7], end_section=last and number + 1 < len(lines)
        )
    console = Console(file=io.StringIO(), force_terminal=True, width=100, legacy_windows=False)
    console.print(table)
    stream = console.file
    return stream.getvalue().strip("\n") if isinstance(stream, io.StringIO) else ""
