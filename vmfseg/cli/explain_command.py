# SPDX-License-Identifier: Apache-2.0
"""``vmfseg explain``: kernel activation maps of a scan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from vmfseg.cli.terminal import AsJson, Bundle, Checkpoint, Overwrite, Trust, print_line, print_table, refuse_existing
from vmfseg.model.inputs import plan_jobs
from vmfseg.model.predictor import Predictor
from vmfseg.utils import VmfError, atomic_write, write_json
from vmfseg.visualize.figure_style import png_bytes
from vmfseg.visualize.kernel_maps import KernelMaps, explain_scan

__all__ = ["explain"]


def explain(
    bundle: Bundle,
    scan: Annotated[
        str,
        typer.Argument(
            metavar="SCAN",
            help="An image (.nii, .nii.gz, .nrrd, .mha); several channels as 't1.nii.gz;t2.nii.gz'.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder.", show_default=False)],
    frame: Annotated[int, typer.Option(min=0, help="Of a cine, from 0.")] = 0,
    slice_index: Annotated[
        int | None, typer.Option("--slice", min=0, help="Slice to draw, from 0; default the one with most to see.")
    ] = None,
    label: Annotated[
        Path | None, typer.Option(help="The true label map; kernels are named by it, errors are shown.")
    ] = None,
    checkpoint: Checkpoint = None,
    trust: Trust = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    r"""Draw image, prediction, reconstruction and the map of every kernel.

    Writes NAME_explain.png and NAME_kernels.json. Kernels are named by the tissue
    they overlap most: of --label, else of the prediction itself. The network must
    have vMF kernels.

    \b
    Examples:
      vmfseg explain vmfnet_mnms cine.nii.gz -o out --frame 3
      vmfseg explain runs/mine scan.nii.gz -o out --label scan_gt.nii.gz
    """
    jobs = plan_jobs([scan], output)
    if len(jobs) != 1:
        raise VmfError("VMF175", subject=scan, rule="one scan at a time", found=f"{len(jobs)}", fix="name one file")
    files = [jobs[0].beside("explain", ".png"), jobs[0].beside("kernels", ".json")]
    refuse_existing(files, overwrite)
    predictor = Predictor.from_bundle(bundle, checkpoint=checkpoint, trust=trust)
    found = explain_scan(predictor, jobs[0].sources, frame=frame, slice_index=slice_index, label=label)
    atomic_write(files[0], png_bytes(found.draw()), overwrite=overwrite)
    write_json(files[1], found.as_dict(), overwrite=overwrite)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2, ensure_ascii=False))
        return
    _show(found)
    typer.echo(f"written: {files[0]}, {files[1]}")


def _show(found: KernelMaps) -> None:
    rows = []
    for entry in found.as_dict()["kernels"]:
        overlap = "-" if entry["soft_dice"] is None else f"{entry['soft_dice']:.2f}"
        parts = sorted(entry.get("active_in", {}).items(), key=lambda item: -item[1])[:3]
        places = ", ".join(f"{name} {100 * part:.0f}%" for name, part in parts)
        share = f"{100 * entry['share_of_scan']:.1f}%"
        rows.append((str(entry["kernel"]), escape(entry["stands_for"] or "-"), overlap, share, escape(places)))
    columns = ("kernel", "stands for", "overlap", "share of scan", "active in")
    print_table(columns, rows, right=("overlap", "share of scan"))
    print_line(f"kernels named by {found.named_by}; slice {found.view.index} of {len(found.views)} drawn")
