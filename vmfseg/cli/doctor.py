# SPDX-License-Identifier: Apache-2.0
"""``vmfseg doctor``: is this machine fit, and what would help?"""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vmfseg.data.experiment import cache_folder
from vmfseg.utils.machine import inspect_machine

__all__ = ["doctor"]

_COLORS = {"ok": "green", "note": "yellow", "bad": "red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    r"""Check Python, libraries, devices, memory, disk and cache; exit code 6 if something must be mended.

    Lines marked note are for information: vmfseg works without.

    \b
    Example:
      vmfseg doctor
    """
    report = inspect_machine(cache_folder())
    if as_json:
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for name in ("status", "name", "found"):
            table.add_column(name, overflow="fold", no_wrap=name != "found")
        for check in report["checks"]:
            color = _COLORS[check["status"]]
            text = check["found"] + (f" ({check['fix']})" if check["fix"] else "")
            table.add_row(f"[{color}]{check['status']}[/{color}]", escape(check["name"]), escape(text))
        console = Console()
        console.print(table)
        bad = [check["name"] for check in report["checks"] if check["status"] == "bad"]
        console.print("fit" if report["fit"] else f"not fit: {', '.join(bad)}", markup=False, highlight=False)
    if not report["fit"]:
        raise typer.Exit(6)
