# SPDX-License-Identifier: Apache-2.0
"""DICOM series reader: slices sorted by position, repeated positions are frames, gaps are refused."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

import itk
import numpy as np
import numpy.typing as npt

from vmfseg.data.findings import Finding
from vmfseg.data.geometry import WARN_VOXELS, Affine
from vmfseg.data.text_header import itk_affine
from vmfseg.data.volume import ReadRules, Stored, VolumeHeader, check_grid, check_shape
from vmfseg.utils import VmfError
from vmfseg.utils.memory import check_memory

__all__ = ["read_dicom", "read_dicom_header", "series_files"]

_MAX_STEP_ERROR = 0.1


@dataclass(frozen=True)
class _Slice:
    path: str
    size: tuple[int, int]
    position: npt.NDArray[np.float64]
    directions: npt.NDArray[np.float64]
    spacing: tuple[float, float]
    thickness: float
    order: tuple[float, float]


def read_dicom_header(path: str, rules: ReadRules) -> VolumeHeader:
    """Read the headers of a DICOM series; no pixel is touched.

    Raises:
        VmfError: VMF241 if the folder is not one complete, evenly spaced series of scalar slices.
    """
    return _inspect(path, rules)[0]


def read_dicom(path: str, rules: ReadRules) -> Stored:
    """Read a DICOM series into one volume ``(x, y, z)``, or ``(x, y, z, t)`` when positions repeat.

    Raises:
        VmfError: VMF241 if the folder is not one complete, evenly spaced series of scalar slices.
    """
    header, stacks = _inspect(path, rules)
    voxels = int(np.prod([float(n) for n in header.shape]))
    check_memory(path, voxels, voxels * 12, rules.max_voxels)
    values = np.empty(header.shape, dtype=np.float32, order="F")
    for depth, stack in enumerate(stacks):
        for frame, piece in enumerate(stack):
            target = values[:, :, depth, frame] if values.ndim == 4 else values[:, :, depth]
            try:
                pixels = np.asarray(itk.array_from_image(itk.imread(piece.path)))
            except RuntimeError as error:
                raise _refuse(piece.path, _cause(error), "copy the series again") from error
            target[...] = pixels.reshape(pixels.shape[-2:]).T
    return Stored(header, values)


def series_files(path: str) -> list[list[str]]:
    """Return the files of a DICOM series, slice by slice in the order of the volume, and frame by frame in a slice.

    Raises:
        VmfError: VMF241 if the folder is not one complete, evenly spaced series of scalar slices.
    """
    return [[piece.path for piece in stack] for stack in _inspect(path, ReadRules())[1]]


def _inspect(path: str, rules: ReadRules) -> tuple[VolumeHeader, list[list[_Slice]]]:
    files = _series(path)
    slices = [_slice(file) for file in files]
    first = slices[0]
    for piece in slices[1:]:
        same = piece.size == first.size and np.allclose(piece.spacing, first.spacing, rtol=1e-4)
        if not same or not np.allclose(piece.directions, first.directions, atol=1e-3):
            raise _refuse(piece.path, "its matrix, spacing or direction differs from the other slices")
    normal = np.cross(first.directions[0], first.directions[1])
    stacks: list[list[_Slice]] = []
    for piece in sorted(slices, key=lambda s: float(s.position @ normal)):
        if stacks and abs(float((piece.position - stacks[-1][0].position) @ normal)) < 1e-3:
            stacks[-1].append(piece)
        else:
            stacks.append([piece])
    counts = Counter(len(stack) for stack in stacks)
    if len(counts) != 1:
        raise _refuse(path, f"slice positions with {min(counts)} to {max(counts)} images", "complete the series")
    stacks = [sorted(stack, key=lambda s: s.order) for stack in stacks]
    frames = len(stacks[0])
    shape, findings = check_shape(path, [*first.size, len(stacks), *([frames] if frames > 1 else [])])
    affine, off = _affine(path, stacks)
    ortho, notes = check_grid(path, affine, shape, rules, "geometry")
    if off > WARN_VOXELS:
        text = f"uneven slice positions, up to {100 * off:.0f} % of a step; even steps are used"
        notes.append(Finding("warning", "VMF241", path, text, path))
    header = VolumeHeader(path, shape, ortho, affine, np.dtype(np.float32), findings=(*findings, *notes))
    return header, stacks


def _series(path: str) -> list[str]:
    names = itk.GDCMSeriesFileNames.New()
    names.SetUseSeriesDetails(False)
    names.SetDirectory(path)
    series = [str(uid) for uid in names.GetSeriesUIDs()]
    if len(series) != 1:
        found = f"{len(series)} DICOM series" if series else "no DICOM series"
        raise _refuse(path, found, "give the folder of one series (or a NIfTI file)")
    files = [str(name) for name in names.GetFileNames(series[0])]
    known = {os.path.abspath(name) for name in files}
    for name in sorted(os.listdir(path)):
        full = os.path.abspath(os.path.join(path, name))
        if full not in known and os.path.isfile(full) and _looks_dicom(full) and name.upper() != "DICOMDIR":
            raise _refuse(full, "a DICOM file that cannot be read (truncated?)", "copy the series again")
    return files


def _slice(file: str) -> _Slice:
    io = itk.GDCMImageIO.New()
    io.SetFileName(file)
    try:
        io.ReadImageInformation()
    except RuntimeError as error:
        raise _refuse(file, _cause(error), "copy the series again") from error
    if io.GetNumberOfComponents() != 1:
        raise _refuse(file, "a colour image", "give a series of grey-value images")
    depth = io.GetDimensions(2) if io.GetNumberOfDimensions() > 2 else 1
    if depth != 1:
        raise _refuse(file, f"{depth} frames in one file", "convert multi-frame DICOM to NIfTI")
    tags = io.GetMetaDataDictionary()
    return _Slice(
        path=file,
        size=(int(io.GetDimensions(0)), int(io.GetDimensions(1))),
        position=np.array([io.GetOrigin(i) for i in range(3)]),
        directions=np.array([io.GetDirection(i) for i in range(3)]),
        spacing=(float(io.GetSpacing(0)), float(io.GetSpacing(1))),
        thickness=float(io.GetSpacing(2)),
        order=(_number(tags, "0018|1060"), _number(tags, "0020|0013")),  # trigger time, then instance number
    )


def _affine(path: str, stacks: list[list[_Slice]]) -> tuple[Affine, float]:
    """Return the affine of even steps, and how far a slice lies off them, in steps."""
    error = 0.0
    first = stacks[0][0]
    positions = np.array([stack[0].position for stack in stacks])
    step = first.directions[2] * first.thickness
    if len(stacks) > 1:
        step = (positions[-1] - positions[0]) / (len(stacks) - 1)
        even = positions[0] + np.arange(len(stacks))[:, None] * step
        error = float(np.linalg.norm(positions - even, axis=1).max() / np.linalg.norm(step))
        if error > _MAX_STEP_ERROR:
            found = f"uneven slice positions ({100 * error:.0f} % of a step off): a slice is missing or doubled"
            raise _refuse(path, found, "complete the series")
    length = float(np.linalg.norm(step))
    directions = [first.directions[0], first.directions[1], step / length if length else step]
    return itk_affine(directions, [*first.spacing, length], first.position), error


def _cause(error: Exception) -> str:
    """Return the last telling line of an ITK exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][-160:] if lines else type(error).__name__


def _number(tags: Any, key: str) -> float:
    try:
        return float(tags[key]) if tags.HasKey(key) else 0.0
    except ValueError:
        return 0.0


def _looks_dicom(path: str) -> bool:
    with open(path, "rb") as stream:
        return path.lower().endswith((".dcm", ".ima")) or stream.read(132)[128:] == b"DICM"


def _refuse(path: str, found: str, fix: str = "give the folder of one complete series, or convert it") -> VmfError:
    return VmfError("VMF241", subject=path, found=found, fix=fix)
