# SPDX-License-Identifier: Apache-2.0
"""Files of a finished run: scores, training curves, the model, and the data that its manifest names."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmfseg.data import prepare_experiment
from vmfseg.data.experiment import Experiment
from vmfseg.metrics.reports import CSV_COLUMNS
from vmfseg.metrics.scores import METRICS, ScoreRow
from vmfseg.model import Model
from vmfseg.model.shelves import on_shelf, output_folder
from vmfseg.utils import VmfError, did_you_mean, read_json
from vmfseg.utils.io import StrPath

__all__ = ["RunFiles", "open_run", "read_scores", "run_experiment"]

_NUMBER = (int, float)
#: What of a manifest's ``data`` is used, by name and type; the rest, folders and rows among it, is not.
_DATA = {
    "dataset": (str,), "target_domain": (str,), "labeled_fraction": _NUMBER, "protocol": (str,), "seed": (int,),
    "validation_fraction": (*_NUMBER, type(None)), "all_frames": (bool,), "phantom": (dict, type(None)),
    "labels": (dict, type(None)),
}  # fmt: skip
_PHANTOM = {"subjects": 1000, "frames": 200, "size": 1000, "seed": 2**31, "workers": 64}


@dataclass(frozen=True)
class RunFiles:
    """The files of a run, read.

    Attributes:
        folder: where ``metrics.json`` lies.
        summary: ``metrics.json``.
        rows: ``metrics.csv``, one row per subject × frame × class.
        epochs: of ``history.json``, empty if there is none or it belongs to another model.
        model: that was scored, or ``None``.
        notes: what could not be used, for the reader of the report.
    """

    folder: Path
    summary: dict[str, Any]
    rows: list[ScoreRow]
    epochs: list[dict[str, Any]]
    model: Model | None
    notes: tuple[str, ...] = ()


def open_run(folder: StrPath, checkpoint: StrPath | None = None, *, trust: bool = False) -> RunFiles:
    """Read the output folder of a training, a bundle, or a folder that ``vmfseg evaluate`` wrote.

    Args:
        folder: with ``metrics.json`` and ``metrics.csv``, a bundle that has them in ``output``, or the name of a
            bundle.
        checkpoint: model that was scored; default that in ``models`` of the folder or of the bundle it lies in.
        trust: see :meth:`vmfseg.model.Model.load`.

    Raises:
        VmfError: VMF301 unreadable JSON, VMF352 no figures there, VMF353 files that are no figures of vmfseg, VMF391
            figures that are not complete, and what
            :meth:`vmfseg.model.Model.load` refuses if ``checkpoint`` is given.
    """
    given = Path(folder).expanduser()
    named = on_shelf(folder)
    below = Path("bundles") / given / "output"
    bases = (given, given / "output", below, *([] if named is None else [Path(output_folder(named))]))
    place = next((base for base in bases if (base / "metrics.json").is_file()), given)
    known = [path.parent.parent.name for path in Path("bundles").glob("*/output/metrics.json")]
    hint = "" if place.is_dir() or named is not None else did_you_mean(given.name, known)
    found = "nothing of that name" if place.is_dir() else "no such folder"
    if named is not None:
        found = "a bundle that was not trained here: a shipped model has no scores of yours"
    for name in ("metrics.json", "metrics.csv"):
        if not (place / name).is_file():
            raise VmfError(
                "VMF352",
                subject=str(folder),
                rule=f"the run folder must hold {name}",
                found=found,
                fix=f"train first (the run writes it), or give the folder of vmfseg evaluate.{hint}",
            )
    summary = read_json(place / "metrics.json")
    if not isinstance(summary, dict) or summary.get("format") != "vmfseg-metrics-1":
        raise _strange(place / "metrics.json", "format vmfseg-metrics-1 is missing")
    _check_summary(place / "metrics.json", summary)
    notes: list[str] = []
    model = _model(place, checkpoint, trust, notes)
    epochs = _history(place / "history.json", model, notes)
    return RunFiles(place, summary, read_scores(place / "metrics.csv"), epochs, model, tuple(notes))


def run_experiment(model: Model, dataset_dir: StrPath | None = None) -> tuple[Experiment, bool]:
    """Return the data that a model was trained and judged on, split as then, and whether it has the same checksums.

    The entry ``data`` of the manifest holds arguments of :func:`vmfseg.data.prepare_experiment`; their types are
    checked, and no path is taken from it.

    Args:
        model: whose manifest.
        dataset_dir: the data; not needed for the phantom, which is made if the cache does not hold it.

    Raises:
        VmfError: VMF324 data that is needed and not given, VMF355 an entry that is not plain, and what
            :func:`vmfseg.data.prepare_experiment` refuses.
    """
    noted = model.facts.get("data")
    noted = noted if isinstance(noted, Mapping) else {}
    arguments = {name: noted[name] for name in _DATA if name in noted}
    for name, value in arguments.items():
        if not isinstance(value, _DATA[name]) or (isinstance(value, bool) and bool not in _DATA[name]):
            raise _not_plain(name, value)
    for name, number in dict(arguments.get("phantom") or {}).items():
        if name not in _PHANTOM or not (number is None or (type(number) is int and 0 <= number <= _PHANTOM[name])):
            raise _not_plain(f"phantom::{name}", number)
    if not dataset_dir and (not arguments or noted.get("is_phantom") is False or arguments.get("dataset") == "folder"):
        raise VmfError("VMF324", subject="--dataset_dir", found="a run on other data than the phantom")
    experiment = prepare_experiment(**arguments, dataset_dir=dataset_dir or "", quiet=True)
    return experiment, all(noted.get(key) in (None, value) for key, value in experiment.fingerprint.items())


def read_scores(path: StrPath) -> list[ScoreRow]:
    """Read ``metrics.csv``.

    Raises:
        VmfError: VMF353 if columns are missing or a cell is no number.
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
            **{name: cells[name] for name in ("class_name", "status", "subject", "domain")},
            "label": int(cells["label"]),
            "phase": cells["phase"] or None,
            "frame": int(cells["frame"]) if cells["frame"] else None,
            "spacing_mm": [float(size) for size in cells["spacing_mm"].split()],
        }
    )


