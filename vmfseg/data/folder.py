# SPDX-License-Identifier: Apache-2.0
"""Data set of a user's own scans, described by a CSV or JSON table."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from vmfseg.data.csv_table import find_columns, integer, normalize, read_table
from vmfseg.data.datalist import Datalist, Row, add_checksums
from vmfseg.data.findings import Finding
from vmfseg.data.reader import image_stem
from vmfseg.data.row_schema import check_keys, integer_keys
from vmfseg.transforms.annotation_text import parse_annotated
from vmfseg.utils import VmfError, read_json

__all__ = ["FolderDataset"]

_COLUMNS = {
    "image": ("image", "img", "scan", "imagepath", "imagefile"),
    "label": ("label", "mask", "seg", "segmentation", "labelpath", "maskpath", "groundtruth", "gt"),
    "domain": ("domain", "vendor", "site", "scanner"),
    "subject": ("subject", "subjectid", "patient", "patientid", "id", "case"),
    "group": ("group", "centre", "center"),
    "frame": ("frame",),
    "phase": ("phase",),
    "split": ("split",),
    "annotated": ("annotated",),
    "slices": ("slices",),
    "present": ("present", "presence"),
}


class FolderDataset:
    r"""Your own scans as a :class:`~vmfseg.data.Datalist`, described by a CSV or JSON table.

    Columns: ``image`` and ``domain`` (required), ``label`` (empty for unlabelled scans), ``subject`` (default: the file
    name), ``group``, ``frame`` (of a 4-D file, from 0), ``phase``, ``split``, ``annotated``: the classes that this
    label annotates, as in ``1;2`` or ``LV;MYO``, and ``slices``: the slices that it annotates, as in ``2-13`` (see
    :class:`~vmfseg.data.datalist.Row`). What is not annotated is ignored in training and evaluation, not learnt as
    background. ``present`` is a presence label of a scan without mask: what its slices show, ``LV;MYO``. An image with
    several channels is a list of files, in a CSV cell ``t1.nii.gz;t2.nii.gz``. A JSON table is a list of such objects,
    or ``{"labels": ..., "label_map": ..., "rows": [...]}``.

    Args:
        root: the folder that the paths in the table are relative to. Nothing in it is written or moved.
        table: the table; default the only CSV or JSON in ``root`` with columns image and domain.
        labels: class names by class index, 0 (the background) may be left out; default the ``labels`` of a JSON table,
            or a file ``labels.json`` such as ``{"1": "LV", "2": "MYO"}`` beside the table.
        default_labels: class names where neither ``labels`` nor the data says any, for instance those of a bundle.
        label_map: class by value in the mask files, for instance ``{85: 1, 170: 2, 255: 3}``.
        name: name of the data set, default the name of the folder.
        checksums: compute the SHA-256 of every file.

    Raises:
        VmfError: VMF285 no table, VMF289 missing column, VMF280 to VMF284 wrong rows, VMF281 missing files.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("a.nii.gz", "a_label.nii.gz", "b.nii.gz"):
        ...     _ = (folder / name).write_bytes(b"...")
        >>> lines = "image,label,domain,annotated\na.nii.gz,a_label.nii.gz,siteA,1;2\nb.nii.gz,,siteB,\n"
        >>> _ = (folder / "scans.csv").write_text(lines)
        >>> data = FolderDataset(folder, labels={1: "LV", 2: "MYO", 3: "RV"}).datalist()
        >>> [(row.subject, row.is_labeled, row.annotated) for row in data.rows]
        [('a', True, (1, 2)), ('b', False, None)]
    """

    #: In-plane spacing in mm and size in pixels of the network's slices; set your own for other organs.
    pixdim: ClassVar[tuple[float, float]] = (1.2, 1.2)
    roi: ClassVar[tuple[int, int]] = (288, 288)

    def __init__(
        self,
        root: str | os.PathLike[str],
        table: str | os.PathLike[str] | None = None,
        *,
        labels: Mapping[int, str] | None = None,
        default_labels: Mapping[int, str] | None = None,
        label_map: Mapping[int, int] | None = None,
        name: str | None = None,
        checksums: bool = True,
    ) -> None:
        self.root = Path(root)
        self.table = None if table is None else Path(table)
        self.labels = labels
        self.default_labels = default_labels
        self.label_map = label_map
        self.name = name or os.path.basename(os.path.abspath(root))
        self.checksums = checksums
        self.findings: list[Finding] = []

    def datalist(self) -> Datalist:
        """Return one row per line of the table."""
        self.findings = []
        table = self._find_table()
        content = _read_json_table(table) if table.suffix.lower() == ".json" else _read_csv_table(table)
        labels = self.labels if self.labels is not None else content.get("labels")
        beside = table.parent / "labels.json"
        if labels is None and beside.is_file():
            labels = read_json(beside)
        labels = labels if labels is not None else self.default_labels
        if labels is None:
            raise VmfError(
                "VMF280",
                subject=str(table),
                rule="the classes must be named",
                found="no labels",
                fix='pass labels (--classes LV,MYO,RV), or write labels.json beside the table: {"1": "LV", "2": "MYO"}',
            )
        label_map = self.label_map if self.label_map is not None else content.get("label_map", {})
        classes = {0: "background", **integer_keys(str(table), "labels", labels)}
        rows = [
            self._row(f"{table}, entry {number}", item, classes) for number, item in enumerate(content["rows"], start=1)
        ]
        result = Datalist(self.name, self.root, classes, tuple(rows), integer_keys(str(table), "label_map", label_map))
        result.check_files(str(table))
        return add_checksums(result) if self.checksums else result

    def _find_table(self) -> Path:
        if self.table is not None:
            inside = self.root / self.table
            return inside if inside.is_file() else self.table
        if not self.root.is_dir():
            raise _refuse(str(self.root), "the folder does not exist", "nothing", "check the path")
        tables = [path for path in sorted(self.root.iterdir()) if path.suffix.lower() in (".csv", ".json", ".tsv")]
        usable = [path for path in tables if _describes_scans(path)]
        if len(usable) != 1:
            found = f"{len(usable)} tables: {', '.join(path.name for path in usable)}" if usable else "no such table"
            raise _refuse(
                str(self.root),
                "the folder must hold one CSV or JSON table with columns image and domain",
                found,
                "write one line a scan: image,label,domain,subject; or pass table=",
            )
        return usable[0]

    def _row(self, place: str, item: Mapping[str, Any], classes: Mapping[int, str]) -> Row:
        check_keys(place, item, set(), set(_COLUMNS))
        value, domain = item.get("image") or "", str(item.get("domain") or "")
        images = (
            [str(part) for part in value] if isinstance(value, list) else [p.strip() for p in str(value).split(";")]
        )
        if not all(images) or not images or not domain:
            raise _refuse(
                place, "image and domain must be given", f"image {value!r}, domain {domain!r}", "fill them in"
            )
        label = item.get("label") or None
        present = item.get("present") or None
        frame = item.get("frame")
        number = None if frame in (None, "") else integer(str(frame))
        if number is None and frame not in (None, ""):
            raise _refuse(place, "frame must be a whole number", str(frame), "frames count from 0")
        return Row(
            image=self._relative(images[0]) if len(images) == 1 else [self._relative(name) for name in images],
            label=[self._relative(str(path)) for path in label] if isinstance(label, list) else self._mask(label),
            domain=domain,
            subject=str(item.get("subject") or image_stem(images[0])),
            group=f"{domain}/{item['group']}" if item.get("group") else domain,
            frame=number,
            phase=str(item["phase"]) if item.get("phase") else None,
            split=str(item["split"]) if item.get("split") else None,
            annotated=_classes(place, item.get("annotated"), classes),
            slices=item.get("slices") if (label or present) and item.get("slices") not in ("", []) else None,
            present=present,
        )

    def _mask(self, label: Any) -> str | None:
        return None if label is None else self._relative(str(label))

    def _relative(self, name: str) -> str:
        """Return a path relative to the root; absolute paths outside are left for the datalist to refuse."""
        path = Path(name).expanduser()
        root = Path(os.path.abspath(self.root))
        if path.is_absolute() and path.is_relative_to(root):
            path = path.relative_to(root)
        return path.as_posix()


def _read_csv_table(path: Path) -> dict[str, Any]:
    header, lines = read_table(path)
    columns = find_columns(path, header, _COLUMNS, ["image", "domain"])
    return {"rows": [{name: line[position] for name, position in columns.items()} for line in lines]}


def _read_json_table(path: Path) -> dict[str, Any]:
    content = read_json(path)
    table = {"rows": content} if isinstance(content, list) else content
    if not isinstance(table, dict) or not isinstance(table.get("rows"), list):
        raise _refuse(str(path), "the table must be a list of objects, or an object with rows", "neither", "correct it")
    if not all(isinstance(row, dict) for row in table["rows"]):
        raise _refuse(str(path), "every row must be an object", "another type", "correct it")
    return table


def _describes_scans(path: Path) -> bool:
    """Tell whether a file in the folder is a table of scans; other CSV and JSON files may lie around."""
    if path.suffix.lower() != ".json":
        names = {normalize(name) for name in read_table(path)[0]} if path.stat().st_size else set()
        return all(names & set(_COLUMNS[column]) for column in ("image", "domain"))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    rows = content.get("rows") if isinstance(content, dict) else content
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], dict) and {"image", "domain"} <= set(rows[0])


def _classes(place: str, value: Any, classes: Mapping[int, str]) -> list[int] | None:
    try:
        return parse_annotated(value, classes)
    except ValueError as error:
        raise _refuse(place, "annotated must list classes", str(error), "write them as 1;2 or by name") from error


def _refuse(subject: str, rule: str, found: str, fix: str) -> VmfError:
    return VmfError("VMF285", subject=subject, rule=rule, found=found, fix=fix)
