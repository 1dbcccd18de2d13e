# SPDX-License-Identifier: Apache-2.0
"""Tables and plots of a study as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2

from vmfseg import __version__
from vmfseg.studies.markdown_table import (
    PROTOCOL_NOTES,
    PROTOCOL_TITLES,
    figure_columns,
    figure_header,
    format_difference,
    format_p,
    state_line,
    unfinished_rows,
)
from vmfseg.studies.plots import draw_costs, draw_fractions, draw_targets
from vmfseg.studies.records import Record
from vmfseg.studies.study_file import Study
from vmfseg.studies.summary import AVERAGE, Table
from vmfseg.visualize.report_page import picture

__all__ = ["html_page"]


def html_page(study: Study, tables: Sequence[Table], records: Sequence[Record]) -> str:
    """Return the page: no script, nothing from elsewhere; every text is escaped."""
    source = resources.files("vmfseg.studies").joinpath("assets/study.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source).render(
        study=study,
        lead=state_line(study, records),
        parts=[_part(study, protocol, tables) for protocol in study.protocols],
        unfinished=unfinished_rows(records),
        version=__version__,
    )


def _part(study: Study, protocol: str, tables: Sequence[Table]) -> dict[str, Any]:
    mine = [table for table in tables if table.protocol == protocol]
    pictures = []
    if any(line.dice for table in mine for line in table.lines):
        if len(mine) > 1:
            pictures.append(picture(draw_fractions(mine), "Dice against the fraction of labelled subjects"))
        pictures += [
            picture(draw_targets(table), f"Dice per target, {100 * table.fraction:g} % labelled") for table in mine
        ]
        if any(AVERAGE in line.dice for table in mine for line in table.lines):
            pictures.append(picture(draw_costs(mine), "Dice against CPU seconds of a run"))
    return {
        "title": PROTOCOL_TITLES[protocol],
        "note": PROTOCOL_NOTES[protocol],
        "pictures": pictures,
        "blocks": [_block(study, table) for table in mine],
    }


def _block(study: Study, table: Table) -> dict[str, Any]:
    columns = [*table.targets, AVERAGE]
    rows = []
    for line in table.lines:
        texts = figure_columns(table, line)
        cells = [{"text": text, "best": False, "published": ""} for text in texts]
        for column, cell in zip(columns, cells, strict=False):
            published = line.published.get(column)
            cell["best"] = line.name in table.best(column)
            cell["published"] = "" if published is None else f"{100 * published:.1f}"
        rows.append({"name": line.name, "cells": cells})
    return {
        "title": f"{100 * table.fraction:g} % of the subjects labelled",
        "header": figure_header(table),
        "rows": rows,
        "baseline": study.baseline,
        "comparisons": [
            [c.name, str(c.n), format_difference(c), f"{c.better} of {c.n}", format_p(c.p), format_p(c.p_holm)]
            for c in table.comparisons
        ],
    }
