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
from vmfseg.utils import VmfError, check_choice, check_positive

__all__ = ["ReadRules", "Stored", "Volume", "VolumeHeader", "check_grid", "check_shape", "check_values"]

_SPACING_RANGE = (1e-4, 1e3)
_MAX_SKEW = 0.01
_MAX_ANISOTROPY = 20.0
_MAX_ABSOLUTE = 1e12
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
    max_voxels: int = 2**31

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
            "VMF229",
            subject=path,
            rule=f"a slice must have at least {_MIN_PLANE}x{_MIN_PLANE} voxels",
            found=text,
            fix="check that this is the image and not a profile or a crop",
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
            "VMF223",
            subject=path,
            rule=f"the {source} must place voxels in space",
            found=f"{cause} entries",
            fix="export the file again; for NIfTI prefer= chooses the other form if that one is right",
        )
    sizes = voxel_sizes(affine)
    check_spacing(path, sizes)
    ortho = nearest_orthonormal(affine, shape)
    skew = axis_skew(affine)
    mm, voxels = corner_distance(ortho, affine, shape)
    degrees = float(np.degrees(np.arcsin(min(1.0, skew))))
    if (voxels > FAIL_VOXELS or skew > _MAX_SKEW) and not rules.allow_shear:
        raise VmfError(
            "VMF226",
            subject=path,
            rule="the grid is sheared",
            found=f"axes {degrees:.2g} degrees off a right angle ({mm:.3g} mm at a corner)",
            fix="resample the image to a grid without shear, or pass allow_shear to treat it as one",
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
        VmfError: VMF230 NaN, VMF231 infinite, VMF232 constant image, VMF233 absurd range.
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
        return [Finding("warning", "VMF230", path, text, path), *_range(header, low, high, rules)]
    return _range(header, low, high, rules)


def _range(header: VolumeHeader, low: float, high: float, rules: ReadRules) -> list[Finding]:
    real = [v * header.slope + header.inter for v in (low, high)]
    if max(abs(v) for v in real) > _MAX_ABSOLUTE:
        raise VmfError(
            "VMF233",
            subject=header.path,
            rule=f"voxel values must lie within +-{_MAX_ABSOLUTE:g}",
            found=f"{min(real):g} to {max(real):g}",
            fix="check byte order and scaling, then export the image again",
        )
    if rules.kind == "image" and low == high:
        raise VmfError(
            "VMF232",
            subject=header.path,
            rule="an image must not be constant",
            found=f"every voxel is {real[0]:g}",
            fix="export the image again; if a mask was meant as the label, check the order of the paths",
        )
    if header.dtype.kind in "iu" and header.dtype.itemsize == 8:
        exact = max(abs(low), abs(high)) <= 2**24
        text = f"stored as {header.dtype.name}, read as float32 {'without loss' if exact else 'with rounding'}"
        return [Finding("warning", "VMF227", header.path, text, header.path)]
    return []


def _bounds(values: npt.NDArray[Any]) -> tuple[float, float]:
    return float(values.min()), float(values.max())
