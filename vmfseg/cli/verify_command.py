# SPDX-License-Identifier: Apache-2.0
"""``vmfseg verify``: check every file of a data set."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmfseg.cli.terminal import AsJson, Overwrite, print_json, print_line, print_table, progress_bar
from vmfseg.utils import VmfError
from vmfseg.utils.io import refuse_existing

if TYPE_CHECKING:
    from vmfseg.data.datalist import Datalist
    from vmfseg.data.findings import Finding

__all__ = ["verify"]


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR_OR_FILE",
            help="A datalist.json, a CSV or JSON table of scans, a folder with M&Ms, SCGM or own data, or an image.",
            show_default=False,
        ),
    ],
    classes: Annotated[
        str | None, typer.Option(help="Class names of the labels 1, 2, ... of your own data: LV,MYO,RV.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the datalist (JSON) here, unless there are errors.")
    ] = None,
    overwrite: Overwrite = False,
    workers: Annotated[int, typer.Option(min=1, help="Threads that read files.")] = 2,
    as_json: AsJson = False,
) -> None:
    r"""Check every image, label and pair of a data set, or one image; exit code 3 if something must be repaired.

    Nothing in the data's folder is written or moved. A warning is accepted by a
    stated rule, an error is refused in training as well.

    \b
    Examples:
      vmfseg verify ~/MnMs
      vmfseg verify scans.csv --classes LV,MYO,RV -o datalist.json
      vmfseg verify scan.nii.gz
    """
    from vmfseg.data.discover import open_datalist

    refuse_existing([] if output is None else [output], overwrite)
    names = None if classes is None else dict(enumerate(["background", *(c.strip() for c in classes.split(","))]))
    if _is_image(path):
        _verify_image(path, output, as_json=as_json)
        return
    datalist, notes = open_datalist(path, labels=names, checksums=output is not None)
    findings = [*notes, *_with_progress(datalist, workers, quiet=as_json)]
    counts = Counter(finding.severity for finding in findings)
    if output is not None and not counts["error"]:
        datalist.save(output, overwrite=overwrite)
    if as_json:
        print_json(_summary(datalist, findings))
    else:
        _show(datalist, findings, output if output is not None and not counts["error"] else None)
    if counts["error"]:
        raise typer.Exit(3)


def _is_image(path: Path) -> bool:
    """Tell whether one image is meant: a file that is no table, or a folder that holds a DICOM series."""
    from vmfseg.data.reader import SUPPORTED_SUFFIXES
    from vmfseg.model.inputs import holds_dicom

    if path.is_dir():
        tables = [file for file in path.iterdir() if file.suffix.lower() in (".json", ".csv", ".tsv")]
        return not tables and holds_dicom(path)
    return path.name.lower().endswith(SUPPORTED_SUFFIXES)


def _verify_image(path: Path, output: Path | None, *, as_json: bool) -> None:
    """Read all of one image; what is wrong with it is the error of the command."""
    from vmfseg.data.geometry import describe_grid, voxel_sizes
    from vmfseg.data.reader import read_volume

    if output is not None:
        raise VmfError("VMF162", subject="--output", rule="one image makes no datalist", fix="give a table or a folder")
    volume = read_volume(path)
    low, high = float(volume.array.min()), float(volume.array.max())
    if as_json:
        spacing = [round(float(size), 6) for size in voxel_sizes(volume.affine)]
        print_json(
            {
                "image": str(path), "shape": list(volume.array.shape), "spacing_mm": spacing, "range": [low, high],
                "errors": 0, "warnings": len(volume.findings), "findings": [f.as_dict() for f in volume.findings],
            }
        )  # fmt: skip
        return
    for finding in volume.findings:
        print_line(str(finding), "yellow")
    grid = describe_grid(volume.affine, volume.array.shape)
    print_line(f"{path}: {grid}, values {low:g} to {high:g}: no errors, {_count(len(volume.findings), 'warning')}")


def _with_progress(datalist: Datalist, workers: int, *, quiet: bool) -> list[Finding]:
    from vmfseg.data.verify import verify_datalist

    with progress_bar("verifying", "subjects", quiet=quiet) as bar:
        task = bar.add_task("verify", total=len(datalist.subjects))
        return verify_datalist(datalist, workers=workers, progress=lambda done, _: bar.update(task, completed=done))


def _summary(datalist: Datalist, findings: list[Finding]) -> dict[str, Any]:
    counts = Counter(finding.severity for finding in findings)
    return {
        "name": datalist.name,
        "root": str(datalist.root),
        "rows": len(datalist.rows),
        "labeled_rows": sum(row.is_labeled for row in datalist.rows),
        "subjects": len(datalist.subjects),
        "domains": list(datalist.domains),
        "labels": {str(value): name for value, name in datalist.labels.items()},
        "hash": datalist.hash,
        "errors": counts["error"],
        "warnings": counts["warning"],
        "findings": [finding.as_dict() for finding in findings],
    }


def _show(datalist: Datalist, findings: list[Finding], written: Path | None) -> None:
    from rich.markup import escape

    summary = _summary(datalist, findings)
    if findings:
        rows = []
        for finding in sorted(findings, key=lambda f: f.severity != "error"):
            color = "red" if finding.severity == "error" else "yellow"
            cells = (finding.code, finding.subject, os.path.basename(finding.file), finding.message)
            rows.append((f"[{color}]{finding.severity}[/{color}]", *map(escape, cells)))
        print_table(("", "code", "subject", "file", "finding"), rows)
    print_line(
        f"{datalist.name}: {summary['subjects']} subjects, {len(summary['domains'])} domains"
        f" ({', '.join(summary['domains'])}), {summary['rows']} rows, {summary['labeled_rows']} labelled:"
        f" {_count(summary['errors'], 'error')}, {_count(summary['warnings'], 'warning')}"
    )
    if written is not None:
        print_line(f"wrote {written}")


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
