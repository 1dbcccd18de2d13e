# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, tables, progress bars and plain lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmfseg.utils.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = [
    "AsJson",
    "BatchSize",
    "Bundle",
    "Checkpoint",
    "Device",
    "Overwrite",
    "Trust",
    "echo",
    "print_json",
    "print_line",
    "print_table",
    "progress_bar",
]

Bundle = Annotated[
    str,
    typer.Argument(
        metavar="BUNDLE", help="Name of a bundle (hearts, cords), or folder of a bundle or run.", show_default=False
    ),
]
Checkpoint = Annotated[
    Path | None, typer.Option(help="Other weights than the bundle's: a file, or the folder of a run or model.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default the first GPU, else the CPU.")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, max=65536, help="Slices at once; bounds the memory.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Build network and transforms of the manifest from other packages too.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing outputs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table without lines; cells may hold rich markup. Columns without any name have no header."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for index, name in enumerate(columns):
        bold = "bold" if index == 0 and not any(columns) else ""
        table.add_column(name, overflow="fold", justify="right" if name in right else "left", style=bold)
    for row in rows:
        table.add_row(*(printable(cell) for cell in row))
    Console().print(table)


def print_line(text: str, style: str = "", *, err: bool = False) -> None:
    """Print a line as it is: no markup, no wrapping."""
    from rich.console import Console

    Console(stderr=err).print(printable(text), style=style, highlight=False, markup=False, soft_wrap=True)


def echo(text: str, *, err: bool = False) -> None:
    """Print a text as it is, but for control characters, which a file name may hold and a terminal would obey."""
    typer.echo(printable(text), err=err)


def print_json(value: Any) -> None:
    """Print a value as indented JSON; characters that a terminal would obey are escaped as JSON does it."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    typer.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def progress_bar(title: str, unit: str, *, quiet: bool = False) -> Progress:
    """Return a progress bar on standard error that vanishes in the end; it is shown on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
