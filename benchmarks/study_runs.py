# SPDX-License-Identifier: Apache-2.0
"""Keep the figures of a study as one JSON line a run, and lay them out again so that the study goes on elsewhere.

    vmfseg study run studies/phantom_mnms.yaml -o out/phantom_mnms
    python benchmarks/study_runs.py pack out/phantom_mnms benchmarks/results/study_phantom_mnms.jsonl
    python benchmarks/study_runs.py unpack benchmarks/results/study_phantom_mnms.jsonl out/again
    vmfseg study run studies/phantom_mnms.yaml -o out/again    # executes only what is missing

A line holds the name of a run's folder, its cell of the grid, its cost, and what the tables read of ``metrics.json``
and ``metrics.csv``: means on the target, and the Dice of every volume. The name ends in a hash of all that decides the
result, so ``study run`` takes the lines of the same configs, data and versions for done and no others.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path
from typing import Any

from vmfseg.studies.execution import RESULT, read_result
from vmfseg.studies.records import open_study
from vmfseg.utils import atomic_write, read_json, sha256_file, write_json

_SCORES = ("domain", "subject", "phase", "class_name", "status", "dice")


def pack(out: Path, file: Path) -> int:
    """Write a line for every run of a study that is done and return their number."""
    lines = []
    for cell, folder in open_study(out)[1]:
        result = read_result(folder)
        if result is not None and result["state"] == "done":
            figures = _short(read_json(folder / "metrics.json"), cell.target)
            with (folder / "metrics.csv").open(encoding="utf-8", newline="") as stream:
                scores = [[row[name] for name in _SCORES] for row in csv.DictReader(stream)]
            lines.append({"run": folder.name, "cell": cell.as_dict(), "result": result, **figures, "scores": scores})
    atomic_write(file, "".join(json.dumps(line) + "\n" for line in lines))
    return len(lines)


def _short(summary: dict[str, Any], target: str) -> dict[str, Any]:
    """Return the means on the target, in the places where they are in ``metrics.json``."""
    domain = summary["domains"][target]
    names = ("dice", "hd_mm")
    classes = {key: {n: {"mean": entry[n]["mean"]} for n in names} for key, entry in domain["classes"].items()}
    short = {"domains": {target: {"mean_dice": domain["mean_dice"], "classes": classes}}}
    reference = summary.get("reference_figures", {}).get("domains", {}).get(target)
    return short if reference is None else {**short, "reference_figures": {"domains": {target: reference}}}


def unpack(file: Path, out: Path) -> int:
    """Write the folders of all runs of a file, less those that are there, and return the number of lines."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        folder = out / "runs" / line["run"]
        if read_result(folder) is not None:
            continue
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows([_SCORES, *line["scores"]])
        atomic_write(folder / "metrics.csv", stream.getvalue())
        figures = {key: line[key] for key in ("domains", "reference_figures") if key in line}
        write_json(folder / "metrics.json", figures)
        write_json(folder / RESULT, {**line["result"], "metrics_sha256": sha256_file(folder / "metrics.json")})
    return len(lines)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path, help="folder of a study, or a file of lines")
    parser.add_argument("target", type=Path, help="file of lines, or folder of a study")
    given = parser.parse_args()
    count = {"pack": pack, "unpack": unpack}[given.task](given.source, given.target)
    print(f"{count} runs: {given.target}")


if __name__ == "__main__":
    main()
