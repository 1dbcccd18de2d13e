# SPDX-License-Identifier: Apache-2.0
"""Schema of a datalist: its rows and the rules they must obey."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from vmfseg.transforms.annotation_text import parse_presence, parse_slices
from vmfseg.utils import VmfError, did_you_mean

__all__ = [
    "SPLITS",
    "Row",
    "check_classes",
    "check_keys",
    "check_present",
    "check_rows",
    "check_slices",
    "integer_keys",
    "parse_row",
    "refuse",
]

#: The parts a row may belong to.
SPLITS = ("labeled", "unlabeled", "validation", "target")

_SHAREABLE = {"labeled", "unlabeled"}  # the reference protocol shows labelled subjects without their labels as well
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("domain", "subject", "group"), (str,)),
    **dict.fromkeys(("phase", "split"), (str, type(None))),
    **dict.fromkeys(("label", "image_sha256", "label_sha256"), (str, list, type(None))),
    "image": (str, list),
    "frame": (int, type(None)),
    "annotated": (list, type(None)),
    "slices": (str, list, dict, type(None)),
    "present": (str, list, dict, type(None)),
}


@dataclass(frozen=True)
class Row:
    """One volume: a 3-D file, or one frame of a 4-D file.

    Args:
        image: path relative to the root of the datalist, or a list of paths: the channels of one image on one grid.
        domain: vendor, site or scanner; what generalization is about.
        subject: whose scan it is; splits never part the rows of a subject.
        label: mask, list of masks by several raters, or ``None``.
        group: unit of :func:`~vmfseg.data.splits.labeled_fraction`, for instance vendor and centre; default the domain.
        frame: zero-based frame of a 4-D file, ``None`` for a 3-D file.
        phase: ``"ED"``, ``"ES"`` or ``None``.
        split: ``None`` or one of :data:`SPLITS`.
        annotated: classes that this label annotates, ``None`` for all; others are ignored, not learnt as background.
        slices: slices that were annotated, ``None`` for all: ``"2-13"``, a list of numbers, an object by class, or the
            path of a JSON file with such an object (see :mod:`vmfseg.transforms.annotation_text`). Others are ignored.
        present: of a row without label, the structures that its slices show, ``"LV;MYO"``, or an object by class with
            the slices that show it, ``{"LV": "2-9", "MYO": "2-9"}``: a presence label (vMFWeak). ``annotated`` and
            ``slices`` say which classes and slices somebody looked at; default all.
        image_sha256: checksum of the image file, or of each channel's.
        label_sha256: checksum of the label file, or of each rater's.

    Example:
        >>> row = Row(image="a.nii.gz", domain="A", subject="s1", label=["r1.nii.gz", "r2.nii.gz"])
        >>> row.label, row.group, row.is_labeled
        (('r1.nii.gz', 'r2.nii.gz'), 'A', True)
    """

    image: str | tuple[str, ...] | list[str]
    domain: str
    subject: str
    label: str | tuple[str, ...] | list[str] | None = None
    group: str = ""
    frame: int | None = None
    phase: str | None = None
    split: str | None = None
    annotated: tuple[int, ...] | list[int] | None = None
    slices: str | list[int] | dict[str, Any] | None = None
    present: str | list[Any] | dict[str, Any] | None = None
    image_sha256: str | tuple[str, ...] | list[str] | None = None
    label_sha256: str | tuple[str, ...] | list[str] | None = None

    def __post_init__(self) -> None:
        texts = ("slices", "present")
        for name in ("image", "label", "annotated", "image_sha256", "label_sha256", *texts):  # rows are hashable
            value = getattr(self, name)
            if name in texts and isinstance(value, list | tuple | dict):
                object.__setattr__(self, name, json.dumps(value))
            elif isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        if not self.group:
            object.__setattr__(self, "group", self.domain)

    @property
    def is_labeled(self) -> bool:
        """Whether there is a label."""
        return self.label is not None

    @property
    def images(self) -> tuple[str, ...]:
        """The image paths, one a channel."""
        return _paths(self.image)

    @property
    def labels(self) -> tuple[str, ...]:
        """The label paths: none, one, or one per rater."""
        return _paths(self.label)

    @property
    def slices_file(self) -> str | None:
        """The path of the JSON file that says which slices were annotated, if it is said in a file."""
        text = str(self.slices or "")
        return text if text.lower().endswith(".json") else None

    def without_label(self) -> Row:
        """Return the row as an unlabelled one."""
        return replace(self, label=None, label_sha256=None, annotated=None, slices=None, present=None)


def _paths(value: str | tuple[str, ...] | list[str] | None) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def parse_row(where: str, index: int, item: Any) -> Row:
    """Build a row from a JSON object (VMF280, VMF282)."""
    place = f"{where}, row {index}"
    if not isinstance(item, dict):
        raise refuse(place, "a row must be an object", type(item).__name__, "correct the file")
    names = {entry.name for entry in fields(Row)}
    check_keys(place, item, {"image", "domain", "subject"}, names)
    for name, value in item.items():
        members = value if isinstance(value, list) and name not in ("slices", "present") else []
        kind: type = int if name == "annotated" else str
        if not isinstance(value, _TYPES[name]) or not all(type(member) is kind for member in members):
            raise refuse(place, f"{name} has the wrong type", json.dumps(value)[:60], "see the format in the help")
    return Row(**item)


def check_keys(where: str, item: Mapping[str, Any], required: set[str], optional: set[str]) -> None:
    """Refuse unknown keys, with the nearest known one, and missing keys (VMF280, VMF282)."""
    for key in item:
        if key not in required | optional:
            hint = did_you_mean(key, required | optional) or f" Known: {', '.join(sorted(required | optional))}."
            raise VmfError("VMF282", subject=where, rule=f"unknown key {key!r}", fix=hint.strip())
    missing = sorted(required - set(item))
    if missing:
        raise refuse(where, f"{', '.join(missing)} must be given", "no such key", "add it")


def integer_keys(where: str, name: str, value: Any) -> dict[int, Any]:
    """Turn the keys of a JSON object into integers (VMF280)."""
    try:
        return {int(key): entry for key, entry in value.items()}
    except (AttributeError, ValueError, TypeError) as error:
        raise refuse(
            where, f"{name} must be an object with integers as keys", json.dumps(value)[:60], "correct the file"
        ) from error


def check_classes(where: str, labels: Mapping[int, str], label_map: Mapping[int, int]) -> None:
    """Refuse class numbers with gaps, equal names, and label maps that lead nowhere (VMF280)."""
    names = list(labels.values())
    if list(labels) != list(range(len(labels))) or len(names) < 2:
        raise refuse(
            where,
            "labels must name the classes 0 (background), 1, 2, ... without gaps",
            str(dict(labels)),
            "number the classes in order; values in the mask files go into label_map",
        )
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        raise refuse(where, "class names must be different texts", str(names), "rename the classes")
    wrong = [value for value in label_map.values() if value not in labels]
    if wrong:
        raise refuse(
            where, "label_map must lead to classes of labels", f"{wrong}", f"use {', '.join(map(str, labels))}"
        )


def check_rows(where: str, rows: Iterable[Row], labels: Mapping[int, str]) -> None:
    """Refuse rows that are wrong or contradict each other (VMF280, VMF283, VMF284, VMF288)."""
    seen: dict[tuple[tuple[str, ...], int | None], Row] = {}
    first: dict[str, Row] = {}
    splits: dict[str, set[str]] = {}
    for row in rows:
        place = f"{where}, subject {row.subject}"
        if not row.subject or not row.domain or not row.images or not all(row.images):
            raise refuse(place, "image, domain and subject must not be empty", str(row.image), "fill them in")
        for name in (*row.images, *row.labels, *_paths(row.slices_file)):
            _check_inside(place, name)
        if row.frame is not None and row.frame < 0:
            raise refuse(place, "frame must be 0 or more", str(row.frame), "frames count from 0")
        if row.split is not None and row.split not in SPLITS:
            hint = did_you_mean(row.split, SPLITS).strip() or f"use one of {', '.join(SPLITS)}"
            raise refuse(place, f"split must be one of {', '.join(SPLITS)}", row.split, hint)
        for value in row.annotated or ():
            if value not in labels or value == 0:
                raise refuse(place, "annotated must list classes of labels", str(value), "0 is always annotated")
        if row.slices is not None and row.slices_file is None:
            check_slices(place, row, row.slices, labels)
        if row.present is not None:
            check_present(place, row, labels)
        key = (tuple(map(os.path.normpath, row.images)), row.frame)
        other = seen.setdefault(key, row)
        if other is not row and {other.split, row.split} != _SHAREABLE:
            frame = "" if row.frame is None else f" frame {row.frame}"
            raise VmfError(
                "VMF284",
                subject=place,
                rule="rows contradict each other",
                found=f"{', '.join(row.images)}{frame} is listed twice",
                fix="remove one of the rows",
            )
        known = first.setdefault(row.subject, row)
        if known.domain != row.domain:
            raise VmfError(
                "VMF284",
                subject=place,
                rule="a subject must be in one domain",
                found=f"{known.images[0]} in domain {known.domain!r}, {row.images[0]} in {row.domain!r}",
                fix="give its rows one domain, or the subjects different names",
            )
        if row.split is not None:
            splits.setdefault(row.subject, set()).add(row.split)
    for subject, parts in splits.items():
        if len(parts) > 1 and not parts <= _SHAREABLE:
            raise VmfError(
                "VMF288",
                subject=f"{where}, subject {subject}",
                rule="a subject must not be in two splits",
                found=", ".join(sorted(parts)),
                fix="give all rows of the subject the same split",
            )


def check_slices(place: str, row: Row, value: Any, labels: Mapping[int, str]) -> dict[int, list[int]]:
    """Return the annotated slices of a row by class number, or refuse them (VMF280)."""
    try:
        return parse_slices(value, labels, labels if row.annotated is None else row.annotated)
    except ValueError as error:
        fix = 'write 2-13, or {"LV": "2-13", "MYO": "2-10"}'
        raise refuse(place, "slices must list annotated slices", str(error), fix) from error


def check_present(place: str, row: Row, labels: Mapping[int, str]) -> dict[int, list[int] | None]:
    """Return the slices of a row that show each class, ``None`` for all of them, or refuse them (VMF280)."""
    if row.is_labeled:
        raise refuse(place, "present is for rows without label", str(row.present), "leave it empty: the label says it")
    try:
        return parse_presence(row.present, labels)
    except ValueError as error:
        raise refuse(place, "present must list classes", str(error), 'write LV;MYO, or {"LV": "2-9"}') from error


def _check_inside(place: str, name: str) -> None:
    normal = os.path.normpath(name)
    if os.path.isabs(name) or normal == ".." or normal.startswith(".." + os.sep) or "\0" in name:
        raise VmfError("VMF283", subject=place, found=name)


def refuse(where: str, rule: str, found: str, fix: str) -> VmfError:
    """Return the error of a datalist that breaks its schema (VMF280)."""
    return VmfError("VMF280", subject=where, rule=rule, found=found, fix=fix)
