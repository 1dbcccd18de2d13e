# SPDX-License-Identifier: Apache-2.0
"""Checks of label maps: integers whose every value has a name, and which of them were annotated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.transforms.annotation import slice_table

__all__ = ["annotated_labels", "check_label_map", "encode_labels", "foreground_labels", "mask_unannotated"]

LabelMap = npt.NDArray[np.integer[Any]]


def foreground_labels(labels: Mapping[int, str]) -> dict[int, str]:
    """Return the classes that are scored, by ascending voxel value, without the background 0.

    Example:
        >>> foreground_labels({2: "MYO", 0: "background", 1: "LV"})
        {1: 'LV', 2: 'MYO'}
    """
    names = {int(label): str(name) for label, name in sorted(labels.items(), key=lambda item: int(item[0]))}
    names.pop(0, None)
    if not names or min(names) < 0 or len(set(names.values())) != len(names):
        raise ValueError(
            f"labels must name at least one class above 0, each once, got {dict(labels)}. "
            "Example: {1: 'LV', 2: 'MYO'}."
        )
    return names


def check_label_map(name: str, values: Any) -> LabelMap:
    """Return ``values`` (array or tensor, ``HWD`` or ``1HWD``) as an integer array ``HWD``, or refuse it.

    Raises:
        ValueError: for other shapes and for values that are no whole numbers.
    """
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if array.ndim == 4 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 3:
        raise ValueError(f"{name} must have shape (H, W, D), got {array.shape}. A single slice is (H, W, 1).")
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    if not np.issubdtype(array.dtype, np.integer):
        with np.errstate(invalid="ignore"):
            whole = array.astype(np.int32)
        if not np.array_equal(whole, array):
            raise ValueError(f"{name} must hold whole numbers, got others. Take the argmax, resample with nearest.")
        array = whole
    return array


def encode_labels(name: str, crop: LabelMap, names: Mapping[int, str]) -> npt.NDArray[np.intp]:
    """Replace voxel values by 0..N in the order of ``names``.

    Raises:
        ValueError: if a value has no name; it says which, and in how many voxels.
    """
    top = max(names)
    if crop.size and (crop.min() < 0 or crop.max() > top):
        _refuse_labels(name, crop, names)
    table = np.full(top + 1, -1, dtype=np.intp)
    table[[0, *names]] = np.arange(len(names) + 1)
    codes: npt.NDArray[np.intp] = table[crop]
    if codes.size and codes.min() < 0:
        _refuse_labels(name, crop, names)
    return codes


def _refuse_labels(name: str, crop: LabelMap, names: Mapping[int, str]) -> None:
    values, counts = np.unique(crop, return_counts=True)
    strange = [(v, n) for v, n in zip(values.tolist(), counts.tolist(), strict=True) if v != 0 and v not in names]
    found = ", ".join(f"{value} ({count} voxels)" for value, count in strange[:5])
    allowed = ", ".join(str(label) for label in (0, *names))
    raise ValueError(f"{name} must hold only the labels {allowed}, got {found}. Name every label that occurs.")


def annotated_labels(annotated: Iterable[int] | npt.NDArray[np.bool_] | None, names: Mapping[int, str]) -> set[int]:
    """Return the annotated voxel values, whether given as values, as a Boolean vector or as ``None`` (all).

    Raises:
        ValueError: if they do not fit ``names``.
    """
    if annotated is None:
        return set(names)
    values = np.asarray(annotated if hasattr(annotated, "dtype") else list(annotated))
    if values.dtype == np.bool_:
        if values.shape != (len(names) + 1,):
            raise ValueError(
                f"annotated must have {len(names) + 1} entries (background first), got shape {values.shape}. "
                "Or give the voxel values of the annotated classes."
            )
        return {label for label, drawn in zip(names, values[1:], strict=True) if drawn}
    chosen = {int(value) for value in values} - {0}
    if not chosen <= set(names):
        raise ValueError(f"annotated must hold labels of {dict(names)}, got {sorted(chosen)}. Check the datalist.")
    return chosen


def mask_unannotated(
    array: LabelMap, names: Mapping[int, str], slices: Any, slice_axis: int = -1
) -> tuple[LabelMap, set[int]]:
    """Set a class to background in the slices where it was not annotated, so that it is scored on the others only.

    Shape: ``HWD`` -> ``HWD``.

    Args:
        array: predicted or true label map on the native grid.
        names: classes by voxel value.
        slices: annotated slices, see :mod:`vmfseg.transforms.annotation_text`; ``None`` for all.
        slice_axis: the axis of the array that they count.

    Returns:
        the label map, and the classes that were annotated in some slice.

    Example:
        >>> mask_unannotated(np.ones((1, 1, 4), np.uint8), {1: "LV"}, "1-2")
        (array([[[0, 1, 1, 0]]], dtype=uint8), {1})
    """
    if slices is None or (isinstance(slices, str) and not slices):
        return array, set(names)
    table = slice_table(slices, max(names) + 1, array.shape[slice_axis]).numpy()
    known = {label for label in names if table[label].any()}
    moved = np.moveaxis(array, slice_axis, -1)
    drawn = np.isin(moved, list(names))  # other values are refused later, with their counts
    keep = ~drawn | table[np.where(drawn, moved, 0), np.arange(moved.shape[-1])]
    return np.ascontiguousarray(np.moveaxis(np.where(keep, moved, 0).astype(array.dtype), -1, slice_axis)), known
