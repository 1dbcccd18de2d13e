# SPDX-License-Identifier: Apache-2.0
"""Write the tables of a study into its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from vmfseg.studies.html_page import html_page
from vmfseg.studies.latex_table import latex_table
from vmfseg.studies.markdown_table import markdown_table
from vmfseg.studies.records import Record, open_study, read_records
from vmfseg.studies.run_list import csv_table
from vmfseg.studies.study_file import Study
from vmfseg.studies.summary import Table, summarize_study
from vmfseg.utils import atomic_write, check_choice
from vmfseg.utils.io import StrPath

__all__ = ["FORMATS", "write_tables"]

_WRITERS: dict[str, Callable[[Study, Sequence[Table], Sequence[Record]], str]] = {
    "md": markdown_table,
    "tex": latex_table,
    "csv": csv_table,
    "html": html_page,
}
#: Formats by the ending of their file.
FORMATS = tuple(_WRITERS)


def write_tables(out: StrPath, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write ``table.md`` and its like from what is finished, and return their paths.

    Args:
        out: folder of a study.
        formats: of :data:`FORMATS`.

    Raises:
        VmfError: VMF375 if there is no study in the folder.
    """
    for name in formats:
        check_choice("--format", name, FORMATS)
    out = Path(out)
    study, runs = open_study(out)
    records = read_records(runs)
    tables = summarize_study(study, records)
    for name in formats:
        atomic_write(out / f"table.{name}", _WRITERS[name](study, tables, records))
    return [out / f"table.{name}" for name in formats]
