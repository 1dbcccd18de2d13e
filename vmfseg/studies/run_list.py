# SPDX-License-Identifier: Apache-2.0
"""All runs of a study as CSV: one row a run, with its figures, its cost and its error."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from vmfseg.studies.records import Record
from vmfseg.studies.study_file import Study
from vmfseg.studies.summary import Table

__all__ = ["csv_table"]

_COLUMNS = (
    "method", "target", "labeled_fraction", "seed", "protocol", "state", "dice", "distance", "published_dice",
    "source_validation_dice", "cpu_seconds", "seconds", "peak_memory_mb", "attempts", "error", "folder",
)  # fmt: skip


def csv_table(study: Study, tables: Sequence[Table], records: Sequence[Record]) -> str:
    """Return the runs as CSV: Dice from 0 to 1, also for each class; the keys of the grid are columns of their own."""
    published = {(t.protocol, t.fraction, line.name): line.published for t in tables for line in t.lines}
    classes = list(dict.fromkeys(name for record in records for name in record.classes))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*_COLUMNS[:5], *study.grid, *_COLUMNS[5:8], *(f"dice {name}" for name in classes), *_COLUMNS[8:]])
    for record in records:
        cell, spent = record.cell, record.spent
        error = "" if record.error is None else f"{record.error.code}: {record.error.rule} ({record.error.found})"
        changes = dict(cell.changes)
        beside = published.get((cell.protocol, cell.fraction, record.row), {}).get(cell.target)
        writer.writerow(
            [
                *(cell.method, cell.target, cell.fraction, cell.seed, cell.protocol),
                *(changes.get(key, "") for key in study.grid),
                *(record.state, _number(record.dice), _number(record.distance)),
                *(_number(record.classes.get(name)) for name in classes),
                *(_number(beside), _number(record.validation)),
                *(spent.get(key, "") for key in ("cpu_seconds", "seconds", "peak_memory_mb", "attempts")),
                *(error, record.folder.name),
            ]
        )
    return stream.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
