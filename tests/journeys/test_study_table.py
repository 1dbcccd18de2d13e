# SPDX-License-Identifier: Apache-2.0
"""A journey: a study of four runs, two methods on two vendors left out, from a file to a table."""

from __future__ import annotations

import csv
import json

import pytest
import yaml

STUDY = {
    "title": "Two methods, two vendors",
    "data": "mnms",
    "targets": ["A", "D"],
    "fractions": [0.5],
    "seeds": [0],
    "baseline": "unet",
    "methods": {"unet": {}, "vmfnet": {}},
    "set": {
        "max_iterations": 8,
        "epoch_length": 4,
        "batch_size": 2,
        "selection": "last",
        "image_size": 32,
        "pixdim": 6.0,
        "calibration_slices": 8,
        "phantom": {"subjects": 8, "size": 48, "frames": 2, "seed": 0},
    },
}


@pytest.mark.slow
def test_a_study_of_four_runs_becomes_a_table(shell):
    (shell.folder / "study.yaml").write_text(yaml.safe_dump(STUDY))
    planned = shell("study", "plan", "study.yaml", "--list")
    assert "4 runs, 4 different" in planned
    assert "written: out/table.md" in shell("study", "run", "study.yaml", "-o", "out", "-j", "1")
    with open(shell.folder / "out" / "table.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["method"], row["target"], row["state"]) for row in rows] == [
        (method, target, "done") for target in ("A", "D") for method in ("unet", "vmfnet")
    ]
    for row in rows:
        (metrics,) = (shell.folder / "out").rglob(f"{row['folder']}/metrics.json")
        assert float(row["dice"]) == pytest.approx(json.loads(metrics.read_text())["mean_dice"], abs=1e-5)
    shown = (shell.folder / "out" / "table.md").read_text(encoding="utf-8")
    assert "4 of 4 runs done" in shown
    for method in ("unet", "vmfnet"):
        mean = sum(100 * float(row["dice"]) for row in rows if row["method"] == method) / 2
        (line,) = (line for line in shown.splitlines() if line.startswith(f"| {method} ") and f"{mean:.1f}" in line)
        assert line.count("|") >= 4
    files = sorted((shell.folder / "out").rglob("metrics.json"))
    before = [file.stat().st_mtime_ns for file in files]
    shell("study", "run", "study.yaml", "-o", "out")
    assert [file.stat().st_mtime_ns for file in files] == before, "what is done is not done again"
