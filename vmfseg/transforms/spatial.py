# SPDX-License-Identifier: Apache-2.0
"""Transforms from a scanner's grid to slice space and back: stack order, in-plane resampling.

Slice space is what the networks see: axes ``(H, W, D)`` = (in-plane, in-plane, slice), a common in-plane spacing, a
common in-plane size. Each step is invertible, so a prediction goes back to the grid of the file it came from.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.data.utils import affine_to_spacing
from monai.transforms import InvertibleTransform, MapTransform, Orientation, Spacing, SpatialResample
from monai.utils import SpaceKeys, TraceKeys, ensure_tuple_rep

from vmfseg.utils.checks import check_positive
from vmfseg.utils.memory import check_memory

__all__ = ["InPlaneSpacing", "InPlaneSpacingd", "ToSliceStack", "ToSliceStackd", "slice_axis", "slice_stack_axcodes"]

#: An axis whose spacing exceeds the next largest by this factor is the slice axis.
ANISOTROPY = 1.5
_RATIO_TOLERANCE = 1e-3  # spacings come from float32 headers
_RAS = (("L", "R"), ("P", "A"), ("I", "S"))
_LPS = (("R", "L"), ("A", "P"), ("I", "S"))


def slice_stack_axcodes(affine: np.ndarray, shape: Sequence[int] | None = None, *, lps: bool = False) -> str:
    """Return the orientation, as MONAI's ``axcodes``, that puts a volume into stack order.

    The slice axis comes last. It is the only axis of length one if there is exactly one; else the axis with the
    largest spacing, if that is at least 1.5 times the next largest; else the axis closest to head-foot. The two axes
    in the plane keep the world's order (right before anterior before superior), and every axis points to the right,
    anterior or superior. So the answer depends on where the voxels are, not on how the file stores them.

    Args:
        affine: voxel to world, 4 by 4.
        shape: spatial shape of the array; leave out to decide by the affine alone.
        lps: whether the world axes are left-posterior-superior (ITK) and not right-anterior-superior (NIfTI).

    Example:
        >>> slice_stack_axcodes(np.diag([1.25, 1.25, 9.0, 1.0]))
        'RAS'
        >>> slice_stack_axcodes(np.diag([9.0, 1.25, 1.25, 1.0]))  # sagittal slices
        'ASR'
    """
    world = _world_axes(affine, lps)
    across = slice_axis(affine, shape)
    in_plane = sorted(world[axis] for axis in range(3) if axis != across)
    return "".join(_RAS[axis][1] for axis in [*in_plane, world[across]])


def slice_axis(affine: np.ndarray, shape: Sequence[int] | None = None) -> int:
    """Return the axis of an array across slices, by the rule of :func:`slice_stack_axcodes`.

    Example:
        >>> slice_axis(np.diag([9.0, 1.25, 1.25, 1.0]))
        0
    """
    spacing = affine_to_spacing(np.asarray(affine, dtype=np.float64), 3)
    single = [axis for axis in range(3) if shape is not None and shape[axis] == 1]
    order = np.argsort(spacing)
    if len(single) == 1:
        return single[0]
    if spacing[order[2]] >= (ANISOTROPY - _RATIO_TOLERANCE) * spacing[order[1]]:
        return int(order[2])
    return _world_axes(affine).index(2)


def _world_axes(affine: np.ndarray, lps: bool = False) -> list[int]:
    """Return the world axis (0 right, 1 anterior, 2 superior) that is closest to each axis of the array."""
    letters = nib.orientations.aff2axcodes(affine, labels=_LPS if lps else _RAS)
    return [next(i for i, pair in enumerate(_RAS) if letter in pair) for letter in letters]


class ToSliceStack(InvertibleTransform):  # type: ignore[misc]
    """Reorder and flip the axes of a volume so that slices are stacked along the last one.

    MONAI's ``Orientation`` with axcodes computed by :func:`slice_stack_axcodes`. All 48 ways to store one volume give
    the identical array. The inverse restores array and affine exactly.

    Shape: ``(C, X, Y, Z)`` -> ``(C, H, W, D)``.

    Raises:
        ValueError: if the input is not a MetaTensor with three spatial axes.

    Example:
        >>> volume = MetaTensor(torch.zeros(1, 12, 64, 48), affine=np.diag([9.0, 1.25, 1.25, 1.0]))
        >>> ToSliceStack()(volume).shape
        torch.Size([1, 64, 48, 12])
    """

    def __call__(self, img: MetaTensor, axcodes: str | None = None) -> MetaTensor:
        """Reorder ``img``; ``axcodes`` overrides the computed order (a label follows its image)."""
        _check_volume(img)
        affine = img.affine.clone()
        out = _reorient(img, axcodes or _axcodes_of(img))
        return self.push_transform(out, orig_size=tuple(img.shape[1:]), extra_info={"original_affine": affine})

    def inverse(self, data: MetaTensor) -> MetaTensor:
        """Put the array back into the order it came in."""
        affine = self.pop_transform(data)[TraceKeys.EXTRA_INFO]["original_affine"]
        labels = _LPS if _is_lps(data) else _RAS
        out = _reorient(data, "".join(nib.orientations.aff2axcodes(np.asarray(affine), labels=labels)))
        out.affine = affine  # the product of two inverse matrices is the identity only up to rounding
        return out


class ToSliceStackd(MapTransform, InvertibleTransform):  # type: ignore[misc]
    """Dictionary version of :class:`ToSliceStack`; the first key present decides the order for all.

    Args:
        keys: the image first, then what lies on its grid.
        allow_missing_keys: don't raise if a key is missing.

    Example:
        >>> volume = MetaTensor(torch.zeros(1, 12, 64, 48), affine=np.diag([9.0, 1.25, 1.25, 1.0]))
        >>> ToSliceStackd("image")({"image": volume})["image"].shape
        torch.Size([1, 64, 48, 12])
    """

    def __init__(self, keys: KeysCollection, allow_missing_keys: bool = False) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        self.stack = ToSliceStack()

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Reorder every key."""
        d = dict(data)
        axcodes: str | None = None
        for key in self.key_iterator(d):
            _check_volume(d[key])
            axcodes = axcodes or _axcodes_of(d[key])
            d[key] = self.stack(d[key], axcodes)
        return d

    def inverse(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Restore every key."""
        d = dict(data)
        for key in self.key_iterator(d):
            d[key] = self.stack.inverse(d[key])
        return d


class InPlaneSpacing(InvertibleTransform):  # type: ignore[misc]
    """Resample every slice to a common in-plane spacing and leave the slices apart.

    MONAI's ``Spacing`` in two dimensions with the slices as channels: no value crosses from one slice to the next,
    and one grid serves all slices. The affine follows.

    Shape: ``(C, H, W, D)`` -> ``(C, H', W', D)`` with ``H' = round((H - 1) * spacing / pixdim) + 1``.

    Args:
        pixdim: spacing in mm, one number or one for each in-plane axis.
        mode: ``"bilinear"`` for images, ``"nearest"`` for labels.
        padding_mode: what lies outside, for the outermost pixels; see ``torch.nn.functional.grid_sample``.

    Raises:
        ValueError: if ``pixdim`` is not positive or the input is not a MetaTensor ``(C, H, W, D)``.
        VmfError: VMF216 or VMF512 if the resampled slices would be too large.

    Example:
        >>> volume = MetaTensor(torch.zeros(1, 101, 81, 12), affine=np.diag([1.5, 1.5, 9.0, 1.0]))
        >>> out = InPlaneSpacing(1.0)(volume)
        >>> tuple(out.shape), out.pixdim.tolist()
        ((1, 151, 121, 12), [1.0, 1.0, 9.0])
    """

    def __init__(self, pixdim: float | Sequence[float], mode: str = "bilinear", padding_mode: str = "border") -> None:
        self.pixdim = tuple(float(p) for p in ensure_tuple_rep(pixdim, 2))
        for value in self.pixdim:
            check_positive("pixdim", value, "Give the in-plane spacing in mm.")
        self.mode, self.padding_mode = mode, padding_mode

    def __call__(self, img: MetaTensor, mode: str | None = None, size: Sequence[int] | None = None) -> MetaTensor:
        """Resample ``img``; ``size`` forces the in-plane size (a label follows its image)."""
        _check_volume(img)
        mode = mode or self.mode
        spacing = affine_to_spacing(img.affine, 3)[:2]
        source = np.diag([*np.asarray(spacing, dtype=np.float64), 1.0])
        _check_size(img, [float(length) for length in spacing], self.pixdim)
        resample = Spacing(self.pixdim, mode=mode, padding_mode=self.padding_mode)
        plane = resample(_as_channels(img, source), output_spatial_shape=size)
        step = np.linalg.solve(source, np.asarray(plane.affine, dtype=np.float64)[[0, 1, -1]][:, [0, 1, -1]])
        out = _as_volume(plane, img, img.affine @ torch.as_tensor(_embed(step)))
        info = {"mode": mode, "padding_mode": self.padding_mode, "step": step, "original_affine": img.affine.clone()}
        return self.push_transform(out, orig_size=tuple(img.shape[1:]), extra_info=info)

    def inverse(self, data: MetaTensor) -> MetaTensor:
        """Resample back to the in-plane grid it came from."""
        record = self.pop_transform(data)
        info, shape = record[TraceKeys.EXTRA_INFO], record[TraceKeys.ORIG_SIZE]
        resample = SpatialResample(mode=info["mode"], padding_mode=info["padding_mode"], align_corners=False)
        step = np.asarray(info["step"], dtype=np.float64)
        plane = resample(_as_channels(data, step), dst_affine=torch.eye(3), spatial_size=tuple(shape[:2]))
        return _as_volume(plane, data, info["original_affine"])


class InPlaneSpacingd(MapTransform, InvertibleTransform):  # type: ignore[misc]
    """Dictionary version of :class:`InPlaneSpacing`; keys of one shape keep one shape.

    Args:
        keys: the image first, then what lies on its grid.
        pixdim: spacing in mm, one number or one for each in-plane axis.
        mode: one for all keys or one for each.
        allow_missing_keys: don't raise if a key is missing.

    Example:
        >>> volume = MetaTensor(torch.zeros(1, 101, 81, 12), affine=np.diag([1.5, 1.5, 9.0, 1.0]))
        >>> InPlaneSpacingd("image", pixdim=1.0)({"image": volume})["image"].shape
        torch.Size([1, 151, 121, 12])
    """

    def __init__(
        self,
        keys: KeysCollection,
        pixdim: float | Sequence[float],
        mode: str | Sequence[str] = "bilinear",
        allow_missing_keys: bool = False,
    ) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        self.mode = ensure_tuple_rep(mode, len(self.keys))
        self.spacing = InPlaneSpacing(pixdim)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Resample every key."""
        d = dict(data)
        first: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        for key, mode in self.key_iterator(d, self.mode):
            _check_volume(d[key])
            before = tuple(d[key].shape[1:])
            follows = first is not None and first[0] == before
            d[key] = self.spacing(d[key], mode=mode, size=first[1][:2] if first is not None and follows else None)
            first = first or (before, tuple(d[key].shape[1:]))
        return d

    def inverse(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Resample every key back."""
        d = dict(data)
        for key in self.key_iterator(d):
            d[key] = self.spacing.inverse(d[key])
        return d


def _check_volume(img: Any) -> None:
    if not isinstance(img, MetaTensor) or img.ndim != 4:
        found = f"{type(img).__name__} of shape {tuple(getattr(img, 'shape', ()))}"
        raise ValueError(
            f"img must be a MetaTensor of shape (C, X, Y, Z), got {found}. "
            "Load files with LoadVolumed; pick one frame of a cine before this step."
        )


def _check_size(img: MetaTensor, spacing: Sequence[float], pixdim: Sequence[float]) -> None:
    """Refuse voxels so large that the resampled slices would not fit (VMF216, VMF512), before they are made."""
    plane = [(size - 1) * old / new + 1 for size, old, new in zip(img.shape[1:3], spacing, pixdim, strict=True)]
    voxels = int(img.shape[0] * img.shape[3] * plane[0] * plane[1])
    text = f"voxels of {' x '.join(f'{length:g}' for length in spacing)} mm resampled to {pixdim[0]:g} mm give"
    # the result, a copy of it in another order, and the coordinates of one slice
    needed = 8 * voxels + int(16 * plane[0] * plane[1])
    check_memory(str(img.meta.get("filename_or_obj", "image")), voxels, needed, cause=text)


def _is_lps(img: MetaTensor) -> bool:
    return "space" in img.meta and SpaceKeys(img.meta["space"]) == SpaceKeys.LPS


def _axcodes_of(img: MetaTensor) -> str:
    return slice_stack_axcodes(np.asarray(img.affine), tuple(img.shape[1:]), lps=_is_lps(img))


def _reorient(img: MetaTensor, axcodes: str) -> MetaTensor:
    orient = Orientation(axcodes=axcodes, labels=_LPS if _is_lps(img) else _RAS)
    with orient.trace_transform(False):
        return orient(img)


def _as_channels(img: MetaTensor, affine: np.ndarray) -> MetaTensor:
    """Return the slices of ``(C, H, W, D)`` as the channels of one 2-D image."""
    array = img.as_tensor()
    flat = array.permute(0, 3, 1, 2).reshape(-1, *array.shape[1:3])
    return MetaTensor(flat.contiguous(), affine=torch.as_tensor(affine))


def _as_volume(plane: MetaTensor, like: MetaTensor, affine: torch.Tensor) -> MetaTensor:
    """Undo :func:`_as_channels` and take over the metadata of ``like``."""
    array = plane.as_tensor()
    array = array.reshape(like.shape[0], like.shape[3], *array.shape[1:]).permute(0, 2, 3, 1)
    out = MetaTensor(array.contiguous()).copy_meta_from(like)
    out.affine = affine
    return out


def _embed(step: np.ndarray) -> np.ndarray:
    """Turn an in-plane 3 by 3 matrix into the 4 by 4 matrix that leaves the third axis alone."""
    full = np.eye(4)
    full[:2, :2], full[:2, 3] = step[:2, :2], step[:2, 2]
    return full
