# SPDX-License-Identifier: Apache-2.0
"""``vmfseg shift``: do these scans come from a scanner that the model knows?"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from vmfseg.bundle import require_trusted
from vmfseg.model.predictor import Predictor
from vmfseg.model.shift import ShiftReport
from vmfseg.model.spec import find_bundle
from vmfseg.model.survey import shift_groups

__all__ = ["shift"]

_EXAMPLES = """Examples:
  vmfseg shift vmfnet_mnms new_scanner/
  vmfseg shift vmfnet_mnms ~/MnMs --json
"""


def shift(
    bundle: Annotated[
        str, typer.Argument(metavar="BUNDLE", help="Folder of a bundle, or a name below ./bundles.", show_default=False)
    ],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Scans of one scanner (folder, files by glob), or a data set whose domains are judged one by one.",
            show_default=False,
        ),
    ],
    alpha: Annotated[float, typer.Option(help="How often a known scanner may be called new.")] = 0.05,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Other weights than the bundle's: a file, or the folder that holds them.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default the first GPU, else the CPU.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Use a bundle that vmfseg bundle check refuses.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Say whether a scanner is new to the model, by what its scans look like to the network. Labels are not needed.

    Scans are compared with those of every source domain, subject by subject; about five subjects or more make a test.
    """
    require_trusted(find_bundle(bundle), trust)
    predictor = Predictor.from_bundle(bundle, device, checkpoint=checkpoint)
    console = Console(stderr=True)
    reports = shift_groups(
        predictor,
        data,
        alpha,
        progress=lambda rows: track(
            rows, "reading", console=console, disable=as_json or not console.is_terminal, transient=True
        ),
    )
    if as_json:
        typer.echo(json.dumps({name: report.as_dict() for name, report in reports.items()}, indent=2))
    else:
        _show(reports)


shift.__doc__ = f"{inspect.cleandoc(shift.__doc__ or '')}\n\n\b\n{_EXAMPLES}"


def _show(reports: dict[str, ShiftReport]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("scanner", "subjects", "verdict", "p", "nearest", "moved most (standard errors)"):
        table.add_column(name, overflow="fold", justify="right" if name in ("subjects", "p") else "left")
    for name, report in reports.items():
        verdict = {True: "[red]new[/red]", False: "[green]known[/green]", None: "too few source subjects"}[report.new]
        moved = ", ".join(f"{what} {size:+.1f}" for what, size in list(report.moved.items())[:3])
        table.add_row(
            escape(name), str(report.subjects), verdict, f"{report.p_value:.3g}", escape(report.nearest), moved
        )  # fmt: skip
    Console().print(table)
