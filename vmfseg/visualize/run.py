# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind: figures, manifest, curves, and the model that made them."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmfseg.metrics import METRICS, ScoreRow
from vmfseg.metrics.reports import CSV_COLUMNS
from vmfseg.utils import VmfError, read_json

__all__ = ["RunFiles", "open_run", "read_scores"]

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class RunFiles:
    """The files of a run, read.

    Attributes:
        folder: where ``metrics.json`` lies.
        summary: ``metrics.json``.
        rows: ``metrics.csv``, one row per subject × frame × class.
        manifest: of the model, empty if there is none.
        epochs: of ``history.json``, empty if there is none or it belongs to another model.
        bundle: the folder with ``configs`` and ``models``, or ``None``.
        model: ``model.pt`` of this run, or ``None``.
        notes: what could not be used, for the reader of the report.
    """

    folder: Path
    summary: dict[str, Any]
    rows: list[ScoreRow]
    manifest: dict[str, Any]
    epochs: list[dict[str, Any]]
    bundle: Path | None
    model: Path | None
    notes: tuple[str, ...] = ()


def open_run(folder: StrPath, bundle: StrPath | None = None) -> RunFiles:
    """Read the output folder of a bundle (or the bundle's own folder, or one that ``vmfseg evaluate`` wrote).

    Args:
        folder: with ``metrics.json`` and ``metrics.csv``.
        bundle: folder with ``configs/train.json``; by default the one that ``folder`` lies in.

    Raises:
        VmfError: VMF301 unreadable JSON, VMF320 no figures there, VMF321 files that are no figures of vmfseg.
    """
    place = Path(folder)
    if not (place / "metrics.json").is_file() and (place / "output" / "metrics.json").is_file():
        place = place / "output"
    for name in ("metrics.json", "metrics.csv"):
        if not (place / name).is_file():
            raise VmfError(
                "VMF320",
                subject=str(folder),
                rule=f"the run folder must hold {name}",
                found="nothing of that name" if place.is_dir() else "no such folder",
                fix="train first (the run writes it), or give the folder that vmfseg evaluate wrote",
            )
    summary = read_json(place / "metrics.json")
    if not isinstance(summary, dict) or summary.get("format") != "vmfseg-metrics-1":
        raise _strange(place / "metrics.json", "format vmfseg-metrics-1 is missing")
    home = Path(bundle) if bundle is not None else _bundle_of(place)
    model, manifest, notes = _model(place, home)
    epochs = _history(place, model, manifest, notes)
    return RunFiles(place, summary, read_scores(place / "metrics.csv"), manifest, epochs, home, model, tuple(notes))


def read_scores(path: StrPath) -> list[ScoreRow]:
    """Read ``metrics.csv``.

    Raises:
        VmfError: VMF321 if columns are missing or a cell is no number.
    """
    with open(path, encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        missing = [name for name in CSV_COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise _strange(Path(path), f"no column {', '.join(missing)}")
        try:
            return [_row(cells) for cells in reader]
        except (TypeError, ValueError) as error:
            raise _strange(Path(path), str(error)) from error


def _row(cells: Mapping[str, str]) -> ScoreRow:
    values: dict[str, Any] = {name: None if cells[name] == "" else float(cells[name]) for name in METRICS}
    if any(value is not None and not math.isfinite(value) for value in values.values()):
        raise ValueError("a figure is not finite")
    return ScoreRow.from_dict(
        {
            **values,
            "label": int(cells["label"]),
            "class_name": cells["class_name"],
            "status": cells["status"],
            "subject": cells["subject"],
            "domain": cells["domain"],
            "phase": cells["phase"] or None,
            "frame": int(cells["frame"]) if cells["frame"] else None,
            "spacing_mm": [float(size) for size in cells["spacing_mm"].split()],
        }
    )


def _bundle_of(folder: Path) -> Path | None:
    parent = folder.resolve().parent
    if not (parent / "configs" / "train.json").is_file():
        return None
    # as the user wrote it where that can be told, since the report may show it
    return folder.parent if folder.parent.name and folder.parent.resolve() == parent else parent


def _model(folder: Path, bundle: Path | None) -> tuple[Path | None, dict[str, Any], list[str]]:
    """Find the model: the training stage that was published last, else the newest finished one, else the bundle's."""
    places = [folder, *([] if bundle is None else [bundle])]  # a run may keep its models to itself (--ckpt_dir)
    current = next((known for place in places if (known := _manifest(place / "models" / "manifest.json"))), {})
    stages = sorted(folder.glob("stages/training-*/done.json"), key=lambda path: path.stat().st_mtime)
    found = [(path.parent / "model.pt", _manifest(path.parent / "manifest.json")) for path in stages]
    found = [(model, manifest) for model, manifest in found if model.is_file() and manifest]
    for model, manifest in reversed(found):
        if not current or manifest.get("sha256") == current.get("sha256"):
            return model, manifest, []
    if found:
        return *found[-1], ["The model of the newest training stage is shown; the published one is another."]
    if bundle is not None and current and (bundle / "models" / "model.pt").is_file():
        return bundle / "models" / "model.pt", current, []
    return None, {}, []


def _manifest(path: Path) -> dict[str, Any]:
    content = read_json(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def _history(folder: Path, model: Path | None, manifest: Mapping[str, Any], notes: list[str]) -> list[dict[str, Any]]:
    places = [*([model.parent / "history.json"] if model is not None else []), folder / "history.json"]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        return []
    content = read_json(path)
    epochs = content.get("epochs") if isinstance(content, dict) else None
    if not isinstance(epochs, list) or not all(isinstance(row, dict) and "epoch" in row for row in epochs):
        notes.append("history.json holds no epochs; there are no curves.")
        return []
    chosen = manifest.get("selection", {})
    dice, epoch = chosen.get("source_validation_dice"), chosen.get("epoch")
    then = [value for row in epochs if row["epoch"] == epoch for value in row.get("validation", {}).values()]
    if dice is not None and not any(value is not None and math.isclose(value, dice) for value in then):
        notes.append("history.json belongs to another training than this model; its curves are left out.")
        return []
    return epochs


def _strange(path: Path, found: str) -> VmfError:
    return VmfError(
        "VMF321",
        subject=str(path),
        rule="the file must be written by vmfseg",
        found=found,
        fix="evaluate again, or give another folder",
    )