def _model(folder: Path, checkpoint: StrPath | None, trust: bool, notes: list[str]) -> Model | None:
    if checkpoint is not None:
        return Model.load(checkpoint, trust=trust)
    home = folder.resolve().parent
    places = [folder, *([home] if (home / "configs" / "metadata.json").is_file() else [])]
    for place in places:
        try:
            return Model.load(place, trust=trust)
        except VmfError as error:
            if error.code not in ("VMF330", "VMF335"):  # there is a model, but it cannot be used
                notes.append(f"The model is not used ({error.code}): {error.rule}.")
                return None
    return None


def _history(path: Path, model: Model | None, notes: list[str]) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    content = read_json(path)
    epochs = content.get("epochs") if isinstance(content, dict) else None
    if not isinstance(epochs, list) or not all(isinstance(row, dict) and "epoch" in row for row in epochs):
        notes.append("history.json holds no epochs; there are no curves.")
        return []
    chosen = {} if model is None else model.facts.get("selection", {})
    dice, epoch = chosen.get("source_validation_dice"), chosen.get("epoch")
    then = [value for row in epochs if row["epoch"] == epoch for value in row.get("validation", {}).values()]
    if dice is not None and not any(value is not None and math.isclose(value, dice) for value in then):
        notes.append("history.json belongs to another training than this model; its curves are left out.")
        return []
    return epochs


def _check_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Refuse scores that lack what a report shows (VMF391)."""
    groups = [
        summary.get("overall"),
        *(summary["domains"].values() if isinstance(summary.get("domains"), dict) else []),
    ]
    kinds = {"domains": dict, "labels": dict, "definitions": dict, "policy": str, "protocol": str, "overall": dict}
    wrong = [name for name, kind in kinds.items() if not isinstance(summary.get(name), kind)]
    wrong += [] if "mean_dice" in summary else ["mean_dice"]
    wrong += [] if all(isinstance(g, dict) and isinstance(g.get("classes"), dict) for g in groups) else ["classes"]
    if wrong:
        raise VmfError("VMF391", subject=str(path), found=f"no {', no '.join(wrong)}")


def _strange(path: Path, found: str) -> VmfError:
    return VmfError("VMF353", subject=str(path), found=found)


def _not_plain(name: str, value: Any) -> VmfError:
    return VmfError("VMF355", subject=f"manifest.json: data::{name}", found=str(value)[:80])
