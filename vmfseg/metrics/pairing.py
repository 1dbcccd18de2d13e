# SPDX-License-Identifier: Apache-2.0
"""Pair predictions with truths by file name; read the domains of subjects from a table.

**The rule.** The image suffix (``.nii.gz``, ``.nii``, ``.nrrd``, ``.mha``) and one of the endings in :data:`ROLES`
(``_pred``, ``_seg``, ``_gt``, ``_label``, ...) are taken off; two files with the same rest are a pair, and the rest is
the name of the case. Where a folder holds both ``x`` and ``x_label``, the second is the label map and the first the
image. A case that ends in ``_ED`` or ``_ES`` is that phase of the subject named by what stands before; the ``_sa`` of
short-axis files is not part of a subject's name.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vmfseg.utils import VmfError, did_you_mean

__all__ = ["ROLES", "FilePair", "Pairing", "SubjectInfo", "case_name", "pair_files", "read_domains"]

StrPath = str | os.PathLike[str]

#: Endings of a file name that tell its role and not its case.
ROLES = ("pred", "prediction", "seg", "segmentation", "label", "labels", "labelmap", "mask", "gt", "truth")

_SUFFIX = re.compile(r"\.(nii\.gz|nii|nrrd|mha)$", re.IGNORECASE)
_ROLE = re.compile(rf"[_-]({'|'.join(ROLES)})$", re.IGNORECASE)
_PHASE = re.compile(r"[_-](ED|ES)$", re.IGNORECASE)
_SHORT_AXIS = re.compile(r"[_-]sa$", re.IGNORECASE)

_COLUMNS = {
    "subject": ("subject", "case", "id", "external code"),
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
        annotated: names or values of the classes that were annotated; ``None`` means all.
        slices: slices that were annotated, as in ``2-13``; ``None`` means all.
    """

    domain: str
    frames: tuple[tuple[str, int], ...] = ()
    annotated: tuple[str, ...] | None = None
    slices: str | None = None


def case_name(path: StrPath) -> str | None:
    """Return the name of the case by the rule above, or ``None`` for a file that is no image.

    Example:
        >>> case_name("out/A0S9V9_sa_pred.nii.gz"), case_name("A0S9V9_sa_gt.nii.gz"), case_name("notes.txt")
        ('A0S9V9_sa', 'A0S9V9_sa', None)
    """
    name = Path(path).name
    return _ROLE.sub("", _SUFFIX.sub("", name)) if _SUFFIX.search(name) and not name.startswith(".") else None


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
                "VMF160",
                subject=str(path),
                rule="predictions and truth must be two folders or two files",
                found="no such file or folder" if not path.exists() else "one of each",
                fix="check the paths",
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
            rule="no prediction has the name of a truth file",
            found=f"{len(pred)} and {len(truth)} files, for instance {example}",
            fix=f"name them alike; the endings _{', _'.join(ROLES)} do not count",
        )
    missing = tuple(pair for pair in found if pair.pred is None)
    return Pairing(pairs, missing, tuple(pred[case] for case in sorted(set(pred) - set(truth))))


def read_domains(path: StrPath) -> dict[str, SubjectInfo]:
    """Read a table with the columns ``subject`` and ``domain``.

    Optional columns: the frames ``ED`` and ``ES`` of 4-D files (from 0), and ``annotated``, the classes that were
    annotated in this subject, by name or value with spaces between (empty: all), and ``slices``, the slices that were
    annotated (:mod:`vmfseg.transforms.annotation`; empty: all). The official table of M&Ms is read
    as it is: ``External code``, ``Vendor``, ``ED``, ``ES``.

    Raises:
        VmfError: VMF161 if the file cannot be read, a column is missing, or a row contradicts itself or another one.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            text = stream.read()
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_table(path, "the table must be readable text", str(error), "check the path") from error
    separator = ";" if text.partition("\n")[0].count(";") > text.partition("\n")[0].count(",") else ","
    reader = csv.DictReader(text.splitlines(), delimiter=separator)
    columns = {name.strip().lower(): name for name in reader.fieldnames or ()}
    names = {key: next((columns[word] for word in words if word in columns), None) for key, words in _COLUMNS.items()}
    for key in ("subject", "domain"):
        if names[key] is None:
            near = did_you_mean(key, columns)
            raise _bad_table(path, f"the table must have a column {key}", ", ".join(columns), f"add it.{near}")
    table: dict[str, SubjectInfo] = {}
    for line in reader:
        subject, domain = (_cell(line, names[key]) for key in ("subject", "domain"))
        words = _cell(line, names["annotated"]).split()
        info = SubjectInfo(
            domain, _frames(path, line, names, subject), tuple(words) or None, _cell(line, names["slices"]) or None
        )
        if not subject or not domain or table.setdefault(subject, info) != info:
            fix = "give every subject one line and one domain"
            raise _bad_table(path, "a subject must have one domain", f"{subject or '?'}: {domain or '?'}", fix)
    return table


def _frames(
    path: StrPath, line: dict[str, str], names: dict[str, str | None], subject: str
) -> tuple[tuple[str, int], ...]:
    frames = []
    for phase in ("ED", "ES"):
        cell = _cell(line, names[phase])
        if cell:
            if not cell.isdigit():
                raise _bad_table(
                    path, "ED and ES must be frame numbers from 0", f"{subject}: {cell}", "correct the cell"
                )
            frames.append((phase, int(cell)))
    return tuple(frames)


def _cell(line: Mapping[str, str | None], column: str | None) -> str:
    return "" if column is None else (line.get(column) or "").strip()


def _bad_table(path: StrPath, rule: str, found: str, fix: str) -> VmfError:
    return VmfError("VMF161", subject=str(path), rule=rule, found=found, fix=fix)


def _subject(case: str) -> tuple[str, str | None]:
    phase = _PHASE.search(case)
    return _SHORT_AXIS.sub("", _PHASE.sub("", case)), phase.group(1).upper() if phase else None


def _cases(folder: Path) -> dict[str, Path]:
    groups: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        case = case_name(path)
        if case and path.is_file():
            groups.setdefault(case, []).append(path)
    return {case: _only(case, paths) for case, paths in groups.items()}


def _only(case: str, paths: Sequence[Path]) -> Path:
    with_role = [path for path in paths if _ROLE.search(_SUFFIX.sub("", path.name))]
    chosen = with_role or list(paths)
    if len(chosen) > 1:
        raise VmfError(
            "VMF299",
            subject=str(chosen[0].parent),
            rule=f"two files claim the case {case}",
            found=", ".join(path.name for path in chosen),
            fix="keep one of them in the folder",
        )
    return chosen[0]
