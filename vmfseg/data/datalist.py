# SPDX-License-Identifier: Apache-2.0
"""Datalist: the scans of a data set with their labels, subjects and domains.

A datalist is a JSON file of relative paths; the user's folders are never written to. Its format::

    {"format": "vmfseg-datalist-1", "name": "mnms", "root": ".", "labels": {"0": "background", "1": "LV", ...},
     "rows": [{"image": "A0S9V9_sa.nii.gz", "label": "A0S9V9_sa_gt.nii.gz", "domain": "A", "group": "A/1",
               "subject": "A0S9V9", "frame": 24, "phase": "ED", "split": null, "annotated": null,
               "slices": null, "present": null, "image_sha256": "...", "label_sha256": "..."}]}

``root`` is absolute or relative to the file. ``image`` may be a list of files (channels), ``label`` ``null``
(unlabelled) or a list of masks by several raters; ``slices`` says which slices were annotated, ``present`` what the
slices of a row without mask show (:class:`Row`). An
optional ``label_map`` says which class a value in the mask files stands for, where the two differ.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vmfseg.data.payload import nearest_file
from vmfseg.data.row_schema import (
    SPLITS,
    Row,
    check_classes,
    check_keys,
    check_present,
    check_rows,
    check_slices,
    integer_keys,
    parse_row,
    refuse,
)
from vmfseg.transforms.annotation_text import presence_text, slices_text
from vmfseg.utils import VmfError, read_json, sha256_file, write_json
from vmfseg.utils.io import sha256_bytes

__all__ = ["FORMAT", "SPLITS", "Datalist", "Row", "add_checksums"]

FORMAT = "vmfseg-datalist-1"

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Datalist:
    """A named list of :class:`Row` with the folder the paths are relative to and the names of the classes.

    Args:
        name: name of the data set.
        root: folder that the paths of the rows are relative to.
        labels: class names by class index, 0 is the background.
        rows: the volumes.
        label_map: class by value in the mask files, where that is not the class itself; empty for none.

    Raises:
        VmfError: VMF280 wrong type or value, VMF283 path outside the root, VMF284 duplicate row or a subject in two
            domains, VMF288 a subject in two splits.

    Example:
        >>> rows = [Row(image="a.nii.gz", domain="A", subject="s1"), Row(image="b.nii.gz", domain="B", subject="s2")]
        >>> data = Datalist("demo", Path("/data"), {0: "background", 1: "LV"}, rows)
        >>> data.domains, data.subjects, data.num_classes
        (('A', 'B'), ('s1', 's2'), 2)
        >>> data.to_dicts()[0]["image"], "label" in data.to_dicts()[0]
        ('/data/a.nii.gz', False)
    """

    name: str
    root: Path
    labels: Mapping[int, str]
    rows: tuple[Row, ...]
    label_map: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))
        object.__setattr__(self, "rows", tuple(self.rows))
        object.__setattr__(self, "labels", dict(sorted(self.labels.items())))
        object.__setattr__(self, "label_map", dict(self.label_map))
        check_classes(self.name, self.labels, self.label_map)
        check_rows(self.name, self.rows, self.labels)

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains, sorted."""
        return tuple(sorted({row.domain for row in self.rows}))

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects, sorted."""
        return tuple(sorted({row.subject for row in self.rows}))

    @property
    def num_classes(self) -> int:
        """Number of classes, background included."""
        return len(self.labels)

    @property
    def hash(self) -> str:
        """SHA-256 over the rows, classes and label map: the same for the same data, wherever it lies."""
        content = {"labels": self.labels, "label_map": self.label_map, "rows": [asdict(row) for row in self.rows]}
        return sha256_bytes(json.dumps(content, sort_keys=True).encode())

    def path(self, relative: str) -> Path:
        """Return the absolute path of a path of a row."""
        return Path(os.path.abspath(self.root / relative))

    def with_rows(self, rows: Iterable[Row]) -> Datalist:
        """Return the same datalist with other rows."""
        return replace(self, rows=tuple(rows))

    def to_dicts(self, rows: Iterable[Row] | None = None) -> list[dict[str, Any]]:
        """Return plain dictionaries with absolute paths, as MONAI's data sets take them.

        The key ``label`` is absent for unlabelled rows and ``frame`` for 3-D files, so a loader cannot open by accident
        what is not there.

        Args:
            rows: rows of this datalist, default all; for instance one part of a split.
        """
        return [self._to_dict(row) for row in (self.rows if rows is None else rows)]

    def _to_dict(self, row: Row) -> dict[str, Any]:
        images, labels = ([str(self.path(name)) for name in names] for names in (row.images, row.labels))
        item: dict[str, Any] = {"image": images[0] if len(images) == 1 else images}
        if row.is_labeled:
            item["label"] = labels[0] if isinstance(row.label, str) else labels
            if self.label_map:
                item["label_map"] = dict(self.label_map)
        if row.present is not None:
            where = f"{self.name}, subject {row.subject}"
            item["present"] = presence_text(check_present(where, row, self.labels))
        slices = self.slices_of(row) if row.is_labeled or row.present is not None else None
        if slices is not None:
            item["slices"] = slices_text(slices)
        if row.frame is not None:
            item["frame"] = row.frame
        annotated = None if row.annotated is None else list(row.annotated)
        item.update(domain=row.domain, subject=row.subject, group=row.group, phase=row.phase, annotated=annotated)
        return item

    def slices_of(self, row: Row) -> dict[int, list[int]] | None:
        """Return the annotated slices of a row by class number, ``None`` for all slices.

        Raises:
            VmfError: VMF280, VMF301 if its JSON file cannot be read or names what is not there.
        """
        if row.slices is None:
            return None
        value = row.slices if row.slices_file is None else read_json(self.path(row.slices_file))
        return check_slices(f"{self.name}, subject {row.subject}", row, value, self.labels)

    def save(self, path: StrPath, *, overwrite: bool = True) -> None:
        """Write the datalist as JSON, in one step.

        The root is written relative to the file when one of the two folders contains the other, so that they can move
        together, and absolute otherwise.
        """
        folder = Path(os.path.abspath(path)).parent
        root = Path(os.path.abspath(self.root))
        near = root.is_relative_to(folder) or folder.is_relative_to(root)
        content: dict[str, Any] = {
            "format": FORMAT,
            "name": self.name,
            "root": Path(os.path.relpath(root, folder)).as_posix() if near else str(root),
            "labels": {str(key): name for key, name in self.labels.items()},
        }
        if self.label_map:
            content["label_map"] = {str(key): value for key, value in self.label_map.items()}
        content["rows"] = [asdict(row) for row in self.rows]
        write_json(path, content, overwrite=overwrite)

    @classmethod
    def load(cls, path: StrPath, *, check_files: bool = True) -> Datalist:
        """Read a datalist and check it strictly.

        Args:
            path: the JSON file.
            check_files: whether every image and label must exist.

        Raises:
            VmfError: VMF280 to VMF288, VMF301 if the file is not JSON.
        """
        where = os.fspath(path)
        content = read_json(path)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            found = content.get("format", "no format key") if isinstance(content, dict) else type(content).__name__
            raise refuse(
                where, f"the file must be a datalist ({FORMAT!r})", str(found), "make one with vmfseg verify -o"
            )
        check_keys(where, content, {"format", "name", "root", "labels", "rows"}, {"label_map"})
        if not all(isinstance(content[key], str) for key in ("name", "root")) or not isinstance(content["rows"], list):
            raise refuse(where, "name and root must be text, rows a list", "another type", "correct the file")
        labels = integer_keys(where, "labels", content["labels"])
        label_map = integer_keys(where, "label_map", content.get("label_map", {}))
        rows = [parse_row(where, index, item) for index, item in enumerate(content["rows"])]
        root = Path(os.path.abspath(Path(os.path.abspath(where)).parent / content["root"]))
        result = cls(content["name"], root, labels, tuple(rows), label_map)
        if check_files:
            result.check_files(where)
        return result

    def check_files(self, where: str = "") -> None:
        """Refuse the datalist if a file is missing (VMF281)."""
        names = dict.fromkeys(
            name for row in self.rows for name in (*row.images, *row.labels, row.slices_file) if name is not None
        )
        missing = [name for name in names if not self.path(name).exists()]
        if missing:
            raise VmfError(
                "VMF281",
                subject=where or self.name,
                rule=f"{len(missing)} of {len(names)} files do not exist",
                found=f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''} in {self.root}",
                fix=f"correct the names, or the root of the datalist.{nearest_file(self.path(missing[0]))}",
            )


def add_checksums(datalist: Datalist) -> Datalist:
    """Return the datalist with the SHA-256 of every file; each file is read once, DICOM folders are left out."""
    known: dict[str, str | None] = {}

    def digest(name: str) -> str | None:
        if name not in known:
            path = datalist.path(name)
            known[name] = sha256_file(path) if path.is_file() else None
        return known[name]

    def sums(names: tuple[str, ...], single: bool) -> str | list[str] | None:
        values = [value for value in map(digest, names) if value is not None]
        if not values or len(values) < len(names):
            return None
        return values[0] if single else values

    return datalist.with_rows(
        replace(
            row,
            image_sha256=sums(row.images, isinstance(row.image, str)),
            label_sha256=sums(row.labels, isinstance(row.label, str)),
        )
        for row in datalist.rows
    )
