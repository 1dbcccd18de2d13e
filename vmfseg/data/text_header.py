# SPDX-License-Identifier: Apache-2.0
"""What the text headers of NRRD and MetaImage files have in common: bounded reading, strict numbers, checked units.

The parsers of ITK are not used on files of unknown origin: some headers (``NDims = 999999999``) make them write beyond
their arrays, which kills the process, and others (units, spaces, intensity scaling) they ignore.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.data.geometry import Affine
from vmfseg.utils import VmfError

__all__ = [
    "LPS_TO_RAS", "TextHeader", "axis_sizes", "check_unit", "finite_numbers", "itk_affine", "no_spacing", "not_scalar",
    "read_head", "refuse_header", "spatial_part", "whole_numbers",
]  # fmt: skip

#: ITK and DICOM count mm to the left and to the back, NIfTI and MONAI to the right and to the front.
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])

_MAX_HEADER = 1 << 20
_MM = {"mm", "millimeter", "millimeters", "millimetre", "millimetres", "", "?", "???", "none"}


@dataclass(frozen=True)
class TextHeader:
    """What a text header declares, before shape and grid are checked.

    Attributes:
        sizes: of the axes, fastest first.
        affine: voxel index to mm in RAS.
        dtype: of the voxels, with byte order.
        start: first byte of the voxels in the file.
        encoding: ``"raw"``, ``"gzip"`` or ``"zlib"``.
        place: empty, or what of the orientation the header does not say.
        slope: factor from stored to real values.
        inter: offset from stored to real values.
    """

    sizes: tuple[int, ...]
    affine: Affine
    dtype: np.dtype[Any]
    start: int
    encoding: str
    place: str = ""
    slope: float = 1.0
    inter: float = 0.0


def itk_affine(directions: Any, spacing: Any, origin: Any) -> Affine:
    """Return the RAS affine of an ITK geometry; ``directions[i]`` is the direction of array axis ``i``."""
    affine = np.eye(4)
    affine[:3, :3] = np.asarray(directions, dtype=np.float64)[:3, :3].T * np.asarray(spacing, dtype=np.float64)[:3]
    affine[:3, 3] = np.asarray(origin, dtype=np.float64)[:3]
    return np.asarray(LPS_TO_RAS @ affine, dtype=np.float64)


def read_head(path: str) -> bytes:
    """Return the beginning of a file, which must hold the whole header."""
    with Path(path).open("rb") as stream:
        return stream.read(_MAX_HEADER)


def whole_numbers(path: str, key: str, text: str) -> tuple[int, ...]:
    """Read whole numbers that are separated by spaces.

    Raises:
        VmfError: VMF240.

    Example:
        >>> whole_numbers("a.mha", "DimSize", "20 18 4")
        (20, 18, 4)
    """
    words = text.split()
    if not words or not all(re.fullmatch(r"[+-]?\d{1,10}", word, re.ASCII) for word in words):
        raise refuse_header(path, f"{key} is {text[:60]!r}, no whole numbers")
    return tuple(int(word) for word in words)


def axis_sizes(path: str, count: tuple[str, str], sizes: tuple[str, str]) -> tuple[int, ...]:
    """Return the sizes of three or four axes, which two fields, each given as name and text, must agree on.

    Raises:
        VmfError: VMF240.
    """
    axes = whole_numbers(path, *count)[0]
    if axes not in (3, 4):
        raise refuse_header(path, "a 2-D image without a place in space" if axes == 2 else f"{count[0]} is {axes}")
    found = whole_numbers(path, *sizes)
    if len(found) != axes:
        raise refuse_header(path, f"{count[0]} is {axes} and {sizes[0]} {sizes[1][:60]}")
    return found


def finite_numbers(path: str, key: str, text: str, count: int) -> npt.NDArray[np.float64]:
    """Read ``count`` finite numbers that are separated by spaces.

    Raises:
        VmfError: VMF240.
    """
    words = text.split()
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if len(values) != count or not all(math.isfinite(value) for value in values):
        raise refuse_header(path, f"{key} is {text[:60]!r}, not {count} finite numbers")
    return np.asarray(values, dtype=np.float64)


def spatial_part(path: str, key: str, matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the spatial 3 by 3 part of a matrix whose fourth axis, time, must stand alone.

    Raises:
        VmfError: VMF240.
    """
    if matrix[:3, 3:].any() or matrix[3:, :3].any():
        raise refuse_header(path, f"{key} mixes space and time")
    return matrix[:3, :3]


def check_unit(path: str, unit: str) -> None:
    """Refuse a spatial unit that is not mm (VMF222); none at all means mm, by convention of both formats."""
    if unit.strip().strip('"').lower() not in _MM:
        raise VmfError(
            "VMF222", subject=path, found=unit.strip()[:60], fix="convert spacing and origin to mm, or correct the unit"
        )


def no_spacing(path: str, found: str) -> VmfError:
    """Return the error about a header without voxel sizes (VMF221)."""
    rule, fix = "the header must say how large a voxel is", "export the file again with its true spacing"
    return VmfError("VMF221", subject=path, rule=rule, found=found, fix=fix)


def not_scalar(path: str, found: str, rule: str = "voxels must be single integers or floats") -> VmfError:
    """Return the error about voxels that are no scalars (VMF219)."""
    fix = "save one scalar image; a time series as 4-D NIfTI"
    return VmfError("VMF219", subject=path, rule=rule, found=found, fix=fix)


def refuse_header(path: str, found: str, fix: str = "export the file again, best as .nii.gz") -> VmfError:
    """Return the error about a header that cannot be used."""
    return VmfError("VMF240", subject=path, found=found, fix=fix)
