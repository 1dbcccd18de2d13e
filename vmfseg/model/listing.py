# SPDX-License-Identifier: Apache-2.0
"""Which volumes an inference config segments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from vmfseg.data.experiment import prepare_experiment
from vmfseg.data.reader import read_header
from vmfseg.model.inputs import find_images

__all__ = ["find_rows", "rows_of_file"]


def find_rows(
    dataset_dir: str | os.PathLike[str] | None = "",
    dataset: str = "mnms",
    target_domain: str = "D",
    seed: int = 0,
    phantom: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return one row for each volume, one for each frame of a cine, as MONAI's transforms take them.

    Args:
        dataset_dir: a folder (with its subfolders), one image or a glob pattern, see :func:`find_images`; empty takes
            the target domain of the phantom.
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
    files = [path for path, _ in find_images(dataset_dir)]
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
