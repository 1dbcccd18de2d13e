# SPDX-License-Identifier: Apache-2.0
"""Label maps: read, map to classes, fuse the masks of several raters, align to the grid of the image."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import itk
import nibabel as nib
import numpy as np
import numpy.typing as npt

from vmfseg.data.datalist import Datalist, Row
from vmfseg.data.findings import Finding
from vmfseg.data.geometry import FAIL_VOXELS, WARN_VOXELS, align_grid, corner_distance, describe_grid, voxel_sizes
from vmfseg.data.reader import Volume, read_header, read_volume
from vmfseg.utils import VmfError, check_choice

__all__ = [
    "Fusion",
    "align_label",
    "check_label_values",
    "fuse_majority",
    "fuse_raters",
    "fuse_staple",
    "read_frame",
    "read_label",
    "read_row_label",
]

Fusion = Literal["majority", "staple"]
Mask = npt.NDArray[np.float32]

# ITK sets no limit and creeps where raters disagree much; raters that agree need about twenty
_STAPLE_ITERATIONS = 100


def read_frame(path: str | os.PathLike[str], frame: int | None = None, **rules: Any) -> Volume:
    """Read one 3-D volume: a 3-D file, or one frame of a 4-D file.

    Raises:
        VmfError: VMF234 if the file has several frames and none is chosen; otherwise as
            :func:`~vmfseg.data.reader.read_volume`.
    """
    volume = read_volume(path, frame, **rules)
    if volume.array.ndim == 4:
        if volume.array.shape[3] != 1:
            raise VmfError("VMF234", subject=volume.path, found=f"{volume.array.shape[3]} frames")
        volume = replace(volume, array=np.ascontiguousarray(volume.array[..., 0]))
    return volume


def read_label(
    paths: str | Sequence[str],
    frame: int | None = None,
    *,
    label_map: Mapping[int, int] | None = None,
    fusion: Fusion = "majority",
    **rules: Any,
) -> Volume:
    """Read a mask, or fuse the masks of several raters.

    Args:
        paths: one file, or one per rater.
        frame: frame of a 4-D mask; a 3-D mask that belongs to one frame of a cine is taken as it is.
        label_map: class by value in the file; values that are not in it must not occur (0 stays 0 unless it is there).
        fusion: ``"majority"`` or ``"staple"``, used for several raters.
        rules: see :class:`~vmfseg.data.volume.ReadRules`.

    Raises:
        VmfError: VMF250 labels that are no integers, VMF251 values without a class, VMF253 to VMF255 raters that do not
            share a grid.
    """
    names = [paths] if isinstance(paths, str) else list(paths)
    masks = [_read_mask(name, frame, label_map, rules) for name in names]
    first = masks[0]
    if len(masks) == 1:
        return first
    aligned = [first, *(align_label(first, mask) for mask in masks[1:])]
    fused = fuse_raters([mask.array for mask in aligned], fusion)
    findings = dict.fromkeys(finding for mask in aligned for finding in mask.findings)
    return replace(first, array=fused, findings=tuple(findings))


def read_row_label(datalist: Datalist, row: Row, image: Volume) -> Volume:
    """Read the label of a row of a datalist on the grid of its image; other values than its classes are refused.

    Raises:
        VmfError: what :func:`read_label`, :func:`align_label` and :func:`check_label_values` refuse.
    """
    paths = [str(datalist.path(name)) for name in row.labels]
    found = read_label(paths if isinstance(row.label, tuple) else paths[0], row.frame, label_map=datalist.label_map)
    label = align_label(image, found)
    check_label_values(label, datalist.labels)
    return label


def align_label(image: Volume, label: Volume, what: str = "label") -> Volume:
    """Return the label (or another channel) with its axes in the order of the image, or refuse another grid.

    The grids are compared at the eight corners: up to 0.01 voxel is noise, up to 0.5 a warning, more is refused. A mask
    that was stored in another orientation passes: it is reordered by its affine, without interpolation.

    Raises:
        VmfError: VMF253 shape, VMF254 position or spacing, VMF255 mirrored.
    """
    shape = image.array.shape[:3]
    affine, new_shape, ornt = align_grid(image.affine, label.affine, label.array.shape)
    here, there = describe_grid(image.affine, shape), describe_grid(label.affine, label.array.shape[:3])
    grids = f"image {here}, {what} {there}"
    if new_shape != shape:
        raise VmfError(
            "VMF253",
            subject=label.path,
            rule=f"the {what} has another shape than {os.path.basename(image.path)}",
            found=grids,
            fix=f"resample the {what} to the grid of the image (labels with nearest-neighbour interpolation)",
        )
    mm, voxels = corner_distance(image.affine, affine, shape)
    mirrored = np.linalg.det(image.affine[:3, :3]) * np.linalg.det(label.affine[:3, :3]) < 0
    if voxels > FAIL_VOXELS:
        sizes = np.allclose(voxel_sizes(image.affine), voxel_sizes(affine), rtol=0.01)
        fault = "is mirrored against" if mirrored else "lies elsewhere than" if sizes else "has another spacing than"
        raise VmfError(
            "VMF255" if mirrored else "VMF254",
            subject=label.path,
            rule=f"the {what} {fault} {os.path.basename(image.path)}",
            found=f"{grids}, corners {mm:.3g} mm apart",
            fix=f"export the {what} again, or copy the header of the image if the voxel grids are known to agree",
        )
    findings = label.findings
    if voxels > WARN_VOXELS:
        text = f"image and {what} are {mm:.2g} mm ({voxels:.2g} voxel) apart at a corner"
        findings += (Finding("warning", "VMF254", label.path, text, label.path),)
    if mirrored:
        text = f"image and {what} have opposite handedness; the {what} is reordered by its affine ({grids})"
        findings += (Finding("warning", "VMF259", label.path, text, label.path),)
    array = np.ascontiguousarray(nib.apply_orientation(label.array, ornt), dtype=np.float32)
    return replace(label, array=array, affine=affine, findings=findings)


def check_label_values(label: Volume, classes: Collection[int]) -> None:
    """Refuse labels outside ``classes`` and list them with their voxel counts (VMF251)."""
    values, counts = np.unique(label.array, return_counts=True)
    wrong = [(int(v), int(n)) for v, n in zip(values, counts, strict=True) if int(v) not in classes]
    if wrong:
        listed = ", ".join(f"{value} ({count} voxels)" for value, count in wrong[:6])
        more = f" and {len(wrong) - 6} more values" if len(wrong) > 6 else ""
        raise VmfError(
            "VMF251",
            subject=label.path,
            rule=f"labels must be among {', '.join(str(c) for c in sorted(classes))}",
            found=f"{listed}{more}",
        )


def fuse_raters(masks: Sequence[Mask], fusion: Fusion = "majority") -> Mask:
    """Fuse masks with 1 grey matter and 2 white matter by :func:`fuse_majority` or :func:`fuse_staple`."""
    check_choice("fusion", fusion, ["majority", "staple"])
    return fuse_majority(masks) if fusion == "majority" else fuse_staple(masks)


def fuse_majority(masks: Sequence[Mask]) -> Mask:
    r"""Fuse raters by strict majority: a tie is background.

    With :math:`R` raters, grey matter (1) is where :math:`\sum_r [m_r = 1] > R/2`, the cord where
    :math:`\sum_r [m_r > 0] > R/2`, and white matter (2) is the cord without grey matter. So of four raters three must
    agree, as in the reference.

    Example:
        >>> raters = [np.array([v], np.float32) for v in (1, 1, 2, 0)]
        >>> fuse_majority(raters)  # two of four say grey matter, three say cord
        array([2.], dtype=float32)
    """
    stack = np.stack(masks)
    return _combine((stack == 1).sum(axis=0) * 2 > len(masks), (stack > 0).sum(axis=0) * 2 > len(masks))


def fuse_staple(masks: Sequence[Mask]) -> Mask:
    """Fuse raters by STAPLE (Warfield et al., IEEE TMI 2004, through ITK): grey matter and cord, each above 0.5."""
    stack = np.stack(masks)
    return _combine(_staple(stack == 1), _staple(stack > 0))


def _staple(votes: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    if (votes == votes[0]).all():  # nothing to estimate, and STAPLE divides by zero without foreground
        return np.asarray(votes[0], dtype=np.bool_)
    image_type = itk.Image[itk.F, 3]
    staple = itk.STAPLEImageFilter[image_type, image_type].New()
    staple.SetForegroundValue(1.0)
    staple.SetMaximumIterations(_STAPLE_ITERATIONS)
    for index, vote in enumerate(votes):
        staple.SetInput(index, itk.image_from_array(np.ascontiguousarray(vote, dtype=np.float32)))
    staple.Update()
    return np.asarray(itk.array_from_image(staple.GetOutput()) > 0.5, dtype=np.bool_)


def _combine(grey: npt.NDArray[np.bool_], cord: npt.NDArray[np.bool_]) -> Mask:
    return np.where(grey, np.float32(1), np.where(cord, np.float32(2), np.float32(0)))


def _read_mask(name: str, frame: int | None, label_map: Mapping[int, int] | None, rules: Mapping[str, Any]) -> Volume:
    options = {**rules, "kind": "label"}
    if frame is not None and len(read_header(name, **options).shape) == 3:
        frame = None
    volume = read_frame(name, frame, **options)
    if not label_map:
        return volume
    mapping = {0: 0, **label_map}
    check_label_values(volume, mapping)
    array = np.zeros_like(volume.array)
    for value, target in mapping.items():
        array[volume.array == value] = target
    return replace(volume, array=array)
