# SPDX-License-Identifier: Apache-2.0
"""Labels of single frames of a cine, kept together as one label with all frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.data.reader import read_volume
from vmfseg.model.scan import Scan, map_image, write_map
from vmfseg.serving.image_index import IndexedImage
from vmfseg.utils import VmfError

__all__ = ["check_frame", "write_frame_label"]


def check_frame(frame: Any, frames: int) -> int:
    """Return the number of a frame if the image has it.

    Raises:
        VmfError: VMF185 no whole number, VMF235 a frame that does not exist.

    Example:
        >>> check_frame(8, 8)
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF235: the frame must exist...
    """
    fix = f"Choose a frame from 0 to {frames - 1}."
    if isinstance(frame, bool) or not isinstance(frame, int):
        found = repr(frame)[:40]
        raise VmfError("VMF185", subject="frame", rule="must be a whole number", found=found, fix=fix)
    if not 0 <= frame < frames:
        raise VmfError("VMF235", subject="frame", found=f"frame {frame}", fix=fix)
    return frame


def write_frame_label(
    study: IndexedImage, old: Path | None, values: npt.NDArray[Any], frame: Any, folder: Path
) -> Path:
    """Write a label with all frames of a cine: the given frame, the other ones as they were, or else empty.

    Args:
        study: the cine.
        old: its label until now. One that does not have the frames of the cine is not used.
        values: the label of the frame, on the grid of the cine.
        frame: counted from 0.
        folder: where to write the file.

    Raises:
        VmfError: VMF185 and VMF235 about the frame, VMF501 to VMF503 if the file cannot be written.
    """
    scan = Scan.open(study.path)
    number = check_frame(frame, scan.num_frames)
    whole = np.zeros((*scan.grid_shape, scan.num_frames), np.float32)
    if old is not None:
        known = read_volume(old, kind="label").array
        if known.shape == whole.shape:
            whole[:] = known
    whole[..., number] = values
    kind = "uint8" if whole.max() <= np.iinfo(np.uint8).max else "uint16"
    target = folder / "frames.nii.gz"
    write_map(target, map_image(scan, whole.astype(kind)))
    return target
