# SPDX-License-Identifier: Apache-2.0
"""Summaries of scores by domain, class and metric; ``metrics.json`` and ``metrics.csv``.

Every mean stands beside its ``n``, ``n_missed``, ``n_spurious`` and ``n_excluded``. The unit of a mean is one volume
(subject × phase), so ``overall`` equals the mean of the domains weighted by their ``n``.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vmfseg import __version__
from vmfseg.utils import atomic_write, check_choice, write_json
from vmfseg.utils.io import refuse_existing

from .labelmaps import foreground_labels
from .policy import COUNTED, EXCLUDED, POLICY
from .reference import ReferenceRow, reference_summary
from .scores import METRICS, ScoreRow
from .volumes import cardiac_function, cardiac_summary

__all__ = ["CSV_COLUMNS", "DEFINITIONS", "PROTOCOLS", "check_outputs", "summarize", "write_metrics"]

PROTOCOLS = ("clean", "paper")

_SURFACE = "surface = mask minus its erosion by the 6-neighborhood, outside of the image is background"
_DIRECTED = "Euclidean distance of voxel centers to the nearest surface voxel of the other mask"

#: Unit and definition of every figure; every metrics.json carries them.
DEFINITIONS: dict[str, dict[str, str]] = {
    "dice": {"unit": "1", "definition": "2|A∩B| / (|A|+|B|) over the voxels of one volume, one class"},
    "hd_mm": {"unit": "mm", "definition": f"maximum over both surfaces of the {_DIRECTED}; {_SURFACE}"},
    "hd95_mm": {
        "unit": "mm",
        "definition": "larger of the two directed 95th percentiles (linear interpolation) of the "
        f"{_DIRECTED}; {_SURFACE}",
    },
    "assd_mm": {"unit": "mm", "definition": f"mean over the voxels of both surfaces of the {_DIRECTED}; {_SURFACE}"},
    "volume_pred_ml": {"unit": "ml", "definition": "predicted voxels times voxel volume"},
    "volume_true_ml": {"unit": "ml", "definition": "true voxels times voxel volume"},
    "volume_diff_ml": {"unit": "ml", "definition": "predicted minus true volume, signed"},
    "mean_dice": {
        "unit": "1",
        "definition": "mean over the foreground classes of the mean Dice over volumes (subject × phase)",
    },
    "ef_percent": {"unit": "%", "definition": "100 (EDV - ESV) / EDV; differences are in percentage points"},
}

#: Columns of metrics.csv, one row per subject × frame × class.
CSV_COLUMNS = ("domain", "subject", "phase", "frame", "label", "class_name", "status", *METRICS, "spacing_mm")


def summarize(
    rows: Sequence[ScoreRow],
    labels: Mapping[int, str],
    protocol: str = "clean",
    reference_rows: Sequence[ReferenceRow] = (),
) -> dict[str, Any]:
    """Aggregate rows to domains × classes × metrics.

    Args:
        rows: from :func:`vmfseg.metrics.evaluate_cases` or :class:`vmfseg.metrics.SegmentationScores`.
        labels: name of every class by voxel value.
        protocol: ``"clean"``, or ``"paper"`` to add the reference's figures under their honest names.
        reference_rows: the reference's figures per volume, for ``protocol="paper"``.

    Returns:
        What ``metrics.json`` holds: ``mean_dice``, ``overall``, ``domains``, ``phases``, ``cardiac``, and the
        definitions, units, spacings and policy behind them. Undefined figures are ``None``, never NaN.

    Example:
        >>> from vmfseg.metrics import Case, evaluate_cases
        >>> truth = np.ones((4, 4, 2), np.uint8)
        >>> rows = evaluate_cases([Case(truth, truth, (1, 1, 5), "s1", "A")], {1: "LV"})
        >>> summary = summarize(rows, {1: "LV"})
        >>> summary["mean_dice"], summary["domains"]["A"]["classes"]["LV"]["dice"]["n"]
        (1.0, 1)
    """
    check_choice("protocol", protocol, PROTOCOLS)
    names = foreground_labels(labels)
    volumes = {row.volume_key: row.spacing_mm for row in rows}
    spacings = Counter(volumes.values())
    overall = _group(rows, names)
    cardiac = cardiac_function(rows)
    summary: dict[str, Any] = {
        "format": "vmfseg-metrics-1",
        "vmfseg_version": __version__,
        "protocol": protocol,
        "mean_dice": overall["mean_dice"],
        "labels": {str(label): name for label, name in names.items()},
        "policy": POLICY,
        "definitions": DEFINITIONS,
        "spacing_mm": [{"spacing": list(size), "n_volumes": spacings[size]} for size in sorted(spacings)],
        "overall": overall,
        "domains": {
            key: _group([r for r in rows if r.domain == key], names) for key in sorted({r.domain for r in rows})
        },
        "phases": {
            key: _group([r for r in rows if r.phase == key], names)
            for key in sorted({r.phase for r in rows if r.phase is not None})
        },
        "cardiac": {"summary": cardiac_summary(cardiac), "subjects": [row.as_dict() for row in cardiac]},
    }
    if protocol == "paper":
        summary["reference_figures"] = reference_summary(reference_rows)
    return summary


def check_outputs(folder: str | os.PathLike[str], overwrite: bool = False) -> tuple[Path, Path]:
    """Return the paths of ``metrics.json`` and ``metrics.csv``; call it before the work, not after.

    Raises:
        VmfError: VMF503 if one of them exists and ``overwrite`` is false.
    """
    paths = Path(folder) / "metrics.json", Path(folder) / "metrics.csv"
    refuse_existing(paths, overwrite)
    return paths


def write_metrics(
    folder: str | os.PathLike[str],
    rows: Sequence[ScoreRow],
    summary: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> tuple[Path, Path]:
    """Write ``metrics.csv`` (one row per subject × frame × class) and ``metrics.json`` (the summary).

    Args:
        folder: where to; it is made if missing.
        rows: the scores.
        summary: from :func:`summarize`.
        overwrite: whether existing files may be replaced.

    Returns:
        The paths of the JSON and of the CSV file.
    """
    json_path, csv_path = check_outputs(folder, overwrite)
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in sorted(rows, key=lambda row: (*row.volume_key, row.label)):
        values = row.as_dict()
        writer.writerow({**values, "spacing_mm": " ".join(f"{size:g}" for size in row.spacing_mm)})
    atomic_write(csv_path, text.getvalue(), overwrite=overwrite)
    write_json(json_path, summary, overwrite=overwrite)
    return json_path, csv_path


def _group(rows: Sequence[ScoreRow], names: Mapping[int, str]) -> dict[str, Any]:
    classes = {name: _class([row for row in rows if row.label == label]) for label, name in names.items()}
    dices = [entry["dice"]["mean"] for entry in classes.values() if entry["dice"]["mean"] is not None]
    return {
        "n_subjects": len({(row.domain, row.subject) for row in rows}),
        "n_volumes": len({row.volume_key for row in rows}),
        "mean_dice": float(np.mean(dices)) if dices else None,
        "classes": classes,
    }


def _class(rows: Sequence[ScoreRow]) -> dict[str, Any]:
    statuses = Counter(row.status for row in rows)
    counts = {
        "n_missed": statuses["missed"],
        "n_spurious": statuses["spurious"],
        "n_excluded": sum(statuses[status] for status in EXCLUDED),
        "n_not_annotated": statuses["not_annotated"],
    }
    counted = [row for row in rows if row.status in COUNTED]
    return {metric: {**_statistics([getattr(row, metric) for row in counted]), **counts} for metric in METRICS}


def _statistics(values: Sequence[float]) -> dict[str, Any]:
    return {
        "n": len(values),
        "mean": float(np.mean(values)) if values else None,
        "sd": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "median": float(np.median(values)) if values else None,
    }
