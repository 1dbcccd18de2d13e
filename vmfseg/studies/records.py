# SPDX-License-Identifier: Apache-2.0
"""Read a study's folder: the state of every run, and the figures of those that are done."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vmfseg.metrics.policy import COUNTED
from vmfseg.studies.execution import ATTEMPT, read_result
from vmfseg.studies.study_file import Study
from vmfseg.studies.study_parts import Cell
from vmfseg.utils import VmfError, read_json

__all__ = ["STUDY_FILE", "Record", "open_study", "read_record", "read_records"]

STUDY_FILE = "study.json"
_ALIVE_SECONDS = 60.0


@dataclass(frozen=True)
class Record:
    """A run of a study and what came out.

    Attributes:
        cell: what it is in the grid.
        folder: of the run.
        state: ``done``, ``failed``, ``running``, ``stopped`` (goes on with the next ``study run``) or ``waiting``.
        dice: on the target, 0 to 1. Protocol clean: mean over classes of the mean over volumes; protocol paper: the
            reference's ``slice_micro_dice``.
        distance: Hausdorff distance in mm, mean over classes; protocol paper: the reference's ``mask_set_distance``.
        classes: Dice by class.
        subjects: mean Dice over volumes and classes by subject of the target, for paired tests.
        validation: Dice on source validation of the model that was kept.
        spent: ``cpu_seconds``, ``seconds``, ``peak_memory_mb``, ``attempts``.
        error: of a run that failed.
    """

    cell: Cell
    folder: Path
    state: str
    dice: float | None = None
    distance: float | None = None
    classes: dict[str, float] = field(default_factory=dict)
    subjects: dict[str, float] = field(default_factory=dict)
    validation: float | None = None
    spent: dict[str, Any] = field(default_factory=dict)
    error: VmfError | None = None

    @property
    def row(self) -> str:
        """Row of the tables: the method, with what the grid changes in it."""
        return self.cell.method + "".join(f", {key} {value}" for key, value in self.cell.changes)


def open_study(out: Path) -> tuple[Study, list[tuple[Cell, Path]]]:
    """Return the study that a folder belongs to, and its runs.

    Raises:
        VmfError: VMF375 if there is none.
    """
    file = out / STUDY_FILE
    if not file.is_file():
        fix = "give the folder that vmfseg study run wrote with -o"
        raise VmfError("VMF375", subject=str(out), rule="there is no study in this folder", fix=fix)
    note = read_json(file)
    runs = [(Cell.from_dict(run["cell"]), out / "runs" / run["name"]) for run in note["runs"]]
    return Study.parse(note["content"], note["name"]), runs


def read_records(runs: Iterable[tuple[Cell, Path]], figures: bool = True) -> list[Record]:
    """Return the records of runs.

    Args:
        runs: cell and folder of each.
        figures: read the scores of single subjects too.
    """
    return [read_record(cell, folder, figures) for cell, folder in runs]


def read_record(cell: Cell, folder: Path, figures: bool = True) -> Record:
    """Return the record of one run. Figures that cannot be read make it ``stopped``, so that it is done again."""
    result = read_result(folder)
    if result is None:
        return Record(cell, folder, _unfinished(folder), spent=_spent(folder))
    if result["state"] == "failed":
        return Record(cell, folder, "failed", spent=result, error=VmfError(**result["error"]))
    try:
        summary = read_json(folder / "metrics.json")
        dice, distance, classes = _scores(summary, cell)
        subjects = _subjects(folder / "metrics.csv", cell.target) if figures else {}
    except (VmfError, OSError, KeyError, TypeError, ValueError):
        return Record(cell, folder, "stopped", spent=result)
    validation = _validation(folder) if figures else None
    return Record(cell, folder, "done", dice, distance, classes, subjects, validation, result)


def _scores(summary: dict[str, Any], cell: Cell) -> tuple[float | None, float | None, dict[str, float]]:
    domain = summary["domains"][cell.target]
    by_class = domain["classes"]
    classes = {name: entry["dice"]["mean"] for name, entry in by_class.items() if entry["dice"]["mean"] is not None}
    if cell.protocol == "paper":
        figures = summary["reference_figures"]["domains"][cell.target]
        return figures["slice_micro_dice"]["mean"], figures["mask_set_distance"]["mean"], classes
    distances = [entry["hd_mm"]["mean"] for entry in by_class.values() if entry["hd_mm"]["mean"] is not None]
    return domain["mean_dice"], float(np.mean(distances)) if distances else None, classes


def _subjects(file: Path, target: str) -> dict[str, float]:
    """Return the mean Dice of every subject over its volumes and classes."""
    scores: dict[str, list[float]] = {}
    with file.open(encoding="utf-8", newline="") as stream:
        rows = csv.reader(stream)
        place = {name: index for index, name in enumerate(next(rows, []))}
        domain, subject, status, dice = (place[name] for name in ("domain", "subject", "status", "dice"))
        for row in rows:
            if row[domain] == target and row[status] in COUNTED:
                scores.setdefault(row[subject], []).append(float(row[dice]))
    return {name: sum(values) / len(values) for name, values in scores.items()}


def _validation(folder: Path) -> float | None:
    try:
        value = read_json(folder / "models" / "manifest.json")["selection"]["source_validation_dice"]
    except (VmfError, KeyError, TypeError):
        return None
    return None if value is None else float(value)


def _unfinished(folder: Path) -> str:
    try:
        age = time.time() - (folder / ATTEMPT).stat().st_mtime
    except OSError:
        return "waiting"
    return "running" if age < _ALIVE_SECONDS and _spent(folder).get("alive") else "stopped"


def _spent(folder: Path) -> dict[str, Any]:
    try:
        return dict(read_json(folder / ATTEMPT))
    except (VmfError, TypeError, ValueError):
        return {}
