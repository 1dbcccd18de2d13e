# SPDX-License-Identifier: Apache-2.0
"""``vmfseg verify``: check every file of a data set."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from vmfseg.cli.terminal import AsJson, Overwrite, print_line, print_table, progress_bar, refuse_existing
from vmfseg.data.datalist import Datalist
from vmfseg.data.discover import open_datalist
from vmfseg.data.findings import Finding
from vmfseg.data.verify import verify_datalist

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
    overwrite: Overwrite = False,
    workers: Annotated[int, typer.Option(min=1, help="Threads that read files.")] = 2,
    as_json: AsJson = False,
) -> None:
    r"""Check every image, label and pair of a data set; exit code 3 if something must be repaired.

    Nothing in the data's folder is written or moved. A warning is accepted by a
    stated rule, an error is refused in training as well.

    \b
    Examples:
      vmfseg verify ~/MnMs
      vmfseg verify scans.csv --classes LV,MYO,RV -o datalist.json
    """
    refuse_existing([] if output is None else [output], overwrite)
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
