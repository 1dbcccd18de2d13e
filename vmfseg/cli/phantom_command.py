# SPDX-License-Identifier: Apache-2.0
"""``vmfseg phantom``: make the multi-vendor phantom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vmfseg.cli.terminal import Overwrite, echo, progress_bar

__all__ = ["phantom"]


def phantom(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.", show_default=False)],
    dataset: Annotated[
        str, typer.Option(help="mnms: beating hearts, vendors A to D. scgm: cords, sites 1 to 4.")
    ] = "mnms",
    subjects: Annotated[int, typer.Option(help="Number of subjects, spread over the scanners in turn.")] = 24,
    seed: Annotated[int, typer.Option(help="Seed; a subject depends on it and on its number only.")] = 0,
    frames: Annotated[int, typer.Option(help="Frames of a cine (hearts).")] = 8,
    size: Annotated[
        int | None,
        typer.Option(
            help="Largest in-plane matrix over the same field of view (default: the protocol's own).",
            show_default=False,
        ),
    ] = None,
    montage: Annotated[
        Path | None, typer.Option(help="Draw a picture (PNG) with a row per scanner.", show_default=False)
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    overwrite: Overwrite = False,
) -> None:
    r"""Make a phantom data set with scanners from physics, and the true tissue of every voxel beside it.

    OUT has the layout of the real release, so every command reads it like the
    real data. The same phantom is kept if it is there already; a folder that is
    no phantom is never replaced.

    \b
    Examples:
      vmfseg phantom hearts --subjects 24 --montage hearts.png
      vmfseg phantom cords --dataset scgm --seed 3
    """
    from vmfseg.phantom import make_phantom, save_montage

    with progress_bar("phantom", "subjects") as bar:
        task = bar.add_task("phantom", total=subjects)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if bar.disable and (done == total or done % max(1, total // 10) == 0):
                echo(f"phantom: {done}/{total} subjects", err=True)

        folder = make_phantom(out, dataset, subjects, seed, size, frames, overwrite, report, workers)
    echo(f"{folder}: {subjects} subjects, layout {dataset}, seed {seed}")
    if montage is not None:
        echo(f"{save_montage(folder, montage)}: one row per scanner")
