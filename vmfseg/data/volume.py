# SPDX-License-Identifier: Apache-2.0
"""Volumes, and the checks of shape, grid and values that every format must pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vmfseg.data.findings import Finding
from vmfseg.data.geometry import (
    FAIL_VOXELS,
    WARN_VOXELS,
    Affine,
    axis_skew,
    corner_distance,
    describe_grid,
    nearest_orthonormal,
    voxel_sizes,
)
from vmfseg.utils import VmfError, check_choice
from vmfseg.utils.checks import check_positive
from vmfseg.utils.memory import MAX_VOXELS

__all__ = ["ReadRules", "Stored", "Volume", "VolumeHeader", "check_frame", "check_grid", "check_shape", "check_values"]

_SPACING_RANGE = (1e-4, 1e3)
_MAX_SKEW = 0.01
_MAX_ANISOTROPY = 20.0
_MAX_ABSOLUTE = 1e12
_MAX_ROUNDING = 1e-3
_MIN_SPAN = 1e-30
_EXACT = {"bool", "int8", "uint8", "int16", "uint16", "float16", "float32"}
_MIN_PLANE = 4
_SMALL_PLANE = 16


@dataclass(frozen=True)
class ReadRules:
    """What the reader accepts beyond its defaults.

    Args:
        kind: ``"image"``, or ``"label"`` (integers; may be constant).
        nan_to: value that replaces NaN and infinite voxels, with a warning. ``None`` refuses them.
        prefer: ``"sform"`` or ``"qform"`` where the two contradict each other. ``None`` refuses such files.
        allow_shear: treat a sheared grid as its nearest grid without shear, with a warning.
        max_voxels: largest number of voxels that is believed.
    """

    kind: Literal["image", "label"] = "image"
    nan_to: float | None = None
    prefer: Literal["sform", "qform"] | None = None
    allow_shear: bool = False
    max_voxels: int = MAX_VOXELS

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ["image", "label"])
        if self.prefer is not None:
            check_choice("prefer", self.prefer, ["sform", "qform"])
        if self.nan_to is not None and not np.isfinite(self.nan_to):
            raise ValueError(f"nan_to must be finite, got {self.nan_to}. Use 0.0, or None to refuse NaN voxels.")
        check_positive("max_voxels", self.max_voxels, "It is the largest number of voxels to believe.")


@dataclass(frozen=True)
class VolumeHeader:
    """What is known about a volume without its voxels.

    Args:
        path: the file (or DICOM folder).
        shape: ``(x, y, z)``, or ``(x, y, z, t)`` for a series of frames.
        affine: voxel index to mm in RAS, directions orthonormal; what processing uses.
        original_affine: the affine as stored; what output is written with.
        dtype: the stored type of the voxels.
        slope: factor from stored to real values.
        inter: offset from stored to real values.
        nifti: the nibabel header of a NIfTI file, ``None`` for other formats.
        findings: what is unusual about the file and accepted by a rule.
    """

    path: str
    shape: tuple[int, ...]
    affine: Affine
    original_affine: Affine
    dtype: np.dtype[Any]
    slope: float = 1.0
    inter: float = 0.0
    nifti: Any = None
    findings: tuple[Finding, ...] = ()

    @property
    def num_frames(self) -> int:
        """Number of frames, 1 for a 3-D volume."""
        return self.shape[3] if len(self.shape) == 4 else 1


@dataclass(frozen=True)
class Stored:
    """Voxels as stored, with their header; scaling to real values is left to whoever takes a frame."""

    header: VolumeHeader
    values: npt.NDArray[Any]


@dataclass(frozen=True)
class Volume:
    """Voxels in real values with their place in space.

    Args:
        array: float32, ``(x, y, z)``, or ``(x, y, z, t)`` when all frames were asked for.
        affine: voxel index to mm in RAS, directions orthonormal; what processing uses.
        original_affine: the affine as stored; what output is written with.
        header: the nibabel header of a NIfTI file, ``None`` for other formats.
        findings: what is unusual about the file and accepted by a rule.
        path: the file (or DICOM folder).
    """

    array: npt.NDArray[np.float32]
    affine: Affine
    original_affine: Affine
    header: Any
    findings: tuple[Finding, ...]
    path: str


def check_shape(path: str, shape: Sequence[int]) -> tuple[tuple[int, ...], list[Finding]]:
    """Bring a declared shape to ``(x, y, z)`` or ``(x, y, z, t)``.

    Raises:
        VmfError: VMF218 for other dimensions, VMF229 for a plane too small to be an image.
    """
    findings: list[Finding] = []
    text = "x".join(str(n) for n in shape)
    if len(shape) < 2 or any(n < 1 for n in shape):
        raise VmfError(
            "VMF218",
            subject=path,
            rule="an image must have 2 to 4 dimensions of at least one voxel",
            found=text or "no dimension",
            fix="the header is corrupt: export the file again",
        )
    sizes = [int(n) for n in shape]
    while len(sizes) > 4 and sizes[-1] == 1:
        sizes.pop()
    if len(sizes) > 4:
        raise VmfError(
            "VMF218",
            subject=path,
            rule="an image may have three dimensions, and time as the fourth",
            found=f"{len(sizes)} dimensions ({text})",
            fix="split vectors or channels into one file each",
        )
    if len(sizes) == 2:
        sizes.append(1)
        findings.append(Finding("warning", "VMF236", path, "2-D image, read as a volume of one slice", path))
    plane = sorted(sizes[:3])[1]
    if plane < _MIN_PLANE:
        raise VmfError(
            "VMF229", subject=path, rule=f"a slice must have at least {_MIN_PLANE}x{_MIN_PLANE} voxels", found=text
        )
    if plane < _SMALL_PLANE:
        findings.append(Finding("warning", "VMF229", path, f"very small slices ({text}); they will be padded", path))
    return tuple(sizes), findings


def check_grid(
    path: str, affine: Affine, shape: Sequence[int], rules: ReadRules, source: str = "affine"
) -> tuple[Affine, list[Finding]]:
    """Check an affine and return it with orthonormal directions.

    Raises:
        VmfError: VMF223 not invertible or not finite, VMF221 absurd voxel size, VMF226 shear.
    """
    findings: list[Finding] = []
    if not np.isfinite(affine).all() or (voxel_sizes(affine) == 0).any():
        cause = "NaN or infinite" if not np.isfinite(affine).all() else "zero"
        raise VmfError(
            "VMF223", subject=path, rule=f"the {source} must place voxels in space", found=f"{cause} entries"
        )
    sizes = voxel_sizes(affine)
    check_spacing(path, sizes)
    ortho = nearest_orthonormal(affine, shape)
    skew = axis_skew(affine)
    mm, voxels = corner_distance(ortho, affine, shape)
    degrees = float(np.degrees(np.arcsin(min(1.0, skew))))
    if (voxels > FAIL_VOXELS or skew > _MAX_SKEW) and not rules.allow_shear:
        raise VmfError(
            "VMF226", subject=path, found=f"axes {degrees:.2g} degrees off a right angle ({mm:.3g} mm at a corner)"
        )
    if voxels > WARN_VOXELS:
        text = f"directions not orthonormal ({mm:.2g} mm at a corner); the nearest orthonormal ones are used"
        findings.append(Finding("warning", "VMF226", path, text, path))
    if sizes.max() / sizes.min() > _MAX_ANISOTROPY:
        text = f"extreme voxel shape ({describe_grid(affine, shape)})"
        findings.append(Finding("warning", "VMF228", path, text, path))
    return ortho, findings


def check_spacing(path: str, sizes: npt.ArrayLike) -> None:
    """Refuse voxel sizes that are zero, negative, not finite or absurd (VMF221)."""
    values = np.asarray(sizes, dtype=np.float64)
    low, high = _SPACING_RANGE
    if not (np.isfinite(values).all() and (values > low).all() and (values < high).all()):
        raise VmfError(
            "VMF221",
            subject=path,
            rule=f"voxel sizes must lie between {low:g} and {high:g} mm",
            found=" x ".join(f"{v:g}" for v in values.ravel()),
            fix="export the file again with its true spacing",
        )


def check_values(stored: Stored, rules: ReadRules) -> list[Finding]:
    """Check all voxels of a file once, before any frame is handed out.

    Raises:
        VmfError: VMF227 values that float32 cannot hold, VMF230 NaN, VMF231 infinite, VMF232 constant image, VMF233
            absurd range.
    """
    header, values = stored.header, stored.values
    path = header.path
    low, high = _bounds(values)
    if not (np.isfinite(low) and np.isfinite(high)):
        nans, infs = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        found = f"{nans} NaN and {infs} infinite of {values.size} voxels"
        if rules.nan_to is None:
            what = ("VMF230", "NaN") if nans else ("VMF231", "infinite")
            raise VmfError(
                what[0],
                subject=path,
                rule=f"voxels must be finite, some are {what[1]}",
                found=found,
                fix="export the image again, or pass nan_to=0.0 to replace them",
            )
        finite = values[np.isfinite(values)]
        low, high = _bounds(finite) if finite.size else (rules.nan_to, rules.nan_to)
        text = f"{found}; replaced by {rules.nan_to:g}"
        notes = [Finding("warning", "VMF230", path, text, path), *_range(header, low, high, rules)]
    else:
        notes = _range(header, low, high, rules)
    _check_rounding(stored, abs(high - low) * abs(header.slope), rules)
    return notes + _constant_frames(stored, rules)


def check_frame(header: VolumeHeader, values: npt.NDArray[Any], frame: int | None, rules: ReadRules) -> None:
    """Refuse a frame of a cine that is constant, when it is taken (VMF232)."""
    if rules.kind == "image" and frame is not None and values.size and values.min() == values.max():
        found = f"every voxel of frame {frame} is {float(values.flat[0]) * header.slope + header.inter:g}"
        raise _constant(header.path, found)


def _constant_frames(stored: Stored, rules: ReadRules) -> list[Finding]:
    if rules.kind != "image" or stored.values.ndim != 4:
        return []
    axes = (0, 1, 2)
    flat = np.flatnonzero(stored.values.min(axis=axes) == stored.values.max(axis=axes))
    if not len(flat):
        return []
    path = stored.header.path
    shown = ", ".join(str(k) for k in flat[:8]) + (" ..." if len(flat) > 8 else "")
    text = f"{len(flat)} of {stored.values.shape[3]} frames are constant ({shown}); they are refused when they are used"
    return [Finding("warning", "VMF232", path, text, path)]


def _check_rounding(stored: Stored, span: float, rules: ReadRules) -> None:
    """Refuse values that float32, in which everything is computed, would destroy.

    The largest change by the cast must stay below a thousandth of the range of an image, and of one of a label.
    """
    header, values = stored.header, stored.values
    if 0 < span < _MIN_SPAN and rules.kind == "image":
        raise _not_float32(header.path, f"a range of {span:g}")
    exact = header.slope == 1.0 and header.inter == 0.0 and values.dtype.name in _EXACT
    if exact or (rules.kind == "image" and values.dtype.kind in "iu" and span == 0):
        return
    limit = _MAX_ROUNDING * (1.0 if rules.kind == "label" else span)
    for part in np.moveaxis(values, -1, 0):  # a slice or frame at a time, to bound the memory
        real = part[np.isfinite(part)].astype(np.float64) * header.slope + header.inter
        if real.size and float(np.abs(real.astype(np.float32) - real).max()) > limit:
            raise _not_float32(header.path, f"values such as {real.max():.12g} in a range of {span:g}")


def _not_float32(path: str, found: str) -> VmfError:
    return VmfError("VMF227", subject=path, found=found)


def _constant(path: str, found: str) -> VmfError:
    return VmfError("VMF232", subject=path, found=found)


def _range(header: VolumeHeader, low: float, high: float, rules: ReadRules) -> list[Finding]:
    real = [v * header.slope + header.inter for v in (low, high)]
    if max(abs(v) for v in real) > _MAX_ABSOLUTE:
        raise VmfError(
            "VMF233",
            subject=header.path,
            rule=f"voxel values must lie within +-{_MAX_ABSOLUTE:g}",
            found=f"{min(real):g} to {max(real):g}",
        )
    if rules.kind == "image" and low == high:
        raise _constant(header.path, f"every voxel is {real[0]:g}")
    if header.dtype.kind in "iu" and header.dtype.itemsize == 8:
        exact = max(abs(low), abs(high)) <= 2**24
        text = f"stored as {header.dtype.name}, read as float32 {'without loss' if exact else 'with rounding'}"
        return [Finding("warning", "VMF227", header.path, text, header.path)]
    return []


def _bounds(values: npt.NDArray[Any]) -> tuple[float, float]:
    return float(values.min()), float(values.max())
