# SPDX-License-Identifier: Apache-2.0
"""Tables of a study as LaTeX, in the paper's layout: methods as columns, the best in bold."""

from __future__ import annotations

from collections.abc import Sequence

from vmfseg.studies.markdown_table import PROTOCOL_TITLES
from vmfseg.studies.records import Record
from vmfseg.studies.study_file import Study
from vmfseg.studies.summary import AVERAGE, Line, Spread, Table

__all__ = ["latex_table"]

#: How the paper writes the methods.
_TITLES = {
    "unet": "U-Net", "nnunet": "nnU-Net", "sdnet": "SDNet+Aug.", "lddg": "LDDG", "saml": "SAML", "dgnet": "DGNet",
    "vmfweak": "vMFWeak", "vmfpseudo": "vMFPseudo", "vmfnet": "vMFNet",
}  # fmt: skip
_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {character: f"\\{character}" for character in "&%$#_{}"}


def latex_table(study: Study, tables: Sequence[Table], records: Sequence[Record]) -> str:
    r"""Return the tables: for each protocol the averages, then Dice and distance per target.

    Figures are :math:`mean_{sd}` over seeds, Dice in percent; published ones stand in brackets. They need
    ``\usepackage{multirow}``.
    """
    parts = [f"% {study.name}: {sum(r.state == 'done' for r in records)} of {len(records)} runs done"]
    for protocol in study.protocols:
        mine = [table for table in tables if table.protocol == protocol]
        names = [line.name for line in mine[0].lines]
        figures = (
            ("Dice (\\%), mean over classes and volumes", "HD in mm")
            if protocol == "clean"
            else ("slice-wise micro Dice (\\%) of the reference code", "mask set distance (the published HD)")
        )
        seeds = f"{len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}"
        about = _text(f"{study.title}. {PROTOCOL_TITLES[protocol]}")
        spread = f"mean and standard deviation over {seeds}."
        caption = f"{about}: {figures[0]} and {figures[1]}, average over targets, {spread}"
        parts.append(_environment(caption, names, ["Percent", "metrics"], _averages(mine)))
        for distance in (False, True):
            caption = f"{about}: {figures[distance]} per target, {spread}"
            parts.append(_environment(caption, names, ["Percent", "Source", "Target"], _per_target(mine, distance)))
    return "\n".join(parts)


def _averages(tables: Sequence[Table]) -> list[list[str]]:
    rows = []
    for table in tables:
        percent = f"\\multirow{{2}}{{*}}{{{100 * table.fraction:g}\\%}}"
        rows.append([percent, r"Dice ($\uparrow$)", *_cells(table, AVERAGE, False)])
        rows.append(["", r"HD ($\downarrow$)", *_cells(table, AVERAGE, True)])
    return rows


def _per_target(tables: Sequence[Table], distance: bool) -> list[list[str]]:
    rows = []
    for table in tables:
        for index, target in enumerate(table.targets):
            percent = f"\\multirow{{{len(table.targets)}}}{{*}}{{{100 * table.fraction:g}\\%}}" if index == 0 else ""
            sources = ",".join(_text(other) for other in table.targets if other != target)
            rows.append([percent, sources, _text(target), *_cells(table, target, distance)])
    return rows


def _cells(table: Table, column: str, distance: bool) -> list[str]:
    best = table.best(column, distance)
    return [_cell(line, column, distance, line.name in best) for line in table.lines]


def _cell(line: Line, column: str, distance: bool, bold: bool) -> str:
    spread = (line.distance if distance else line.dice).get(column)
    published = (line.published_distance if distance else line.published).get(column)
    factor = 1.0 if distance else 100.0
    text = "-" if spread is None else _figure(spread, factor, bold)
    return text if published is None else f"{text} ({factor * published:.2f})"


def _figure(spread: Spread, factor: float, bold: bool) -> str:
    text = f"{factor * spread.mean:.2f}" + ("" if spread.sd is None else f"_{{{factor * spread.sd:.1f}}}")
    return f"$\\mathbf{{{text}}}$" if bold else f"${text}$"


def _environment(caption: str, names: Sequence[str], heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    columns = "|".join("c" * (len(heads) + len(names)))
    titles = [*heads, *(_TITLES.get(name, _text(name)) for name in names)]
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        f"\\caption{{{caption} Bold: best.{' In brackets: published.' if _published(rows) else ''}}}",
        f"\\begin{{tabular}}{{|{columns}|}}",
        r"\hline",
        " & ".join(f"\\textbf{{{title}}}" for title in titles) + r" \\ \hline",
        *(" & ".join(row) + rf" \\ \cline{{2-{len(titles)}}}" for row in rows),
        r"\hline",
        r"\end{tabular}",
        r"\end{table*}",
        "",
    ]
    return "\n".join(lines)


def _published(rows: Sequence[Sequence[str]]) -> bool:
    return any(cell.endswith(")") and not cell.startswith("HD") for row in rows for cell in row[2:])


def _text(text: str) -> str:
    r"""Return a text with LaTeX's own characters escaped.

    Example:
        >>> print(_text("M&Ms_2"))
        M\&Ms\_2
    """
    return "".join(_SPECIAL.get(character, character) for character in text)
