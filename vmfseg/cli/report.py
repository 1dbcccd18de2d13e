# SPDX-License-Identifier: Apache-2.0
"""``vmfseg report``: one HTML file about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vmfseg.visualize import build_report

__all__ = ["report"]


def report(
    run_dir: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIR",
            help="Output folder of a bundle (or the bundle), or a folder that vmfseg evaluate wrote.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="HTML file. [default: RUN_DIR/report.html]", show_default=False),
    ] = None,
    dataset_dir: Annotated[
        Path | None,
        typer.Option("--dataset_dir", help="The data of the run, for pictures; not needed for the phantom."),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Bundle of the run, if RUN_DIR does not lie in it.", show_default=False),
    ] = None,
    cases: Annotated[int, typer.Option(min=0, help="Worst cases with pictures; 0 needs no data.")] = 4,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing report.")] = False,
) -> None:
    r"""Write a self-contained report.html: worst cases first, scores, kernels, curves, manifest.

    The file opens from disk, prints, and asks the network for nothing.

    \b
    Examples:
      vmfseg report bundles/vmfnet_mnms
      vmfseg report runs/kappa20 --bundle bundles/vmfnet_mnms --cases 8
    """
    path = build_report(
        run_dir, output, dataset_dir=dataset_dir, bundle=bundle, cases=cases, overwrite=overwrite
    )  # fmt: skip
    typer.echo(f"report: {path}")
