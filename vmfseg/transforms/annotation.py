# SPDX-License-Identifier: Apache-2.0
"""Which classes were annotated in which slices of a volume, and label values as classes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.transforms import MapTransform

from vmfseg.transforms.annotation_text import parse_presence, parse_slices
from vmfseg.transforms.spatial import slice_axis
from vmfseg.utils import VmfError

__all__ = [
    "AsClassesd", "MaskUnannotatedd", "annotated_classes", "annotated_slices", "mask_labels", "present_slices",
    "slice_table",
]  # fmt: skip


def annotated_classes(annotated: Iterable[int] | None, num_classes: int) -> torch.Tensor:
    """Turn a row's ``annotated`` list into a mask over the classes; ``None`` means all of them.

    Losses and metrics ignore the classes with ``False``: a structure nobody drew is not background. The background
    (0) is always ``True``.

    Shape: -> ``(N,)`` bool.

    Raises:
        ValueError: if a class is outside ``0 ... num_classes - 1``.

    Example:
        >>> annotated_classes([1, 2], num_classes=4).tolist()
        [True, True, True, False]
    """
    mask = torch.full((num_classes,), annotated is None)
    mask[0] = True
    for value in annotated or ():
        if not 0 <= int(value) < num_classes:
            raise ValueError(f"annotated must hold classes 0 ... {num_classes - 1}, got {value}. Check the datalist.")
        mask[int(value)] = True
    return mask


def slice_table(slices: Any, num_classes: int, count: int) -> torch.Tensor:
    """Return which class was annotated in which slice of a file.

    The background counts as annotated where any class was; a class that ``slices`` does not name was annotated nowhere.

    Shape: -> ``(N, S)`` bool.

    Args:
        slices: see :mod:`vmfseg.transforms.annotation_text`; classes by number.
        num_classes: N, background included.
        count: S, slices of the file.

    Raises:
        VmfError: VMF280 if a slice or a class does not exist.

    Example:
        >>> slice_table({"1": "0-1", "2": "1"}, num_classes=3, count=3).int().tolist()
        [[1, 1, 0], [1, 1, 0], [0, 1, 0]]
    """
    table = torch.zeros(num_classes, count, dtype=torch.bool)
    try:
        for number, values in parse_slices(slices, {n: str(n) for n in range(num_classes)}, required=()).items():
            if values and max(values) >= count:
                raise ValueError(f"slices must be in 0 ... {count - 1}, got {max(values)}. They count from 0.")
            table[number, values] = True
    except ValueError as error:
        raise VmfError(
            "VMF280",
            subject="slices",
            rule="slices must list slices of the file",
            found=str(error),
            fix="write them as 2-13, counted from 0 along the slice axis of the file",
        ) from error
    table[0] = table[1:].any(dim=0)
    return table


def annotated_slices(
    volume: torch.Tensor, num_classes: int, annotated: Iterable[int] | None = None, slices: Any = None
) -> torch.Tensor:
    """Return which class was annotated in which slice of a volume in slice space.

    Slices of the volume are found in the file by their position in space (the affine of a ``MetaTensor``), so that
    flips, crops and reordering of the slice axis are followed.

    Shape: volume ``(C, H, W, D)`` -> ``(N, D)`` bool.

    Args:
        volume: the volume; a plain tensor is taken in the order of its file.
        num_classes: N, background included.
        annotated: classes that were annotated at all, see :func:`annotated_classes`.
        slices: annotated slices of the file, see :mod:`vmfseg.transforms.annotation_text`; ``None`` means all.

    Example:
        >>> annotated_slices(torch.zeros(1, 4, 4, 3), 3, slices="1-2").int().tolist()
        [[0, 1, 1], [0, 1, 1], [0, 1, 1]]
    """
    mask = annotated_classes(annotated, num_classes)[:, None].repeat(1, volume.shape[-1])
    if slices is None or slices == "":
        return mask
    places, count = _file_slices(volume)
    table = slice_table(slices, num_classes, count)
    inside = (places >= 0) & (places < count)
    mask &= table[:, places.clamp(0, count - 1)] & inside
    mask[0] = mask[1:].any(dim=0)
    return mask


def present_slices(volume: torch.Tensor, num_classes: int, present: Any) -> torch.Tensor:
    """Return which foreground class each slice of a volume in slice space shows, by what its row says.

    Shape: volume ``(C, H, W, D)`` -> ``(D, N - 1)`` bool.

    Args:
        volume: as in :func:`annotated_slices`.
        num_classes: N, background included.
        present: of the row, classes by number (:func:`presence_text`).

    Example:
        >>> present_slices(torch.zeros(1, 4, 4, 3), 3, {"1": "1-2"}).int().tolist()
        [[0, 0], [1, 0], [1, 0]]
    """
    table = torch.zeros(num_classes, volume.shape[-1], dtype=torch.bool)
    for number, values in parse_presence(present, {n: str(n) for n in range(num_classes)}).items():
        table[number] = True if values is None else annotated_slices(volume, num_classes, None, values)[number]
    return table[1:].T


def mask_labels(labels: torch.Tensor, annotated: torch.Tensor) -> torch.Tensor:
    """Set labels to background where their class was not annotated.

    Shape: labels ``(..., D)`` of class numbers, annotated ``(N, D)`` bool -> labels.

    Example:
        >>> mask_labels(torch.tensor([[1, 1], [0, 1]]), torch.tensor([[True, True], [True, False]])).tolist()
        [[1, 0], [0, 0]]
    """
    place = torch.arange(labels.shape[-1]).expand(labels.shape)
    return torch.where(annotated[labels.long(), place], labels, torch.zeros_like(labels))


def _file_slices(volume: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the slice of the file at each slice of the volume, and how many the file has."""
    depth = volume.shape[-1]
    if not _is_located(volume):
        return torch.arange(depth), depth
    meta, affine = volume.meta, volume.affine  # type: ignore[attr-defined]
    stored = np.asarray(meta["original_affine"], dtype=np.float64).reshape(4, 4)
    shape = [int(n) for n in np.asarray(meta["spatial_shape"]).ravel()[:3]]
    axis = slice_axis(stored, shape)
    center = [(n - 1) / 2 for n in volume.shape[1:3]]
    points = np.stack([[*center, d, 1.0] for d in range(depth)], axis=1)
    world = np.asarray(affine.cpu(), dtype=np.float64).reshape(4, 4) @ points
    return torch.from_numpy(np.rint(np.linalg.solve(stored, world)[axis]).astype(np.int64)), shape[axis]


