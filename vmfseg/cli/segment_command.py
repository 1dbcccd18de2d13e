# SPDX-License-Identifier: Apache-2.0
"""``vmfseg segment``: label maps of scans, with predicted Dice and a green/amber/red flag."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmfseg.cli.terminal import (
    AsJson,
    BatchSize,
    Bundle,
    Checkpoint,
    Device,
    Overwrite,
    Trust,
    print_json,
    print_line,
    print_table,
    progress_bar,
)
from vmfseg.utils import VmfError, check_choice

if TYPE_CHECKING:
    from vmfseg.model.inputs import Job
    from vmfseg.model.predictor import Predictor
    from vmfseg.model.segment import SegmentOptions, SegmentResult

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
    frames: Annotated[
        str | None, typer.Option(help="Frames of a cine: ED,ES or numbers from 0 like 0,5; default all.")
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Write calibrated probabilities too.")] = False,
    dicom_seg: Annotated[
        bool, typer.Option("--dicom-seg", help="Write DICOM SEG for DICOM input too (needs vmfseg[dicom]).")
    ] = False,
    mesh: Annotated[
        str | None,
        typer.Option(metavar="stl", help="Write a surface of each structure, mm in LPS (needs vmfseg[mesh])."),
    ] = None,
    box: Annotated[bool, typer.Option("--box", help="Write the box around what was found too, in voxels.")] = False,
    activations: Annotated[bool, typer.Option("--activations", help="Write the maps of all kernels too.")] = False,
    overlay: Annotated[
        str | None, typer.Option(metavar="png", help="Write a picture of the outlines on the slices too.")
    ] = None,
    adapt: Annotated[
        str, typer.Option(help="Adapt to each frame: bn (batch norm) or reconstruction; a copy, nothing is kept.")
    ] = "none",
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

    NAME_quality.json holds the predicted Dice and a green/amber/red flag;
    summary.csv and summary.html have a row for each scan of the output folder.
    The organ is searched in the whole field of view.
    A bad file does not stop the others; the exit code is 3 if there was one.

    \b
    Examples:
      vmfseg segment hearts scan.nii.gz -o labels/
      vmfseg segment hearts cines/ -o labels/ --frames ED,ES --overlay png
      vmfseg segment hearts study/series7/ -o labels/ --dicom-seg --mesh stl
      vmfseg segment hearts "study/*/*.mha" -o labels/ --skip-existing
      vmfseg segment runs/mine "t1.nii.gz;t2.nii.gz" -o labels/
    """
    from vmfseg.data.volume import ReadRules
    from vmfseg.export.dicom_seg import SEG_NAMES, dicom_segs, require_dicom
    from vmfseg.export.mesh import mesh_names, stl_meshes
    from vmfseg.model.foreground_box import BOX_NAMES, box_files
    from vmfseg.model.inputs import plan_jobs
    from vmfseg.model.predictor import Predictor
    from vmfseg.model.scan_adaptation import ADAPTATIONS
    from vmfseg.model.segment import Extra, SegmentOptions
    from vmfseg.utils.packages import require_package
    from vmfseg.visualize.overlay import draw_overlay
    from vmfseg.visualize.summary_table import check_summary, write_summary

    check_choice("--adapt", adapt, ADAPTATIONS)
    if adapt != "none" and backend != "torch":
        raise ValueError(f"--adapt must be none with --backend {backend}, got {adapt}. Use --backend torch.")
    if overlay is not None:
        check_choice("--overlay", overlay, ("png",))
    if prefer is not None:
        check_choice("--prefer", prefer, ("sform", "qform"))
    if mesh is not None:
        check_choice("--mesh", mesh, ("stl",))
        require_package("skimage.measure")
    rules: dict[str, Any] = {"allow_shear": allow_shear, "nan_to": nan_to, "prefer": prefer}
    ReadRules(**rules)  # what no file could be read with is refused before any
    jobs = plan_jobs(inputs, output)
    if dicom_seg:
        require_dicom([job.sources[0] for job in jobs])
    folder = Path(output).expanduser() if jobs[0].output != Path(output).expanduser() else None
    if folder is not None:
        check_summary(folder, overwrite)
    predictor = Predictor.from_bundle(
        bundle, device, backend, checkpoint=checkpoint, batch_size=batch_size, trust=trust
    )  # fmt: skip
    if activations and not predictor.has_kernels:
        print_line("the network has no vMF kernels, so no activations are written", "yellow", err=True)
    options = SegmentOptions(
        frames=frames,
        probabilities=probabilities,
        activations=activations and predictor.has_kernels,
        adapt=adapt,
        overlay=None if overlay is None else draw_overlay,
        extras=tuple(
            extra
            for extra, asked in (
                (Extra(SEG_NAMES, dicom_segs), dicom_seg),
                (Extra(BOX_NAMES, box_files), box),
                (Extra(mesh_names(predictor.labels), stl_meshes), mesh is not None),
            )
            if asked
        ),
        overwrite=overwrite,
        skip_existing=skip_existing,
        rules=rules,
    )
    results = _with_progress(predictor, jobs, options, quiet=as_json)
    left = jobs[len(results) :]
    if folder is not None and any(result.status != "failed" for result in results):
        failed = {r.image: f"{r.error['code']}: {r.error['rule']}. {r.error['found']}" for r in results if r.error}
        write_summary(folder, failed)
    if as_json:
        summary = {"results": [result.as_dict() for result in results], "not_done": [job.name for job in left]}
        print_json(summary)
    else:
        _show(results, left)
    code = max((result.exit_code for result in results), default=0)
    if code:
        raise typer.Exit(code)


def _with_progress(
    predictor: Predictor, jobs: list[Job], options: SegmentOptions, *, quiet: bool
) -> list[SegmentResult]:
    from vmfseg.model.segment import segment_files

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
    names = _names([result.image for result in results])
    cells = [_cells(result, name) for result, name in zip(results, names, strict=True)]
    print_table(columns, cells, right=("frames", "predicted Dice"))
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


def _names(images: list[str]) -> list[str]:
    """Return the names of images, with the folders above them where two names are the same."""
    names = [Path(image).name for image in images]
    if len(set(names)) == len(names):
        return names
    return [os.path.relpath(image, os.path.commonpath(images)) for image in images]


def _cells(result: SegmentResult, name: str) -> list[str]:
    from rich.markup import escape

    name, target = escape(name), escape(Path(result.output).name)
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
