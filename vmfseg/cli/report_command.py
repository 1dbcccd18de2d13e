# SPDX-License-Identifier: Apache-2.0
"""``vmfseg report``: HTML report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vmfseg.cli.terminal import Checkpoint, Overwrite, Trust, echo

__all__ = ["report"]


def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="BUNDLE",
            help="Bundle or run folder, the name of a bundle, or a folder that vmfseg evaluate wrote.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="HTML file. [default: report.html beside the scores]", show_default=False),
    ] = None,
    dataset_dir: Annotated[
        Path | None,
        typer.Option("--dataset_dir", help="The data of the run, for pictures; not needed for the phantom."),
    ] = None,
    checkpoint: Checkpoint = None,
    cases: Annotated[int, typer.Option(min=0, help="Worst cases with pictures; 0 needs no data.")] = 4,
    overwrite: Overwrite = False,
    trust: Trust = False,
) -> None:
    r"""Write a self-contained report.html: worst cases first, scores, kernels, curves, manifest.

    The file opens from disk, prints, and loads nothing from the network.

    \b
    Examples:
      vmfseg report mine
      vmfseg report runs/kappa20 --cases 8
      vmfseg report scores/ --checkpoint runs/kappa20 --dataset_dir ~/MnMs
    """
    from vmfseg.visualize.report import build_report

    path = build_report(
        run, output, dataset_dir=dataset_dir, checkpoint=checkpoint, cases=cases, overwrite=overwrite, trust=trust
    )
    echo(f"report: {path}")
