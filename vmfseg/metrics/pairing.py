# SPDX-License-Identifier: Apache-2.0
"""Pair predictions with truths by file name; read the domains of subjects from a table.

**The rule.** The image suffix (``.nii.gz``, ``.nii``, ``.nrrd``, ``.mha``) and one of the endings in :data:`ROLES`
(``_pred``, ``_seg``, ``_gt``, ``_label``, ...) are taken off; two files with the same rest are a pair, and the rest is
the name of the case. Where a folder holds both ``x`` and ``x_label``, the second is the label map and the first the
image. Maps that ``vmfseg segment`` writes beside its labels (:data:`BYPRODUCTS`) are left out. A folder that holds no
image itself is searched with all folders below, as M&Ms' has them; there only files with an ending of :data:`ROLES`
count, if there is one. A case that ends in ``_ED`` or ``_ES`` is that phase of the subject named by what stands
before; the ``_sa`` of short-axis files is not part of a subject's name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmfseg.data.csv_table import find_columns, read_table
from vmfseg.utils import VmfError, read_json
from vmfseg.utils.checks import whole_number

__all__ = ["BYPRODUCTS", "ROLES", "FilePair", "Pairing", "SubjectInfo", "case_name", "pair_files", "read_domains"]

StrPath = str | os.PathLike[str]

#: Endings of a file name that tell its role and not its case.
ROLES = ("pred", "prediction", "seg", "segmentation", "label", "labels", "labelmap", "mask", "gt", "truth")

#: Endings of images that are no label maps: what ``vmfseg segment`` writes on request, tissues of the phantom.
BYPRODUCTS = ("probabilities", "activations", "factors")

_SUFFIX = re.compile(r"\.(nii\.gz|nii|nrrd|mha)$", re.IGNORECASE)
_ROLE = re.compile(rf"[_-]({'|'.join(ROLES)})$", re.IGNORECASE)
_BYPRODUCT = re.compile(rf"[_-]({'|'.join(BYPRODUCTS)})$", re.IGNORECASE)
_PHASE = re.compile(r"[_-](ED|ES)$", re.IGNORECASE)
_SHORT_AXIS = re.compile(r"[_-]sa$", re.IGNORECASE)

_COLUMNS = {
    "subject": ("subject", "case", "id", "externalcode"),
    "image": ("image", "img", "scan"),
    "domain": ("domain", "vendor", "site", "center", "centre"),
    "ED": ("ed",),
    "ES": ("es",),
    "annotated": ("annotated",),
    "slices": ("slices",),
}


@dataclass(frozen=True)
class FilePair:
    """A prediction and its truth. ``pred`` is ``None`` where there is none."""

    case: str
    subject: str
    phase: str | None
    pred: Path | None
    truth: Path


@dataclass(frozen=True)
class Pairing:
    """What was found in two folders: the pairs, and the files without partner."""

    pairs: tuple[FilePair, ...]
    without_pred: tuple[FilePair, ...]
    without_truth: tuple[Path, ...]


@dataclass(frozen=True)
class SubjectInfo:
    """What a table says about a subject.

    Args:
        domain: scanner, vendor or site.
        frames: phase and frame number of 4-D files.
        annotated: names or values of the classes that were annotated, as in ``1;2``; ``None`` means all.
        slices: slices that were annotated, as in ``2-13``, or an object by class; ``None`` means all.
    """

    domain: str
    frames: tuple[tuple[str, int], ...] = ()
    annotated: str | None = None
    slices: Any = None


def case_name(path: StrPath) -> str | None:
    """Return the name of the case by the rule above, or ``None`` for a file that is no image.

    Example:
        >>> case_name("out/A0S9V9_sa_pred.nii.gz"), case_name("A0S9V9_sa_gt.nii.gz"), case_name("notes.txt")
        ('A0S9V9_sa', 'A0S9V9_sa', None)
    """
    name = Path(path).name
    stem = _SUFFIX.sub("", name)
    if stem == name or name.startswith(".") or _BYPRODUCT.search(stem):
        return None
    return _ROLE.sub("", stem)


def pair_files(predictions: StrPath, truths: StrPath) -> Pairing:
    """Pair the files of two folders by name, or two single files whatever their names.

    Args:
        predictions: folder of predicted label maps, or one file.
        truths: folder of true label maps, or one file.

    Raises:
        VmfError: VMF160 if a path is neither, VMF298 if nothing pairs, VMF299 if two files claim the same case.
    """
    folders = Path(predictions), Path(truths)
    for path in folders:
        if not path.exists() or path.is_dir() != folders[0].is_dir():
            raise VmfError(
                "VMF160", subject=str(path), found="no such file or folder" if not path.exists() else "one of each"
            )
    if folders[1].is_file():
        case = case_name(folders[1]) or folders[1].name
        return Pairing((FilePair(case, *_subject(case), folders[0], folders[1]),), (), ())
    pred, truth = _cases(folders[0]), _cases(folders[1])
    found = [FilePair(case, *_subject(case), pred.get(case), truth[case]) for case in sorted(truth)]
    pairs = tuple(pair for pair in found if pair.pred is not None)
    if not pairs:
        example = f"{next(iter(pred.values())).name if pred else 'no image'} and " + (
            next(iter(truth.values())).name if truth else "no image"
        )
        raise VmfError(
            "VMF298",
            subject=f"{predictions}, {truths}",
            found=f"{len(pred)} and {len(truth)} files, for instance {example}",
            fix=f"name them alike; the endings _{', _'.join(ROLES)} do not count",
        )
    missing = tuple(pair for pair in found if pair.pred is None)
    return Pairing(pairs, missing, tuple(pred[case] for case in sorted(set(pred) - set(truth))))


def read_domains(path: StrPath) -> dict[str, SubjectInfo]:
    """Read a table with the columns ``subject`` and ``domain``.

    Optional columns: the frames ``ED`` and ``ES`` of 4-D files (from 0), and ``annotated``, the classes that were
    annotated in this subject, and ``slices``, the slices that were annotated (both as in
    :mod:`vmfseg.transforms.annotation_text`; empty: all). A ``datalist.csv`` can be given: the file name of its
    ``image`` then says which case a line is about. The official table of M&Ms is read as it is: ``External code``,
    ``Vendor``, ``ED``, ``ES``.

    Raises:
        VmfError: VMF161 if the file cannot be read, a column is missing, or a row contradicts itself or another one.
    """
    try:
        header, lines = read_table(path)
        columns = find_columns(path, header, _COLUMNS, ["domain"])
        if "image" not in columns:
            find_columns(path, header, _COLUMNS, ["subject"])
    except VmfError as error:
        raise _bad_table(path, error.rule, error.found, error.fix) from error
    table: dict[str, SubjectInfo] = {}
    for line in lines:
        cells = {name: line[columns[name]] if name in columns else "" for name in _COLUMNS}
        subject, domain, image = (cells[key] for key in ("subject", "domain", "image"))
        if image:
            subject = _subject(case_name(image.partition(";")[0]) or Path(image).name)[0]
        info = SubjectInfo(
            domain, _frames(path, cells, subject), cells["annotated"] or None, _slices(path, cells["slices"])
        )
        if not subject or not domain or table.setdefault(subject, info) != info:
            fix = "give every subject one line and one domain"
            raise _bad_table(path, "a subject must have one domain", f"{subject or '?'}: {domain or '?'}", fix)
    return table


def _frames(path: StrPath, cells: Mapping[str, str], subject: str) -> tuple[tuple[str, int], ...]:
    frames = []
    for phase in ("ED", "ES"):
        cell = cells[phase]
        if cell:
            number = whole_number(cell)
            if number is None:
                raise _bad_table(
                    path, "ED and ES must be frame numbers from 0", f"{subject}: {cell}", "correct the cell"
                )
            frames.append((phase, number))
    return tuple(frames)


def _slices(path: StrPath, cell: str) -> Any:
    """Return the cell, or the content of the JSON file beside the table that it names."""
    return read_json(Path(path).parent / cell) if cell.lower().endswith(".json") else cell or None


def _bad_table(path: StrPath, rule: str, found: str, fix: str) -> VmfError:
    return VmfError("VMF161", subject=str(path), rule=rule, found=found, fix=fix)


def _subject(case: str) -> tuple[str, str | None]:
    phase = _PHASE.search(case)
    return _SHORT_AXIS.sub("", _PHASE.sub("", case)), phase.group(1).upper() if phase else None


def _cases(folder: Path) -> dict[str, Path]:
    files = [path for path in sorted(folder.iterdir()) if case_name(path) and path.is_file()]
    if not files:
        below = sorted(path for path in folder.rglob("*") if case_name(path) and path.is_file())
        files = [path for path in below if _has_role(path)] or below
    groups: dict[str, list[Path]] = {}
    for path in files:
        groups.setdefault(case_name(path) or "", []).append(path)
    return {case: _only(case, paths) for case, paths in groups.items()}


def _has_role(path: Path) -> bool:
    return _ROLE.search(_SUFFIX.sub("", path.name)) is not None


def _only(case: str, paths: Sequence[Path]) -> Path:
    with_role = [path for path in paths if _has_role(path)]
    chosen = with_role or list(paths)
    if len(chosen) > 1:
        raise VmfError(
            "VMF299",
            subject=str(chosen[0].parent),
            rule=f"two files claim the case {case}",
            found=", ".join(path.name for path in chosen),
        )
    return chosen[0]
