# SPDX-License-Identifier: Apache-2.0
"""The table of a segmented folder: one row a scan, as CSV and as a self-contained page."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from vmfseg import __version__
from vmfseg.utils import VmfError, atomic_write, read_json
from vmfseg.visualize.figure_style import FLAGS

__all__ = ["SummaryRow", "check_summary", "write_summary"]

_FILES = ("summary.csv", "summary.html")
_ORDER = ("red", "amber", "unknown", "green")
_PICTURES = 60
_FIRST = "image,flag,"


@dataclass(frozen=True)
class SummaryRow:
    """One scan of the table.

    Attributes:
        image: path of the scan relative to the inputs, or its name.
        labels: path of the label map relative to the folder of the table.
        quality: what its ``quality.json`` holds; empty for a scan that failed.
        error: why it failed.
        picture: the overlay, where there is one.
    """

    image: str
    labels: str
    quality: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    picture: Path | None = None

    @property
    def flag(self) -> str:
        """The flag, or ``"failed"``."""
        return "failed" if self.error else str(self.quality["light"])

    @property
    def frame(self) -> dict[str, Any]:
        """The frame whose volumes are shown: end-diastole where it is known, else the first."""
        frames = self.quality.get("frames", [])
        phases = self.quality.get("phases", {})
        return next((f for f in frames if f["frame"] == phases.get("ED")), frames[0] if frames else {})

    @property
    def frames_used(self) -> str:
        """Frames by number, with their phases."""
        numbers = [frame["frame"] for frame in self.quality.get("frames", [])]
        phases = sorted(self.quality.get("phases", {}).items())  # ED before ES
        shown = [f"{phase} {number}" for phase, number in phases if number in numbers]
        return f"{', '.join(shown)} of {len(numbers)}" if shown else str(len(numbers)) if numbers else ""

    @property
    def shift(self) -> str:
        """Verdict of the shift test."""
        report = self.quality.get("shift")
        if not report or report["new"] is None:
            return "not tested"
        return "unlike the training scans" if report["new"] else "like the training scans"

    def values(self, classes: Sequence[str]) -> dict[str, Any]:
        """Return the cells of the CSV file by column."""
        quality, function = self.quality, self.quality.get("function", {})
        low, high = quality.get("interval") or (None, None)
        cells: dict[str, Any] = {
            "image": self.image,
            "flag": self.flag,
            "reasons": "; ".join(quality.get("light_reasons", [])),
            "predicted_dice": quality.get("predicted_dice"),
            "predicted_dice_low": low,
            "predicted_dice_high": high,
        }
        for name in classes:
            part = quality.get("structures", {}).get(name, {})
            low, high = part.get("interval") or (None, None)
            cells |= {f"dice_{name}": part.get("dice"), f"dice_{name}_low": low, f"dice_{name}_high": high}
        p_value = (quality.get("shift") or {}).get("p_value")
        cells |= {"shift": self.shift if quality else "", "shift_p": None if p_value is None else round(p_value, 4)}
        cells |= {f"ml_{name}": self.frame.get("volumes_ml", {}).get(name) for name in classes}
        if any(name.upper() == "MYO" for name in classes):
            cells["myocardium_g"] = function.get("myocardium_g")
        for name in classes:
            for what in ("edv_ml", "esv_ml", "ef_percent"):
                if name.upper() in ("LV", "RV"):
                    cells[f"{name}_{what}"] = function.get(name, {}).get(what)
        view = self.frame.get("view", {})
        return {
            **cells,
            "frames": self.frames_used,
            "looked_at": quality.get("looked_at"),
            "window_moved_mm": " ".join(str(step) for step in view.get("moved_mm", [])),
            "warnings": "; ".join(quality.get("warnings", [])),
            "error": self.error,
            "labels": self.labels,
        }


def check_summary(folder: Path, overwrite: bool) -> None:
    """Refuse a folder whose ``summary`` files are not this program's.

    Raises:
        VmfError: VMF503.
    """
    for name, own in zip(_FILES, (_FIRST, '<meta name="generator" content="vmfseg'), strict=True):
        place = folder / name
        if place.exists() and not overwrite and own not in place.read_text(encoding="utf-8", errors="replace")[:1000]:
            fix = "move that file, pass --overwrite, or choose another output"
            raise VmfError("VMF503", subject=str(place), rule="a file of this name is not a table of vmfseg", fix=fix)


def write_summary(folder: Path, failed: Mapping[str, str] | None = None) -> list[Path]:
    """Write ``summary.csv`` and ``summary.html`` of all label maps below a folder.

    The rows come from the ``quality.json`` files that are there, so a second run into the folder adds its scans.

    Args:
        folder: where label maps and quality files are.
        failed: scans of this run that failed, with the reason.

    Returns:
        The two files.
    """
    rows = [_read(folder, path) for path in sorted(folder.rglob("*_quality.json"))]
    rows += [SummaryRow(image, "", error=error) for image, error in (failed or {}).items()]
    classes = list(dict.fromkeys(n for row in rows for v, n in row.quality.get("labels", {}).items() if v != "0"))
    csv_file, page = (folder / name for name in _FILES)
    atomic_write(csv_file, _csv(rows, classes).encode("utf-8", "backslashreplace"), overwrite=True)
    atomic_write(page, _html(rows, classes).encode("utf-8", "backslashreplace"), overwrite=True)
    return [csv_file, page]


def _read(folder: Path, path: Path) -> SummaryRow:
    stem = path.name.removesuffix("_quality.json")
    place = path.parent.relative_to(folder)
    candidates = [path.with_name(f"{stem}{end}") for end in ("_seg.nii.gz", "_seg.nii", ".nii.gz", ".nii")]
    labels = next((c for c in candidates if c.is_file()), None)
    quality = read_json(path)
    picture = path.with_name(f"{stem}_overlay.png")
    return SummaryRow(
        image=(place / str(quality["input"])).as_posix(),
        labels="" if labels is None else labels.relative_to(folder).as_posix(),
        quality=quality,
        picture=picture if picture.is_file() else None,
    )


def _csv(rows: Sequence[SummaryRow], classes: Sequence[str]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(SummaryRow("", "").values(classes) if not rows else rows[0].values(classes)))
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _cell(value) for key, value in row.values(classes).items()})
    return stream.getvalue()


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "@", "\t", "\r") else value


def _html(rows: Sequence[SummaryRow], classes: Sequence[str]) -> str:
    source = resources.files("vmfseg.visualize").joinpath("assets/summary.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = lambda value, digits: "–" if value is None else f"{value:.{digits}f}"
    ordered = sorted(rows, key=lambda row: (row.flag != "failed", _rank(row), row.image))
    pictures = {
        row.labels: base64.b64encode(row.picture.read_bytes()).decode("ascii")
        for row in [row for row in ordered if row.picture is not None][:_PICTURES]
        if row.picture is not None
    }
    cavities = [name for name in classes if any(name in row.quality.get("function", {}) for row in rows)]
    return environment.from_string(source).render(
        rows=ordered,
        classes=classes,
        cavities=cavities,
        has_mass=any("myocardium_g" in row.quality.get("function", {}) for row in rows),
        has_dice=any(row.quality.get("predicted_dice") is not None for row in rows),
        counts={flag: sum(row.flag == flag for row in rows) for flag in ("failed", *_ORDER)},
        colors={**FLAGS, "failed": "#1b2430"},
        pictures=pictures,
        models=sorted({f"{r.quality['bundle']} {r.quality['bundle_version']}".strip() for r in rows if r.quality}),
        version=__version__,
    )


def _rank(row: SummaryRow) -> int:
    return _ORDER.index(row.flag) if row.flag in _ORDER else 0
