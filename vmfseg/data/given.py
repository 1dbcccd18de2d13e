# SPDX-License-Identifier: Apache-2.0
"""A datalist from rows that another program hands over: images and labels, and nothing more."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vmfseg.data.datalist import Datalist
from vmfseg.data.rows import Row
from vmfseg.utils import VmfError

__all__ = ["given_datalist"]


def given_datalist(
    labeled: Sequence[Mapping[str, Any]], validation: Sequence[Mapping[str, Any]], labels: Mapping[int, str]
) -> Datalist:
    """Return a datalist whose rows are marked ``labeled`` and ``validation``.

    Nothing is known of whose scans they are, so every image counts as a subject of its own, in one domain.

    Args:
        labeled: paths by ``image`` and ``label``.
        validation: the same, of other images; an image that is in both stays with ``labeled``.
        labels: class names by value.

    Raises:
        VmfError: VMF280 for a row without a path, VMF281 for a file that does not exist, VMF292 without any row.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("a.nii.gz", "b.nii.gz", "b_label.nii.gz", "a_label.nii.gz"):
        ...     (folder / name).touch()
        >>> rows = [{"image": f"{folder}/{name}.nii.gz", "label": f"{folder}/{name}_label.nii.gz"} for name in "ab"]
        >>> [(row.subject, row.split) for row in given_datalist(rows[:1], rows, {0: "background", 1: "LV"}).rows]
        [('a.nii.gz', 'labeled'), ('b.nii.gz', 'validation')]
    """
    parts = {"labeled": labeled, "validation": validation}
    for part, rows in parts.items():
        for index, row in enumerate(rows):
            if not all(isinstance(row.get(key), str | os.PathLike) for key in ("image", "label")):
                raise VmfError(
                    "VMF280",
                    subject=f"{part} data, row {index}",
                    rule="image and label must be paths",
                    found=", ".join(f"{key} {type(row.get(key)).__name__}" for key in ("image", "label")),
                    fix="hand over a list of dictionaries with the paths of an image and its label",
                )
    if not labeled:
        raise VmfError(
            "VMF292",
            subject="labeled data",
            rule="training needs rows with labels",
            found="an empty list",
            fix="label an image first",
        )
    paths = [os.path.abspath(row[key]) for rows in parts.values() for row in rows for key in ("image", "label")]
    root = Path(os.path.commonpath([os.path.dirname(path) for path in paths]))
    found: dict[str, Row] = {}
    for part, rows in parts.items():
        for row in rows:
            image, label = (os.path.relpath(os.path.abspath(row[key]), root) for key in ("image", "label"))
            found.setdefault(image, Row(image, "given", subject=image, label=label, split=part))
    datalist = Datalist("given", root, dict(labels), tuple(found.values()))
    datalist.check_files()
    return datalist
