# SPDX-License-Identifier: Apache-2.0
"""The page of results: ``python -m benchmarks.relbench.page run.json ... > results/relbench.md``."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.relbench.score import Judged, last_line, table
from benchmarks.relbench.verdict import AXES, Case, Verdict, as_dict

__all__ = ["as_json", "page"]

_RULES = """\
A case has up to four points: detected, message, intact, recovers (D M I R); an axis that does not apply is left out
of the maximum. A case without a counterpart in a tool is left out of that tool's points and maximum, and counted.
Messages of vmfseg need at most five lines, a code, the file, the true cause, a cure and the exit code of the table.
Messages of MONAI are judged by the text of the exceptions alone: file, cause and any advice; no code, no limit of
lines, any exit code but 0. MONAI keeps two checkpoints of each run and resumes from the newest that can be read.
Training kills come after a share of the processor time of an undisturbed run. Time that a process waits for a busy
processor does not count as a hang."""


def as_json(
    results: Mapping[str, Sequence[Judged]], took: Mapping[str, float], spent: Mapping[str, float], command: str
) -> dict[str, Any]:
    """Return the verdicts of a run for JSON, with seconds and processor time by tool."""
    rows = {
        tool: [{"suite": c.suite, "name": c.name, "threat": c.threat, **as_dict(v)} for c, v in found]
        for tool, found in results.items()
    }
    return {"command": command, "where": _where(), "seconds": dict(took), "cpu_seconds": dict(spent), "results": rows}


def page(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of one run, or of several runs of different suites, in Markdown."""
    results: dict[str, list[Judged]] = {}
    for run in runs:
        for tool, rows in run["results"].items():
            results.setdefault(tool, []).extend(_judged(row) for row in rows)
    for rows in results.values():
        rows.sort(key=lambda judged: judged[0].suite)
    parts = ["# relbench", ""]
    for run in runs:
        took = ", ".join(
            f"{tool} {run['cpu_seconds'][tool]:.0f} s of processor time, {seconds:.0f} s in all"
            for tool, seconds in run["seconds"].items()
        )
        parts.append(f"- `{run['command']}`: {run['where']}; {took}")
    parts += ["", _RULES, "", table(results), ""]
    parts += [f"- {last_line(name, rows)}" for name, rows in results.items()]
    for name, rows in results.items():
        missed = [_missed(judged) for judged in rows if judged[1].counterpart and _lost(judged)]
        parts += ["", f"## What {name} missed: {len(missed)} cases"]
        if missed:
            parts += ["", "| case | missed | gate | what happened |", "|---|---|---|---|", *missed]
    return "\n".join(parts) + "\n"


def _judged(row: Mapping[str, Any]) -> Judged:
    known = dict(row)
    case = Case(known.pop("suite"), known.pop("name"), known.pop("threat"), lambda tool, place: Verdict())
    return case, Verdict(**{**known, "gates": set(known["gates"])})


def _lost(judged: Judged) -> bool:
    points, most = judged[1].points()
    return points < most or bool(judged[1].gates)


def _missed(judged: Judged) -> str:
    case, verdict = judged
    axes = [axis for axis in AXES if getattr(verdict, axis) is False]
    wanting = [part for part, there in verdict.parts.items() if not there]
    text = ", ".join(axes) + (f" (no {', '.join(wanting)})" if wanting and verdict.message is False else "")
    note = " ".join(verdict.note.split()).replace("|", "/")[:140]
    return f"| {case.id} ({case.threat}) | {text} | {', '.join(sorted(verdict.gates))} | {note} |"


def _where() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    processor = next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.processor())
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    place = f"{processor} ({os.cpu_count()} cores, load {os.getloadavg()[2]:.0f})"
    return f"{today}, {place}, commit {done.stdout.strip()}, MONAI {version('monai')}, torch {version('torch')}"


if __name__ == "__main__":
    sys.stdout.write(page([json.loads(Path(name).read_text()) for name in sys.argv[1:]]))
