# SPDX-License-Identifier: Apache-2.0
"""``vmfseg explain``: a picture of all kernels on a scan, and what each of them stands for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vmfseg.bundle import require_trusted
from vmfseg.model.inputs import plan_jobs
from vmfseg.model.spec import find_bundle
from vmfseg.utils import VmfError, atomic_write, write_json
from vmfseg.visualize import png_bytes
from vmfseg.visualize.kernel_maps import Explanation, explain_scan

__all__ = ["explain"]


def explain(
    bundle: Annotated[
        str, typer.Argument(metavar="BUNDLE", help="Folder of a bundle, or a name below ./bundles.", show_default=False)
    ],
    scan: Annotated[
        Path, typer.Argument(metavar="SCAN", help="An image (.nii, .nii.gz, .nrrd, .mha).", show_default=False)
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder.", show_default=False)],
    frame: Annotated[int, typer.Option(min=0, help="Of a cine, from 0.")] = 0,
    slice_index: Annotated[
        int | None, typer.Option("--slice", min=0, help="Slice to draw, from 0; default the one with most to see.")
    ] = None,
    label: Annotated[
        Path | None, typer.Option(help="The true label map; kernels are named by it, errors are shown.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Other weights than the bundle's: a file, or the folder that holds them.")
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Use a bundle that vmfseg bundle check refuses.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing outputs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print kernels.json instead of a table.")] = False,
) -> None:
    r"""Show what the model sees: image, prediction, reconstruction and the map of every kernel.

    Writes NAME_explain.png and NAME_kernels.json. Kernels are named by the tissue
    they overlap most: of --label, else of the prediction itself.

    \b
    Examples:
      vmfseg explain vmfnet_mnms cine.nii.gz -o out --frame 3
      vmfseg explain runs/mine scan.nii.gz -o out --label scan_gt.nii.gz
    """
    root = find_bundle(bundle)
    require_trusted(root, trust)
    jobs = plan_jobs([scan], output)
    if len(jobs) != 1:
        raise VmfError(
            "VMF175", subject=str(scan), rule="one scan at a time", found=f"{len(jobs)}", fix="name one file"
        )
    files = [jobs[0].beside("explain", ".png"), jobs[0].beside("kernels", ".json")]
    there = [file for file in files if file.exists()]
    if there and not overwrite:
        fix = "pass --overwrite or choose another output"
        raise VmfError("VMF503", subject=str(there[0]), rule="the output exists already", fix=fix)
    explained = explain_scan(
        root, jobs[0].image, frame=frame, slice_index=slice_index, label=label, checkpoint=checkpoint
    )  # fmt: skip
    atomic_write(files[0], png_bytes(explained.draw()), overwrite=overwrite)
    write_json(files[1], explained.as_dict(), overwrite=overwrite)
    if as_json:
        typer.echo(json.dumps(explained.as_dict(), indent=2, ensure_ascii=False))
        return
    _show(explained)
    typer.echo(f"written: {files[0]}, {files[1]}")


def _show(found: Explanation) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("kernel", "stands for", "overlap", "share of scan", "active in"):
        table.add_column(name, overflow="fold", justify="right" if name in ("overlap", "share of scan") else "left")
    for entry in found.as_dict()["kernels"]:
        overlap = "-" if entry["soft_dice"] is None else f"{entry['soft_dice']:.2f}"
        parts = sorted(entry.get("active_in", {}).items(), key=lambda item: -item[1])[:3]
        places = ", ".join(f"{name} {100 * part:.0f}%" for name, part in parts)
        share = f"{100 * entry['share_of_scan']:.1f}%"
        table.add_row(str(entry["kernel"]), escape(entry["stands_for"] or "-"), overlap, share, escape(places))
    console = Console()
    console.print(table)
    text = f"kernels named by {found.named_by}; slice {found.view.index} of {len(found.views)} drawn"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
