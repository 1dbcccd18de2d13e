# SPDX-License-Identifier: Apache-2.0
"""Which volumes an inference config segments."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vmfseg.data.experiment import prepare_experiment
from vmfseg.data.reader import SUPPORTED_SUFFIXES, read_header
from vmfseg.utils import VmfError

__all__ = ["find_rows", "rows_of_file"]

#: Masks and factors beside the images in the layouts of M&Ms, SCGM and the phantom, and what this package writes.
_MASK = re.compile(r"(_gt|[_-]factors|-mask-r\d+|_seg)(\.nii|\.nii\.gz|\.nrrd|\.mha)$", re.IGNORECASE)


def find_rows(
    dataset_dir: str | os.PathLike[str] | None = "",
    dataset: str = "mnms",
    target_domain: str = "D",
    seed: int = 0,
    phantom: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return one row for each volume, one for each frame of a cine, as MONAI's transforms take them.

    Args:
        dataset_dir: a folder (with its subfolders) or one image; empty takes the target domain of the phantom. Hidden
            files and masks (``*_gt``, ``*-mask-rN``, ``*_seg``) are left out.
        dataset: which phantom, ``"mnms"`` or ``"scgm"``.
        target_domain: of the phantom.
        seed: of the phantom.
        phantom: further arguments of :func:`vmfseg.data.make_phantom`.

    Raises:
        VmfError: VMF295 if there is no image; otherwise as the reader.
    """
    if not dataset_dir:
        rows = prepare_experiment(dataset, "", target_domain, seed=seed, phantom=phantom).target
        return [{key: value for key, value in row.items() if key not in ("label", "annotated")} for row in rows]
    root = Path(dataset_dir).expanduser()
    files = [root] if root.is_file() else sorted(path for path in root.rglob("*") if _is_image(path, root))
    if not files:
        raise VmfError(
            "VMF295",
            subject=str(root),
            rule="the folder must hold images",
            found="none" if root.is_dir() else "no such folder",
            fix=f"pass --dataset_dir with a folder of {', '.join(SUPPORTED_SUFFIXES)} files",
        )
    return [row for path in files for row in rows_of_file(path)]


def rows_of_file(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the row of a 3-D file, or one row for each frame of a 4-D file; no voxel is read.

    Raises:
        VmfError: what the reader refuses.
    """
    name = os.path.abspath(os.fspath(path))
    header = read_header(name)
    if len(header.shape) == 4:
        return [{"image": name, "frame": frame} for frame in range(header.num_frames)]
    return [{"image": name}]


def _is_image(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    known = path.name.lower().endswith(SUPPORTED_SUFFIXES)
    return known and not hidden and not _MASK.search(path.name) and path.is_file()
