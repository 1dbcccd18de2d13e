# SPDX-License-Identifier: Apache-2.0
"""Whole phantom subjects: all slices of one person on one scanner, with affine, for validation and calibration."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmfseg.phantom.acquisition import oblique_frame
from vmfseg.phantom.cord_slices import draw_cord_exam
from vmfseg.phantom.heart_scene import Convention
from vmfseg.phantom.heart_slices import HeartExam, SliceChoice, draw_heart_exam
from vmfseg.phantom.release_layout import nifti_bytes
from vmfseg.phantom.shapes import Floats
from vmfseg.utils import atomic_write, check_choice, numpy_rng, write_json

__all__ = ["PhantomSubject", "draw_subject", "write_drawn_subject", "write_drawn_table"]

#: Class names by kind, the background apart.
DRAWN_LABELS = {"hearts": {"1": "LV", "2": "MYO", "3": "RV"}, "cords": {"1": "GM", "2": "WM"}}
_LEVEL_MM = 16.0  # height of a vertebra with its disc
Volume = NDArray[np.int16]
Labels = NDArray[np.uint8]


@dataclass(frozen=True)
class PhantomSubject:
    """One person on one scanner.

    Args:
        name: of the subject.
        domain: field strength and sequence.
        affine: voxel to world (right, anterior, superior), in mm.
        images: a volume (columns, rows, slices) by phase: ED and ES of hearts, one without a phase of cords.
        labels: the label of each.
    """

    name: str
    domain: str
    affine: NDArray[np.float64]
    images: dict[str, Volume]
    labels: dict[str, Labels]

    def save(self, folder: str | os.PathLike[str]) -> list[dict[str, str]]:
        """Write every volume and label as NIfTI and return one row of a data list for each, names within ``folder``."""
        rows: list[dict[str, str]] = []
        for phase, image in self.images.items():
            stem = f"{self.name}_{phase}" if phase else self.name
            names = {"image": f"{stem}.nii.gz", "label": f"{stem}_label.nii.gz"}
            atomic_write(Path(folder) / names["image"], nifti_bytes(image, self.affine, None, 1))
            atomic_write(Path(folder) / names["label"], nifti_bytes(self.labels[phase], self.affine, None, 6))
            rows.append({**names, "domain": self.domain, "subject": self.name, "phase": phase})
        return rows


def draw_subject(
    kind: str = "hearts",
    index: int = 0,
    *,
    seed: int = 0,
    fov: float | None = None,
    orientation: str = "canonical",
    papillary: Convention = "cavity",
) -> PhantomSubject:
    """Draw all slices of subject ``index`` at the resolution of its scanner; a pure function of the arguments.

    Args:
        kind: ``"hearts"`` (ED and ES of a short-axis stack) or ``"cords"``.
        index: number of the subject.
        seed: seed of all subjects.
        fov: field of view in mm; drawn if not given.
        orientation: ``"canonical"`` for a true affine, ``"lost"`` for axes turned and mirrored at will and an affine
            that knows the spacing only.
        papillary: whether papillary muscles belong to the ``"cavity"`` or the ``"wall"`` (hearts only).

    Example:
        >>> subject = draw_subject("cords", 3, fov=40.0)
        >>> volume = subject.images[""]
        >>> volume.dtype, subject.labels[""].shape == volume.shape, sorted(set(np.unique(subject.labels[""]).tolist()))
        (dtype('int16'), True, [0, 1, 2])
    """
    check_choice("kind", kind, ("hearts", "cords"))
    check_choice("orientation", orientation, ("canonical", "lost"))
    rng = numpy_rng(seed, "subjects", kind, int(index))
    draw = _heart if kind == "hearts" else _cord
    domain, affine, images, labels = draw(rng, fov, papillary)
    if orientation == "lost":
        quarters, mirrored, reversed_ = int(rng.integers(4)), bool(rng.integers(2)), bool(rng.integers(2))
        spacing = np.linalg.norm(affine[:3, :3], axis=0)
        affine = np.diag([*(spacing[[1, 0, 2]] if quarters % 2 else spacing), 1.0])
        images = {phase: _lose(volume, quarters, mirrored, reversed_) for phase, volume in images.items()}
        labels = {phase: _lose(volume, quarters, mirrored, reversed_) for phase, volume in labels.items()}
    return PhantomSubject(f"{kind}-{seed}-{index}", domain, affine, images, labels)


def write_drawn_subject(
    root: Path, kind: str, index: int, seed: int, papillary: Convention = "cavity"
) -> dict[str, Any]:
    """Draw subject ``index``, write its files into ``root`` and return its rows and the size in bytes of every file."""
    rows = draw_subject(kind, index, seed=seed, papillary=papillary).save(root)
    files = [row[key] for row in rows for key in ("image", "label")]
    return {"index": index, "rows": rows, "files": {name: (root / name).stat().st_size for name in files}}


def write_drawn_table(root: Path, kind: str, subjects: list[dict[str, Any]]) -> None:
    """Write ``datalist.csv`` and ``labels.json``; subjects with odd numbers are for validation."""
    text = io.StringIO()
    columns = ("image", "label", "domain", "subject", "phase", "split")
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    for subject in subjects:
        split = "validation" if subject["index"] % 2 else "labeled"
        table.writerows({**row, "split": split} for row in subject["rows"])
    atomic_write(root / "datalist.csv", text.getvalue())
    write_json(root / "labels.json", DRAWN_LABELS[kind])


_Drawn = tuple[str, NDArray[np.float64], dict[str, Volume], dict[str, Labels]]


def _heart(rng: np.random.Generator, fov: float | None, papillary: Convention) -> _Drawn:
    exam: HeartExam = draw_heart_exam(rng)
    heart, protocol = exam.scene.ventricles, exam.protocol
    spacing = protocol.recon.spacing
    count = _count(fov or float(rng.uniform(180, 300)), spacing)
    first = heart.base - float(rng.uniform(0.4, 1.8)) * protocol.step
    places = np.arange(first, heart.outer_apex + 0.7 * protocol.step, protocol.step)
    shifts = rng.normal(0, 1.5, (len(places), 2))
    images, labels = {}, {}
    for phase, beat in (("ED", 0.0), ("ES", 1.0)):
        choices = [SliceChoice(float(w), beat, (float(s[0]), float(s[1]))) for w, s in zip(places, shifts, strict=True)]
        images[phase] = [exam.picture(choice, count, spacing, rng) for choice in choices]
        labels[phase] = np.stack([exam.label(choice, count, spacing, papillary) for choice in choices], axis=2)
    frame = oblique_frame(float(rng.uniform(30, 60)), float(rng.uniform(9, 28)), np.rad2deg(exam.turn))
    affine = _affine(frame, spacing, protocol.step, count, float(places[0]), rng.normal(0, 10, 3))
    return protocol.name, affine, _stored(images), labels


def _cord(rng: np.random.Generator, fov: float | None, papillary: Convention) -> _Drawn:
    exam = draw_cord_exam(rng)
    spacing = exam.recon.spacing
    count = _count(fov or float(rng.uniform(50, 90)), spacing)
    slices = int(np.clip(rng.uniform(35, 75) / exam.thickness, 3, 20))
    low = float(rng.uniform(4.5, 6.9))
    levels = [max(low - k * exam.thickness / _LEVEL_MM, 0.6) for k in range(slices)]
    images = {"": [exam.picture(level, count, spacing, rng) for level in levels]}
    labels = {"": np.stack([exam.label(level, count, spacing) for level in levels], axis=2)}
    nod, c, s = np.deg2rad(rng.normal(9, 4)), np.cos(exam.turn), np.sin(exam.turn)
    tilt = np.array([[1, 0, 0], [0, np.cos(nod), -np.sin(nod)], [0, np.sin(nod), np.cos(nod)]])
    frame = tilt @ np.diag([-1.0, -1.0, 1.0]) @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    affine = _affine(frame, spacing, exam.thickness, count, 0.0, rng.normal(0, 10, 3))
    return exam.name, affine, _stored(images), labels


def _count(fov: float, spacing: float) -> tuple[int, int]:
    size = max(16, round(fov / spacing))
    return size, size


def _affine(
    frame: NDArray[np.float64],
    spacing: float,
    step: float,
    count: tuple[int, int],
    first: float,
    shift: NDArray[np.float64],
) -> NDArray[np.float64]:
    affine = np.eye(4)
    affine[:3, :3] = frame * np.array([spacing, spacing, step])
    corner = np.array([-(count[0] - 1) / 2 * spacing, -(count[1] - 1) / 2 * spacing, first])
    affine[:3, 3] = frame @ corner + shift
    return affine


def _stored(images: dict[str, list[Floats]]) -> dict[str, Volume]:
    """Scale all phases together to 12 bits."""
    volumes = {phase: np.stack(pictures, axis=2) for phase, pictures in images.items()}
    top = max(max(float(volume.max()) for volume in volumes.values()), 1e-9)
    return {phase: np.rint(volume * (4095 / top)).astype(np.int16) for phase, volume in volumes.items()}


def _lose(volume: NDArray[Any], quarters: int, mirrored: bool, reversed_: bool) -> NDArray[Any]:
    volume = np.rot90(volume, quarters)
    volume = volume[::-1] if mirrored else volume
    return np.ascontiguousarray(volume[..., ::-1] if reversed_ else volume)
