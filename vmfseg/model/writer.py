# SPDX-License-Identifier: Apache-2.0
"""Label maps on the grid and with the header of the image they belong to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.data.reader import SUPPORTED_SUFFIXES
from vmfseg.model.scan import Scan, map_image, write_map

__all__ = ["label_path", "write_label"]

StrPath = str | os.PathLike[str]


def write_label(path: StrPath, label: npt.NDArray[Any], image: StrPath, *, overwrite: bool = True) -> Path:
    """Write a label map as NIfTI with the geometry of ``image``: the same voxels, forms, codes and units.

    The file appears complete or not at all.

    Args:
        path: ``.nii.gz`` or ``.nii``.
        label: class numbers below 256, ``(x, y, z)`` of the image.
        image: the image it belongs to; of a 4-D file the label is one frame.
        overwrite: whether an existing file may be replaced.

    Raises:
        ValueError: if the label has not the image's shape or does not fit into 8 bits.
        VmfError: what the reader refuses; VMF501 to VMF503 if the file cannot be written.

    Example:
        >>> import nibabel as nib, tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> nib.save(nib.Nifti1Image(np.zeros((32, 24, 3), np.int16), np.diag([1.2, 1.2, 8, 1])), folder / "a.nii.gz")
        >>> file = write_label(folder / "a_seg.nii.gz", np.ones((32, 24, 3)), folder / "a.nii.gz")
        >>> nib.load(file).get_data_dtype(), nib.load(file).shape
        (dtype('uint8'), (32, 24, 3))
    """
    scan, values = Scan.open(image), np.asarray(label)
    if values.shape != scan.grid_shape:
        raise ValueError(
            f"label must have the shape of the image {scan.grid_shape}, got {values.shape}. "
            "Invert the transforms before writing."
        )
    if values.size and (values.min() < 0 or values.max() > 255 or not np.array_equal(values, np.rint(values))):
        raise ValueError("label must hold class numbers from 0 to 255, got other values. Write the argmax.")
    if scan.num_frames == 1 and len(scan.header.shape) == 4:
        values = values[..., None]
    write_map(path, map_image(scan, values.astype(np.uint8)), overwrite=overwrite)
    return Path(path)


def label_path(
    image: StrPath, output_dir: StrPath, frame: int | None = None, root: StrPath = "", postfix: str = "seg"
) -> Path:
    """Return where the label of an image goes: its name with a postfix, in its subfolder below ``root``.

    Example:
        >>> label_path("/data/A/a.nii.gz", "out", frame=3, root="/data").as_posix()
        'out/A/a_frame03_seg.nii.gz'
    """
    source = Path(image)
    ending = next((s for s in sorted(SUPPORTED_SUFFIXES, key=len)[::-1] if source.name.lower().endswith(s)), "")
    stem = source.name[: len(source.name) - len(ending)]
    folder = Path(output_dir)
    if root and source.parent.is_relative_to(root):
        folder = folder / source.parent.relative_to(root)
    return folder / f"{stem}{'' if frame is None else f'_frame{frame:02d}'}_{postfix}.nii.gz"
