# SPDX-License-Identifier: Apache-2.0
"""``vmfseg explain``: kernel activation maps of a scan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vmfseg.cli.terminal import (
    AsJson,
    Bundle,
    Checkpoint,
    Overwrite,
    Trust,
    echo,
    print_json,
    print_line,
    print_table,
)
from vmfseg.utils import VmfError, atomic_write, write_json
from vmfseg.utils.io import refuse_existing

if TYPE_CHECKING:
    from vmfseg.visualize.kernel_maps import KernelMaps

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
    frame: Annotated[int, typer.Option(min=0, help="Frame of a cine, from 0.")] = 0,
    slice_index: Annotated[
        int | None, typer.Option("--slice", min=0, help="Slice to draw, from 0; default the one with most to see.")
    ] = None,
    label: Annotated[
        Path | None, typer.Option(help="The true label map; kernels are named by it, errors are shown.")
    ] = None,
    names: Annotated[
        Path | None, typer.Option(metavar="JSON", help='Names of kernels by hand, {"3": "lung"}, for --save-named.')
    ] = None,
    save_named: Annotated[
        Path | None,
        typer.Option(
            "--save-named",
            metavar="FOLDER",
            help="Write a model that segments the kernels named by --names or --label.",
        ),
    ] = None,
    checkpoint: Checkpoint = None,
    trust: Trust = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    r"""Draw image, prediction, reconstruction and the map of every kernel.

    Writes NAME_explain.png and NAME_kernels.json. Kernels are named by the tissue
    they overlap most: of --label, else of the prediction itself. The network must
    have vMF kernels. With --save-named the named kernels become the classes of a
    new model; a label map may hold a handful of drawn slices, the rest empty.

    \b
    Examples:
      vmfseg explain hearts cine.nii.gz -o out --frame 3
      vmfseg explain runs/mine scan.nii.gz -o out --label scan_gt.nii.gz
      vmfseg explain runs/u scan.nii.gz -o out --names n.json --save-named named
      vmfseg segment named scan.nii.gz -o labels/
    """
    from vmfseg.model.inputs import plan_jobs
    from vmfseg.model.kernel_names import read_names, save_named_model
    from vmfseg.model.predictor import Predictor
    from vmfseg.visualize.figure_style import png_bytes
    from vmfseg.visualize.kernel_maps import explain_scan

    if save_named is not None and names is None and label is None:
        raise VmfError(
            "VMF359",
            subject="--save-named",
            found="neither --names nor --label",
            fix='give --label with some drawn slices, or --names with a file like {"3": "lung"}',
        )
    jobs = plan_jobs([scan], output)
    if len(jobs) != 1:
        raise VmfError("VMF175", subject=scan, found=f"{len(jobs)}")
    files = [jobs[0].beside("explain", ".png"), jobs[0].beside("kernels", ".json")]
    refuse_existing(files, overwrite)
    predictor = Predictor.from_bundle(bundle, checkpoint=checkpoint, trust=trust)
    found = explain_scan(predictor, jobs[0].sources, frame=frame, slice_index=slice_index, label=label)
    given = None if names is None else read_names(names, len(found.channels))
    atomic_write(files[0], png_bytes(found.draw()), overwrite=overwrite)
    write_json(files[1], found.as_dict(), overwrite=overwrite)
    if save_named is not None:
        labels = save_named_model(predictor, given or found.names_by_label(), save_named)
    if as_json:
        print_json(found.as_dict())
        return
    _show(found)
    if save_named is not None:
        echo(f"written: {save_named}, a model of {', '.join(name for value, name in labels.items() if value)}")
    echo(f"written: {files[0]}, {files[1]}")


def _show(found: KernelMaps) -> None:
    from rich.markup import escape

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
