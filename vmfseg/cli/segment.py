# SPDX-License-Identifier: Apache-2.0
"""``vmfseg segment``: labels for scans, each on its own grid, with a word on how far to trust them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from vmfseg.bundle import require_trusted
from vmfseg.model.inputs import Job, plan_jobs
from vmfseg.model.predictor import Predictor
from vmfseg.model.segment import SegmentOptions, SegmentResult, segment_files
from vmfseg.model.spec import find_bundle
from vmfseg.utils import VmfError, check_choice
from vmfseg.visualize import draw_overlay

__all__ = ["segment"]

_EXAMPLES = """Examples:
  vmfseg segment vmfnet_mnms scan.nii.gz -o labels/
  vmfseg segment vmfnet_mnms cines/ -o labels/ --frames ED,ES --overlay png
  vmfseg segment vmfnet_mnms "study/*/*.mha" -o labels/ --backend openvino
"""
_COLORS = {"green": "green", "amber": "yellow", "red": "red", "unknown": "dim"}


def segment(
    bundle: Annotated[
        str, typer.Argument(metavar="BUNDLE", help="Folder of a bundle, or a name below ./bundles.", show_default=False)
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Images (.nii, .nii.gz, .nrrd, .mha), folders, DICOM folders, glob patterns.",
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
    checkpoint: Annotated[
        Path | None, typer.Option(help="Other weights than the bundle's: a file, or the folder that holds them.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default the first GPU, else the CPU.")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Slices at once; bounds the memory.")] = 8,
    nan_to: Annotated[
        float | None, typer.Option("--nan-to", help="Replace NaN voxels by this instead of refusing the file.")
    ] = None,
    allow_shear: Annotated[
        bool, typer.Option("--allow-shear", help="Take a sheared grid as the nearest one without shear.")
    ] = False,
    prefer: Annotated[
        str | None, typer.Option(help="sform or qform, which one holds where a file's two contradict.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing outputs.")] = False,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Leave images alone that have labels already.")
    ] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Use a bundle that vmfseg bundle check refuses.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Segment scans. Labels have the grid and header of their scan; NAME_quality.json says how far to trust them.

    A bad file does not stop the others; the exit code is 3 if there was one.
    """
    if overlay is not None:
        check_choice("--overlay", overlay, ("png",))
    if prefer is not None:
        check_choice("--prefer", prefer, ("sform", "qform"))
    jobs = plan_jobs(inputs, output)
    require_trusted(find_bundle(bundle), trust)
    predictor = Predictor.from_bundle(bundle, device, backend, checkpoint=checkpoint, batch_size=batch_size)
    options = SegmentOptions(
        frames=frames,
        probabilities=probabilities,
        activations=activations,
        overlay=None if overlay is None else draw_overlay,
        overwrite=overwrite,
        skip_existing=skip_existing,
        rules={"allow_shear": allow_shear, "nan_to": nan_to, "prefer": prefer},
    )
    results = _with_progress(predictor, jobs, options, quiet=as_json)
    left = jobs[len(results) :]
    if as_json:
        summary = {"results": [result.as_dict() for result in results], "not_done": [str(job.image) for job in left]}
        typer.echo(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        _show(results, left)
    code = max((result.exit_code for result in results), default=0)
    if code:
        raise typer.Exit(code)


segment.__doc__ = f"{inspect.cleandoc(segment.__doc__ or '')}\n\n\b\n{_EXAMPLES}"


def _with_progress(
    predictor: Predictor, jobs: list[Job], options: SegmentOptions, *, quiet: bool
) -> list[SegmentResult]:
    console = Console(stderr=True)
    shown = console.is_terminal and not quiet
    columns = (TextColumn("segmenting"), BarColumn(), MofNCompleteColumn(), TextColumn("files"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("segment", total=len(jobs))
        results = []
        for result in segment_files(predictor, jobs, options):
            results.append(result)
            bar.advance(task)
            if not shown and not quiet:  # a log file gets a line for each file
                console.print(
                    f"{len(results)}/{len(jobs)} {result.status} {result.image}", highlight=False, markup=False,
                    soft_wrap=True,
                )  # fmt: skip
    return results


def _show(results: list[SegmentResult], left: list[Job]) -> None:
    console = Console()
    plain: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("image", "frames", "trust", "predicted Dice", "result"):
        table.add_column(name, overflow="fold", justify="right" if name in ("frames", "predicted Dice") else "left")
    for result in results:
        table.add_row(*_cells(result))
    console.print(table)
    for result in results:
        for note in result.warnings:
            console.print(note, style="yellow", **plain)
        if result.error:
            console.print(VmfError(**result.error).render(), style="red", **plain)
    counts = {status: sum(r.status == status for r in results) for status in ("written", "skipped", "failed")}
    line = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    folders = sorted({str(Path(result.output).parent) for result in results if result.status == "written"})
    place = folders[0] if len(folders) == 1 else f"{len(folders)} folders" if folders else ""
    console.print(f"{line}: {place}" if place else line, **plain)
    if left:
        console.print(f"stopped: {len(left)} images were not segmented", style="red", **plain)


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
