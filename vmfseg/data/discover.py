# SPDX-License-Identifier: Apache-2.0
"""Detect the kind of data set at a path and open it as a datalist."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from vmfseg.data.datalist import Datalist
from vmfseg.data.findings import Finding
from vmfseg.data.folder import FolderDataset
from vmfseg.data.mnms import MNMsDataset
from vmfseg.data.scgm import SCGMDataset
from vmfseg.utils import VmfError

__all__ = ["open_datalist"]


def open_datalist(
    path: str | os.PathLike[str], *, labels: Mapping[int, str] | None = None, checksums: bool = True
) -> tuple[Datalist, list[Finding]]:
    """Open whatever describes a data set and return its datalist with what was noticed on the way.

    A ``datalist.json`` (or a folder that holds one) is loaded; a folder with ``*_sa.nii.gz`` files is M&Ms, one with
    ``siteN-scMM-image.nii.gz`` files SCGM; any other folder, CSV or JSON is taken as a table of own scans.

    Args:
        path: file or folder.
        labels: class names of own scans whose table does not name them.
        checksums: compute the SHA-256 of every file of a folder.

    Raises:
        VmfError: VMF285 or VMF287 if nothing usable is there; otherwise as the data sets.

    Example:
        >>> open_datalist("no/such/folder")
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF287: there is no such file or folder
        ...
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise VmfError(
            "VMF287",
            subject=str(place),
            rule="there is no such file or folder",
            fix="give a datalist.json, a table of scans, or a folder with M&Ms, SCGM or your own data",
        )
    if place.is_dir() and (place / "datalist.json").is_file():
        place = place / "datalist.json"
    if place.is_file() and place.suffix.lower() == ".json" and _is_datalist(place):
        return Datalist.load(place, check_files=False), []
    source: MNMsDataset | SCGMDataset | FolderDataset
    if place.is_file():
        if place.suffix.lower() not in (".csv", ".tsv", ".json"):
            raise VmfError(
                "VMF287",
                subject=str(place),
                rule="a file must be a datalist or a table of scans",
                found=place.suffix or "no file extension",
                fix="give a .json or .csv file, or a folder",
            )
        source = FolderDataset(place.parent, place.name, labels=labels, checksums=checksums)
    elif next(place.rglob("*_sa.nii*"), None) is not None:
        source = MNMsDataset(place, checksums=checksums)
    elif next(place.rglob("site*-sc*-image.nii*"), None) is not None:
        source = SCGMDataset(place, checksums=checksums)
    else:
        source = FolderDataset(place, labels=labels, checksums=checksums)
    datalist = source.datalist()
    return datalist, source.findings


def _is_datalist(path: Path) -> bool:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return True  # let the loader say what is wrong
    return isinstance(content, dict) and "format" in content
