# SPDX-License-Identifier: Apache-2.0
"""Tables of a study as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vmfseg.studies.records import Record
from vmfseg.studies.study_file import Study
from vmfseg.studies.summary import AVERAGE, Comparison, Line, Spread, Table

__all__ = [
    "PROTOCOL_NOTES",
    "PROTOCOL_TITLES",
    "figure_columns",
    "figure_header",
    "format_difference",
    "format_p",
    "format_percent",
    "markdown_table",
    "state_line",
    "unfinished_rows",
]

#: Heading of the tables of a protocol.
PROTOCOL_TITLES = {"clean": "Target domain unseen", "paper": "As the reference code counts (protocol paper)"}
#: What the figures of a protocol are; printed above them.
PROTOCOL_NOTES = {
    "clean": (
        "Nothing of the target chooses anything. Dice in % per volume on the native grid, mean over classes; HD in mm."
    ),
    "paper": (
        "Label counts and metrics of the reference code. Dice is slice_micro_dice in %; mask_set_distance is what the "
        "paper calls HD, and no distance in space."
    ),
}
_PUBLISHED = (
    "In brackets: the published figure. It was obtained with checkpoints chosen on the target, with more labelled "
    "subjects and with the reference's metrics."
)


def markdown_table(study: Study, tables: Sequence[Table], records: Sequence[Record]) -> str:
    """Return all tables of a study as Markdown: figures, paired differences, and the runs without figures."""
    lines = [f"# {study.title}", "", f"{state_line(study, records)} {study.note}".strip(), ""]
    for protocol in study.protocols:
        mine = [table for table in tables if table.protocol == protocol]
        lines += [f"## {PROTOCOL_TITLES[protocol]}", "", PROTOCOL_NOTES[protocol]]
        lines += [_PUBLISHED] if study.published else []
        for table in mine:
            lines += ["", f"### {table.fraction:.4g} of the subjects labelled", "", *_figures(table)]
            if table.comparisons:
                lines += ["", *_comparisons(table)]
        lines.append("")
    rest = unfinished_rows(records)
    if rest:
        lines += ["## Runs without figures", "", "| run | state | error |", "|---|---|---|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rest]
        lines.append("")
    return "\n".join(lines)


def state_line(study: Study, records: Sequence[Record]) -> str:
    """Return one line: how many runs are done, and what became of the others."""
    counts = Counter(record.state for record in records)
    others = [f"{counts[state]} {state}" for state in ("failed", "running", "stopped", "waiting") if counts[state]]
    states = f" ({', '.join(others)})" if others else ""
    return f"{counts['done']} of {len(records)} runs done{states}; seeds {', '.join(map(str, study.seeds))}."


def unfinished_rows(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return run, state and error of every run that began and has no figures, then how many of a method wait.

    Those that wait are many while a study is under way, and there is nothing to say of each.
    """
    rows = []
    for record in records:
        if record.state not in ("done", "waiting"):
            error = record.error
            text = "" if error is None else f"{error.code}: {error.rule}" + (f" ({error.found})" if error.found else "")
            rows.append((record.cell.label, record.state, text))
    waiting = Counter(record.cell.method for record in records if record.state == "waiting")
    return rows + [
        (f"{method}, {count} run{'s' * (count > 1)}", "not run yet", "") for method, count in waiting.items()
    ]


def format_percent(spread: Spread | None, digits: int = 1, factor: float = 100.0) -> str:
    """Return ``mean ± sd`` of a spread.

    Example:
        >>> format_percent(Spread(0.873, 0.0104, 3)), format_percent(None)
        ('87.3 ± 1.0', '-')
    """
    if spread is None:
        return "-"
    mean = f"{factor * spread.mean:.{digits}f}"
    return mean if spread.sd is None else f"{mean} ± {factor * spread.sd:.{digits}f}"


def format_difference(comparison: Comparison) -> str:
    """Return the mean difference in points with its interval."""
    return f"{100 * comparison.mean:+.1f} [{100 * comparison.low:+.1f}, {100 * comparison.high:+.1f}]"


def format_p(p: float | None) -> str:
    """Return a p value in print."""
    return "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def figure_header(table: Table) -> list[str]:
    """Return the titles of the columns of :func:`figure_columns`, with that of the methods."""
    distance = "HD mm" if table.protocol == "clean" else "mask_set_distance"
    return ["method", *table.targets, "average", *_classes(table), distance, "source validation", "CPU s a run", "runs"]


def figure_columns(table: Table, line: Line) -> list[str]:
    """Return the figures of a method in print: Dice by target, average, classes; distance, validation, cost, runs."""
    cells = [format_percent(line.dice.get(column)) for column in [*table.targets, AVERAGE]]
    cells += [format_percent(line.classes.get(name)) for name in _classes(table)]
    cells += [format_percent(line.distance.get(AVERAGE), 1, 1.0), format_percent(line.validation)]
    return [*cells, format_percent(line.cpu_seconds, 0, 1.0), _runs(line)]


def _classes(table: Table) -> list[str]:
    return list(dict.fromkeys(name for line in table.lines for name in line.classes))


def _figures(table: Table) -> list[str]:
    columns = [*table.targets, AVERAGE]
    rows = []
    for line in table.lines:
        cells = figure_columns(table, line)
        for place, column in enumerate(columns):
            published = line.published.get(column)
            text = f"**{cells[place]}**" if line.name in table.best(column) else cells[place]
            cells[place] = text if published is None else f"{text} ({100 * published:.1f})"
        rows.append([line.name, *cells])
    return _table(figure_header(table), rows)


def _runs(line: Line) -> str:
    text = str(line.done) if line.done == line.planned else f"{line.done} of {line.planned}"
    return text if not line.resumed else f"{text} ({line.resumed} resumed)"


def _comparisons(table: Table) -> list[str]:
    header = ["minus " + table.comparisons[0].baseline, "subjects", "points of Dice [95 %]", "better", "p", "p (Holm)"]
    rows = [
        [c.name, str(c.n), format_difference(c), f"{c.better} of {c.n}", format_p(c.p), format_p(c.p_holm)]
        for c in table.comparisons
    ]
    text = "Paired over the subjects of all targets (Dice per volume), mean over seeds; Wilcoxon's signed-rank test."
    return [text, "", *_table(header, rows)]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def _words(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
