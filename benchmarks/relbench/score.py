# SPDX-License-Identifier: Apache-2.0
"""Points, gates and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.relbench.verdict import AXES, GATES, SUITES, Case, Verdict

__all__ = ["gates", "last_line", "score", "table"]

#: A case with its verdict.
Judged = tuple[Case, Verdict]


def gates(results: Sequence[Judged]) -> dict[str, int]:
    """Return how many cases tripped each gate."""
    return {gate: sum(gate in verdict.gates for _, verdict in results) for gate in GATES}


def score(results: Sequence[Judged]) -> tuple[int, int]:
    """Return points and maximum; a case without a counterpart is left out of both."""
    pairs = [verdict.points() for _, verdict in results if verdict.counterpart]
    return sum(p for p, _ in pairs), sum(m for _, m in pairs)


def table(results: Mapping[str, Sequence[Judged]]) -> str:
    """Return a table in Markdown: suites by tool, points by axis, gates."""
    head = ["suite", "cases"]
    for name in results:
        head += [name, f"{name}: D M I R"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for suite, (title, _) in SUITES.items():
        parts = {name: [r for r in rows if r[0].suite == suite] for name, rows in results.items()}
        if not any(parts.values()):
            continue
        cells = [f"{suite} {title}", str(max(len(rows) for rows in parts.values()))]
        for rows in parts.values():
            cells += [_percent(rows), _axes(rows)]
        lines.append("| " + " | ".join(cells) + " |")
    cells = ["**all**", str(max(len(rows) for rows in results.values()))]
    for rows in results.values():
        cells += [f"**{_percent(rows)}**", _axes(rows)]
    return "\n".join([*lines, "| " + " | ".join(cells) + " |"])


def last_line(name: str, results: Sequence[Judged]) -> str:
    """Return score and gates in one line."""
    points, most = score(results)
    tripped = ", ".join(f"{gate} {count}" for gate, count in gates(results).items())
    value = 100 * points / most if most else 0.0
    return f"{name}: score {value:.1f} ({points} of {most} points); gates: {tripped}"


def _percent(rows: Sequence[Judged]) -> str:
    if not rows:
        return "not run"
    points, most = score(rows)
    without = sum(not verdict.counterpart for _, verdict in rows)
    tail = f", {without} without counterpart" if without else ""
    return f"{100 * points / most:.1f} ({points}/{most}{tail})" if most else "no counterpart"


def _axes(rows: Sequence[Judged]) -> str:
    cells = []
    for axis in AXES:
        values = [getattr(verdict, axis) for _, verdict in rows if verdict.counterpart]
        count = sum(value is not None for value in values)
        cells.append(f"{sum(value is True for value in values)}/{count}" if count else "-")
    return " ".join(cells)
