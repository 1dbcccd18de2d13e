# SPDX-License-Identifier: Apache-2.0
"""Data of a study: its domains, and the fingerprint by which runs on other data are other runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vmfseg.data import Datalist, FolderDataset
from vmfseg.data.experiment import read_dataset
from vmfseg.phantom.make import GENERATORS
from vmfseg.phantom.vendors import CORD_SITES, HEART_CENTERS
from vmfseg.studies.study_file import Study
from vmfseg.utils import VmfError, did_you_mean, write_json
from vmfseg.utils.io import StrPath

__all__ = ["SourceData", "find_data"]

_SITES = {f"site{protocol.site}" for protocol in CORD_SITES}


@dataclass(frozen=True)
class SourceData:
    """What a study learns from and is judged by.

    Attributes:
        dataset: ``"mnms"``, ``"scgm"`` or ``"folder"``.
        root: folder of the data; empty for the phantom.
        fingerprint: of its files; for the phantom, of its generator.
        domains: that can be left out.
        datalist: of the rows that the study file lists, ``None`` where the data describes itself.
    """

    dataset: str
    root: str
    fingerprint: dict[str, Any]
    domains: tuple[str, ...]
    datalist: Datalist | None = field(default=None, repr=False)


def find_data(study: Study, dataset_dir: StrPath = "") -> SourceData:
    """Open the data of a study and make sure that it has all targets.

    Args:
        study: what it needs.
        dataset_dir: its folder; empty for the phantom.

    Raises:
        VmfError: VMF372 a target that the data does not have, VMF297 no folder where one is needed, and what the data
            sets refuse.
    """
    if not dataset_dir:
        if study.table:
            raise VmfError(
                "VMF297",
                subject="--dataset_dir",
                rule="this study needs a folder of scans",
                found=f"{study.name} lists {len(study.table['rows'])} rows",
                fix="pass --dataset_dir with the folder that holds them",
            )
        domains = {center.vendor for center in HEART_CENTERS} if study.data == "mnms" else _SITES
        found = SourceData(
            study.data, "", {"phantom": study.data, "generator": GENERATORS[study.data]}, tuple(sorted(domains))
        )
    else:
        root = Path(dataset_dir).expanduser().absolute()
        if study.table:
            datalist = _listed(study.table, root)
            found = SourceData("folder", str(root), {"data": datalist.hash}, datalist.domains, datalist)
        else:
            datalist = read_dataset(study.data, root)
            found = SourceData(study.data, str(root), {"data": datalist.hash}, datalist.domains)
    for target in study.targets:
        if target not in found.domains:
            raise VmfError(
                "VMF372",
                subject=f"{study.name}: targets, {target}",
                rule="every target must be a domain of the data",
                found=f"{found.root or 'the phantom'} has {', '.join(found.domains)}",
                fix=did_you_mean(target, found.domains).strip() or "correct targets, or pass the data set that has it",
            )
    return found


def _listed(table: Mapping[str, Any], root: Path) -> Datalist:
    """Return the datalist of the rows of a study file, whose paths are relative to ``root``."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "table.json"
        write_json(file, dict(table))
        return FolderDataset(root, file, name=os.path.basename(root)).datalist()
