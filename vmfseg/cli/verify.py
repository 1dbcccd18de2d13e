# SPDX-License-Identifier: Apache-2.0
"""``vmfseg verify``: open every file of a data set once, and say everything that is wrong with it."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from vmfseg.data.datalist import Datalist
from vmfseg.data.discover import open_datalist
from vmfseg.data.findings import Finding
from vmfseg.data.verify import verify_datalist
from vmfseg.utils import VmfError

__all__ = ["verify"]


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR_OR_DATALIST",
            help="A datalist.json, a CSV or JSON table of scans, or a folder with M&Ms, SCGM or your own data.",
            show_default=False,
        ),
    ],
    classes: Annotated[
        str | None, typer.Option(help="Class names of the labels 1, 2, ... of your own data: LV,MYO,RV.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the datalist (JSON) here, unless there are errors.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Threads that read files.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    r"""Check every image, label and pair of a data set; exit code 3 if something must be repaired.

    Nothing in the data's folder is written or moved. A warning is accepted by a
    stated rule, an error is refused in training as well.

    \b
    Examples:
      vmfseg verify ~/MnMs
      vmfseg verify scans.csv --classes LV,MYO,RV -o datalist.json
    """
    if output is not None and output.exists() and not overwrite:
        raise VmfError(
            "VMF503",
            subject=str(output),
            rule="the output exists already",
            fix="pass --overwrite or choose another output",
        )
    names = None if classes is None else dict(enumerate(["background", *(c.strip() for c in classes.split(","))]))
    datalist, notes = open_datalist(path, labels=names, checksums=output is not None)
    findings = [*notes, *_with_progress(datalist, workers, quiet=as_json)]
    counts = Counter(finding.severity for finding in findings)
    if output is not None and not counts["error"]:
        datalist.save(output, overwrite=overwrite)
    if as_json:
        typer.echo(json.dumps(_summary(datalist, findings), indent=2, ensure_ascii=False))
    else:
        _show(datalist, findings, output if output is not None and not counts["error"] else None)
    if counts["error"]:
        raise typer.Exit(3)


def _with_progress(datalist: Datalist, workers: int, *, quiet: bool) -> list[Finding]:
    console = Console(stderr=True)
    columns = (
        TextColumn("verifying"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("subjects"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
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
    console = Console()
    summary = _summary(datalist, findings)
    if findings:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("", "code", "subject", "file", "finding"):
            table.add_column(name, overflow="fold", no_wrap=name in ("", "code"))
        for finding in sorted(findings, key=lambda f: f.severity != "error"):
            color = "red" if finding.severity == "error" else "yellow"
            severity = f"[{color}]{finding.severity}[/{color}]"
            cells = (finding.subject, os.path.basename(finding.file), finding.message)
            table.add_row(severity, finding.code, *(cell.replace("[", r"\[") for cell in cells))
        console.print(table)
    console.print(
        f"{datalist.name}: {summary['subjects']} subjects, {len(summary['domains'])} domains"
        f" ({', '.join(summary['domains'])}), {summary['rows']} rows, {summary['labeled_rows']} labelled:"
        f" {_count(summary['errors'], 'error')}, {_count(summary['warnings'], 'warning')}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if written is not None:
        console.print(f"wrote {written}", highlight=False, markup=False, soft_wrap=True)


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