def _is_located(volume: Any) -> bool:
    """Tell whether a volume knows its own grid and that of its file."""
    return isinstance(volume, MetaTensor) and {"original_affine", "spatial_shape"} <= set(volume.meta)


class MaskUnannotatedd(MapTransform):  # type: ignore[misc]
    """Set one-hot volumes to zero where a class was not annotated, so that metrics ignore it there.

    Reads ``annotated`` (classes) and ``slices`` of the row; does nothing where both are absent. Where slices lie is
    told by the affine of the first key, or of ``image``, that has the metadata of its file.

    Shape: ``(N, H, W, D)`` one-hot in slice space -> the same.

    Args:
        keys: prediction and label, all are masked alike.
        allow_missing_keys: don't raise if a key is missing.

    Example:
        >>> row = {"label": torch.ones(3, 2, 2, 4), "annotated": [1], "slices": "1-2"}
        >>> MaskUnannotatedd("label")(row)["label"][:, 0, 0].int().tolist()
        [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    """

    def __init__(self, keys: KeysCollection = ("pred", "label"), allow_missing_keys: bool = False) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Mask every key."""
        d = dict(data)
        classes, slices = d.get("annotated"), d.get("slices")
        if classes is None and slices in (None, ""):
            return d
        annotated = None if classes is None else [int(c) for c in classes]
        located = [d[key] for key in (*self.keys, "image") if key in d and _is_located(d[key])]
        for key in self.key_iterator(d):
            mask = annotated_slices((located or [d[key]])[0], d[key].shape[0], annotated, slices)
            d[key] = d[key] * mask[:, None, None].to(d[key].device, d[key].dtype)
        return d


class AsClassesd(MapTransform):  # type: ignore[misc]
    """Turn label values into ``uint8`` class indices, and refuse values that a cast would change in silence.

    Args:
        keys: the labels.
        num_classes: N; values from N on are refused. Without it every whole number from 0 to 255 passes.
        allow_missing_keys: don't raise if a key is missing.

    Raises:
        VmfError: VMF153 naming the file and the values.

    Example:
        >>> AsClassesd("label", num_classes=4)({"label": torch.tensor([[[0.0, 3.0]]])})["label"].dtype
        torch.uint8
        >>> AsClassesd("label", num_classes=4)({"label": torch.tensor([[[0.0, 7.0]]])})
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF153: labels must be whole numbers from 0 to 3
          about  label
          found  7 (1 voxel)
          fix    give a label_map, correct the file, or raise num_classes
    """

    def __init__(self, keys: KeysCollection, num_classes: int | None = None, allow_missing_keys: bool = False) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        if num_classes is not None and not 2 <= num_classes <= 256:
            raise ValueError(f"num_classes must be 2 to 256, got {num_classes}. Count the background too.")
        self.num_classes = num_classes

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Check and cast every key."""
        d = dict(data)
        for key in self.key_iterator(d):
            d[key] = self._cast(d[key], str(key))
        return d

    def _cast(self, label: torch.Tensor, key: str) -> torch.Tensor:
        values = label.as_tensor() if isinstance(label, MetaTensor) else label
        last = (self.num_classes or 256) - 1
        classes = values.clamp(0, last).to(torch.uint8)
        wrong = values != classes  # true for NaN as well
        if wrong.any():
            kinds, counts = values[wrong].unique(return_counts=True)
            listed = [
                f"{v:g} ({n} voxel{'' if n == 1 else 's'})"
                for v, n in zip(kinds[:5].tolist(), counts[:5].tolist(), strict=True)
            ]
            raise VmfError(
                "VMF153",
                subject=str(getattr(label, "meta", {}).get("filename_or_obj", key)),
                rule=f"labels must be whole numbers from 0 to {last}",
                found=", ".join(listed) + (f" and {len(kinds) - 5} more values" if len(kinds) > 5 else ""),
                fix="give a label_map, correct the file, or raise num_classes",
            )
        return MetaTensor(classes).copy_meta_from(label) if isinstance(label, MetaTensor) else classes
