# SPDX-License-Identifier: Apache-2.0
"""Statistics of many scans, grouped by scanner where the data says which is which."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vmfseg.data.discover import open_datalist
from vmfseg.model.inputs import find_images
from vmfseg.model.prediction import volume_statistics
from vmfseg.model.predictor import Predictor
from vmfseg.model.scan import Scan
from vmfseg.model.shift import ShiftReport, SubjectStatistics
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath

__all__ = ["group_subjects", "shift_groups", "survey"]

Row = dict[str, Any]


def shift_groups(
    predictor: Predictor,
    data: StrPath,
    alpha: float = 0.05,
    progress: Callable[[Sequence[Row]], Iterable[Row]] | None = None,
) -> dict[str, ShiftReport]:
    """Compare scans with the source of a bundle.

    Args:
        predictor: of the bundle.
        data: images, a folder of images (one scanner), or a data set with domains (a datalist, M&Ms or SCGM).
        alpha: how often a known scanner may be called new.
        progress: wraps the rows while they are read.

    Returns:
        One report for each domain, or one in all.

    Raises:
        VmfError: VMF342 if the bundle stores no source statistics of its weights; what the reader refuses.
    """
    if predictor.source is None:
        note = predictor.model.weights.with_name("shift.json")
        raise VmfError(
            "VMF342", subject=str(note), found="they were made with other weights" if note.is_file() else "no such file"
        )
    rows = _rows(data)
    groups = group_subjects(survey(predictor, rows if progress is None else progress(rows)))
    return {name: predictor.source.compare(subjects, alpha) for name, subjects in sorted(groups.items())}


def survey(predictor: Predictor, rows: Iterable[Row]) -> dict[tuple[str, str], list[dict[str, float]]]:
    """Return the statistics of every volume, by domain and subject.

    Args:
        predictor: of the bundle.
        rows: with ``image``, and ``frame``, ``domain`` and ``subject`` where they are known. Of a cine without a frame,
            the first frame and the one after a third of the cycle stand for all: about end-diastole and end-systole.
    """
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for row in rows:
        scan = Scan.open(row["image"])
        frame = row.get("frame")
        frames = [frame] if frame is not None else sorted({0, scan.num_frames // 3})
        key = str(row.get("domain") or ""), str(row.get("subject") or row["image"])
        values = [volume_statistics(predictor.predict_frame(scan.frame(int(number)))) for number in frames]
        found.setdefault(key, []).extend(values)
    return found


def group_subjects(volumes: Mapping[tuple[str, str], Sequence[Row]]) -> dict[str, list[SubjectStatistics]]:
    """Return the mean statistics of every subject, by domain."""
    groups: dict[str, list[SubjectStatistics]] = {}
    for (domain, _), values in volumes.items():
        groups.setdefault(domain, []).append(SubjectStatistics.average(values, domain))
    return groups


def _rows(data: StrPath) -> list[Row]:
    place = Path(data).expanduser()
    if place.suffix.lower() in (".json", ".csv", ".tsv") or (place.is_dir() and _has_domains(place)):
        rows = open_datalist(place, checksums=False)[0].to_dicts()
        return [{key: value for key, value in row.items() if key != "label"} for row in rows]
    return [{"image": str(path), "domain": place.name} for path, _ in find_images(data)]


def _has_domains(folder: Path) -> bool:
    """Tell whether a folder is a data set that names the scanner of every scan."""
    if (folder / "datalist.json").is_file():
        return True
    is_mnms = next(folder.rglob("*_sa.nii*"), None) is not None and any(folder.glob("*.csv"))
    return is_mnms or next(folder.rglob("site*-sc*-image.nii*"), None) is not None
