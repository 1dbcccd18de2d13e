# SPDX-License-Identifier: Apache-2.0
"""``vmfseg segment``: label maps of scans, with predicted Dice and a green/amber/red flag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from vmfseg.cli.terminal import (
    AsJson,
    BatchSize,
    Bundle,
    Checkpoint,
    Device,
    Overwrite,
    Trust,
    print_line,
    print_table,
    progress_bar,
)
from vmfseg.model.inputs import Job, plan_jobs
from vmfseg.model.predictor import Predictor
from vmfseg.model.segment import SegmentOptions, SegmentResult, segment_files
from vmfseg.utils import VmfError, check_choice
from vmfseg.visualize.overlay import draw_overlay

__all__ = ["segment"]

_COLORS = {"green": "green", "amber": "yellow", "red": "red", "unknown": "dim"}


def segment(
    bundle: Bundle,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Images (.nii, .nii.gz, .nrrd, .mha), folders, DICOM folders, glob patterns, datalists"
            " (.json, .csv); several channels of one image as 't1.nii.gz;t2.nii.gz'.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder; for one image also a .nii.gz file.", show_default=False)
    ],
    frames: Annotated[str | None, typer.Option(help="Of a cine: ED,ES or numbers like 0,5; default all.")] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Write class probabilities too.")] = False,
    activations: Annotated[bool, typer.Option("--activations", help="Write the maps of all kernels too.")] = False,
    overlay: Annotated[
        str | None, typer.Option(metavar="png", help="Write a picture of the labels on the slices too.")
    ] = None,
    backend: Annotated[
        str, typer.Option(help="torch, or onnx, openvino, openvino-int8 after vmfseg export.")
    ] = "torch",
    checkpoint: Checkpoint = None,
    device: Device = None,
    batch_size: BatchSize = 8,
    nan_to: Annotated[
        float | None, typer.Option("--nan-to", help="Replace NaN voxels by this instead of refusing the file.")
    ] = None,
    allow_shear: Annotated[
        bool, typer.Option("--allow-shear", help="Take a sheared grid as the nearest one without shear.")
    ] = False,
    prefer: Annotated[
        str | None, typer.Option(help="sform or qform, which one holds where a file's two contradict.")
    ] = None,
    overwrite: Overwrite = False,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Leave images alone that have labels already.")
    ] = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    r"""Segment scans; label maps have the grid and header of their scan.

    NAME_quality.json holds the predicted Dice and a green/amber/red flag.
    A bad file does not stop the others; the exit code is 3 if there was one.

    \b
    Examples:
      vmfseg segment vmfnet_mnms scan.nii.gz -o labels/
      vmfseg segment vmfnet_mnms cines/ -o labels/ --frames ED,ES --overlay png
      vmfseg segment vmfnet_mnms "study/*/*.mha" -o labels/ --backend openvino
      vmfseg segment runs/mine "t1.nii.gz;t2.nii.gz" -o labels/
    """
    if overlay is not None:
        check_choice("--overlay", overlay, ("png",))
    if prefer is not None:
        check_choice("--prefer", prefer, ("sform", "qform"))
    jobs = plan_jobs(inputs, output)
    predictor = Predictor.from_bundle(
        bundle, device, backend, checkpoint=checkpoint, batch_size=batch_size, trust=trust
    )  # fmt: skip
    if activations and not predictor.has_kernels:
        print_line("the network has no vMF kernels, so no activations are written", "yellow", err=True)
    options = SegmentOptions(
        frames=frames,
        probabilities=probabilities,
        activations=activations and predictor.has_kernels,
        overlay=None if overlay is None else draw_overlay,
        overwrite=overwrite,
        skip_existing=skip_existing,
        rules={"allow_shear": allow_shear, "nan_to": nan_to, "prefer": prefer},
    )
    results = _with_progress(predictor, jobs, options, quiet=as_json)
    left = jobs[len(results) :]
    if as_json:
        summary = {"results": [result.as_dict() for result in results], "not_done": [job.name for job in left]}
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        _show(results, left)
    code = max((result.exit_code for result in results), default=0)
    if code:
        raise typer.Exit(code)


def _with_progress(
    predictor: Predictor, jobs: list[Job], options: SegmentOptions, *, quiet: bool
) -> list[SegmentResult]:
    results = []
    with progress_bar("segmenting", "files", quiet=quiet) as bar:
        task = bar.add_task("segment", total=len(jobs))
        for result in segment_files(predictor, jobs, options):
            results.append(result)
            bar.advance(task)
            if bar.disable and not quiet:  # a log file gets a line for each file
                print_line(f"{len(results)}/{len(jobs)} {result.status} {result.image}", err=True)
    return results


def _show(results: list[SegmentResult], left: list[Job]) -> None:
    columns = ("image", "frames", "flag", "predicted Dice", "result")
    print_table(columns, [_cells(result) for result in results], right=("frames", "predicted Dice"))
    for result in results:
        for note in result.warnings:
            print_line(note, "yellow")
        if result.error:
            print_line(VmfError(**result.error).render(), "red")
    counts = {status: sum(r.status == status for r in results) for status in ("written", "skipped", "failed")}
    line = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    folders = sorted({str(Path(result.output).parent) for result in results if result.status == "written"})
    place = folders[0] if len(folders) == 1 else f"{len(folders)} folders" if folders else ""
    print_line(f"{line}: {place}" if place else line)
    if left:
        print_line(f"stopped: {len(left)} images were not segmented", "red")


def _cells(result: SegmentResult) -> list[str]:
    name, target = escape(Path(result.image).name), escape(Path(result.output).name)
    if result.status == "failed":
        return [name, "", "", "", f"[red]failed, {result.error['code']}[/red]"]
    if result.status == "skipped":
        return [name, "", "", "", f"{target} is there already"]
    quality: dict[str, Any] = result.quality
    light, dice = str(quality["light"]), quality["predicted_dice"]
    phases = ", ".join(f"{phase} {number}" for phase, number in quality["phases"].items())
    return [
        name,
        phases or str(len(quality["frames"])),
        f"[{_COLORS[light]}]{light}[/{_COLORS[light]}]",
        "-" if dice is None else f"{dice:.2f}",
        target,
    ]
