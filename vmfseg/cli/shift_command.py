# SPDX-License-Identifier: Apache-2.0
"""``vmfseg shift``: test for domain shift between scans and the source of a model."""

from __future__ import annotations

from typing import Annotated

import typer

from vmfseg.cli.terminal import AsJson, Bundle, Checkpoint, Device, Trust, print_json, print_table

__all__ = ["shift"]

_VERDICTS = {True: "[red]new[/red]", False: "[green]known[/green]", None: "too few source subjects"}


def shift(
    bundle: Bundle,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Scans of one scanner (folder, files by glob), or a data set whose domains are judged one by one.",
            show_default=False,
        ),
    ],
    alpha: Annotated[float, typer.Option(help="How often a known scanner may be called new.")] = 0.05,
    checkpoint: Checkpoint = None,
    device: Device = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    r"""Test whether scans come from a scanner that the model does not know. Labels are not needed.

    Scans are compared with those of every source domain by statistics of image and
    network, subject by subject; about five subjects or more make a test.

    \b
    Examples:
      vmfseg shift hearts new_scanner/
      vmfseg shift hearts ~/MnMs --json
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import track

    from vmfseg.model.predictor import Predictor
    from vmfseg.model.survey import shift_groups

    predictor = Predictor.from_bundle(bundle, device, checkpoint=checkpoint, trust=trust)
    console = Console(stderr=True)
    quiet = as_json or not console.is_terminal
    reports = shift_groups(
        predictor, data, alpha, lambda rows: track(rows, "reading", console=console, disable=quiet, transient=True)
    )
    if as_json:
        print_json({name: report.as_dict() for name, report in reports.items()})
        return
    rows = []
    for name, report in reports.items():
        moved = ", ".join(f"{what} {size:+.1f}" for what, size in list(report.moved.items())[:3])
        cells = (_VERDICTS[report.new], f"{report.p_value:.3g}", escape(report.nearest), moved)
        rows.append((escape(name), str(report.subjects), *cells))
    columns = ("scanner", "subjects", "verdict", "p", "nearest", "moved most (standard errors)")
    print_table(columns, rows, right=("subjects", "p"))
