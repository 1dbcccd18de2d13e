# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, tables, progress bars and plain lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from vmfseg.utils import VmfError

__all__ = [
    "AsJson",
    "BatchSize",
    "Bundle",
    "Checkpoint",
    "Device",
    "Overwrite",
    "Trust",
    "print_line",
    "print_table",
    "progress_bar",
    "refuse_existing",
]

Bundle = Annotated[
    str,
    typer.Argument(metavar="BUNDLE", help="Bundle or run folder, or a name below ./bundles.", show_default=False),
]
Checkpoint = Annotated[
    Path | None, typer.Option(help="Other weights than the bundle's: a file, or the folder of a run or model.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default the first GPU, else the CPU.")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Slices at once; bounds the memory.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Build network and transforms of the manifest from other packages too.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing outputs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table without lines; cells may hold rich markup. Columns without any name have no header."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for index, name in enumerate(columns):
        bold = "bold" if index == 0 and not any(columns) else ""
        table.add_column(name, overflow="fold", justify="right" if name in right else "left", style=bold)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def print_line(text: str, style: str = "", *, err: bool = False) -> None:
    """Print a line as it is: no markup, no wrapping."""
    Console(stderr=err).print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def progress_bar(title: str, unit: str, *, quiet: bool = False) -> Progress:
    """Return a progress bar on standard error that vanishes in the end; it is shown on a terminal only."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


def refuse_existing(files: Iterable[Any], overwrite: bool) -> None:
    """Refuse outputs that exist already.

    Raises:
        VmfError: VMF503.
    """
    there = [file for file in files if Path(file).exists()]
    if there and not overwrite:
        fix = "pass --overwrite or choose another output"
        raise VmfError("VMF503", subject=str(there[0]), rule="the output exists already", fix=fix)
