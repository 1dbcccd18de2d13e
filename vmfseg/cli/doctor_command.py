# SPDX-License-Identifier: Apache-2.0
"""``vmfseg doctor``: check the machine."""

from __future__ import annotations

import typer

from vmfseg.cli.terminal import AsJson, print_json, print_line, print_table

__all__ = ["doctor"]

_COLORS = {"ok": "green", "note": "yellow", "bad": "red"}


def doctor(as_json: AsJson = False) -> None:
    r"""Check Python, libraries, devices, memory, disk and cache; exit code 6 if something must be mended.

    Lines marked note are for information: vmfseg works without.

    \b
    Example:
      vmfseg doctor
    """
    from vmfseg.data.experiment import cache_folder
    from vmfseg.utils.machine import inspect_machine

    report = inspect_machine(cache_folder())
    if as_json:
        print_json(report)
    else:
        print_table(("", "", ""), [_row(check) for check in report["checks"]])
        bad = [check["name"] for check in report["checks"] if check["status"] == "bad"]
        print_line("fit" if report["fit"] else f"not fit: {', '.join(bad)}")
    if not report["fit"]:
        raise typer.Exit(6)


def _row(check: dict[str, str]) -> tuple[str, str, str]:
    from rich.markup import escape

    color, text = _COLORS[check["status"]], check["found"] + (f" ({check['fix']})" if check["fix"] else "")
    return f"[{color}]{check['status']}[/{color}]", escape(check["name"]), escape(text)
