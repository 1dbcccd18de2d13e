# SPDX-License-Identifier: Apache-2.0
"""What labels say beside their pixels: which classes are present, and which were annotated at all."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import torch
from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.transforms import MapTransform

from vmfseg.utils import VmfError

__all__ = ["AsClassesd", "PresenceLabeld", "annotated_classes", "presence_labels"]


def presence_labels(label: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Tell for every foreground class whether at least one pixel has it.

    The weak label of the paper (vMFWeak): *is there LV, myocardium, RV in this slice?* Compute it after cropping and
    augmentation, so that it says what the network can see.

    Shape: ``(1, H, W)`` -> ``(N - 1,)``; batched ``(B, 1, H, W)`` -> ``(B, N - 1)``; bool, background left out.

    Args:
        label: class indices in ``0 ... num_classes - 1``.
        num_classes: N, background included.

    Raises:
        ValueError: if the shape or ``num_classes`` is wrong, or a label is outside the classes.

    Example:
        >>> presence_labels(torch.tensor([[[0, 1], [3, 1]]]), num_classes=4).tolist()
        [True, False, True]
    """
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}. Count the background too.")
    if label.ndim not in (3, 4) or label.shape[-3] != 1:
        raise ValueError(
            f"label must have shape (1, H, W) or (B, 1, H, W), got {tuple(label.shape)}. Use class indices."
        )
    plain = label.as_tensor() if isinstance(label, MetaTensor) else label
    flat = plain.reshape(-1, label.shape[-2] * label.shape[-1])
    found = [set(sample.unique().tolist()) for sample in flat] if plain.is_floating_point() else _values(flat)
    outside = sorted(set().union(*found) - set(range(num_classes)))
    if outside:
        raise ValueError(
            f"label must be in 0 ... {num_classes - 1}, got {outside}. Map the labels or raise num_classes."
        )
    present = torch.tensor([[c in values for c in range(1, num_classes)] for values in found], device=plain.device)
    return present[0] if label.ndim == 3 else present


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


def _values(flat: torch.Tensor) -> list[set[int]]:
    """Return the integers in each row; counting is many times faster than ``unique`` or one comparison a class."""
    if flat.dtype != torch.uint8 and flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < 256:
        return [set(row.unique().tolist()) for row in flat]
    return [set(torch.bincount(row).nonzero()[:, 0].tolist()) for row in flat]


class PresenceLabeld(MapTransform):  # type: ignore[misc]
    """Add presence labels, see :func:`presence_labels`. Place it after everything that crops, pads or moves pixels.

    Args:
        keys: the label, ``(1, H, W)``.
        num_classes: N, background included.
        output_key: where to put the bool vector of ``N - 1`` foreground classes.
        allow_missing_keys: don't raise if the label is missing (an unlabeled sample gets no presence label either).

    Example:
        >>> sample = {"label": torch.tensor([[[0, 1], [3, 1]]])}
        >>> PresenceLabeld("label", num_classes=4)(sample)["presence"].tolist()
        [True, False, True]
    """

    def __init__(
        self,
        keys: KeysCollection = "label",
        num_classes: int = 4,
        output_key: str = "presence",
        allow_missing_keys: bool = False,
    ) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        if len(self.keys) != 1:
            raise ValueError(f"keys must name one label, got {self.keys}. Use one PresenceLabeld for each.")
        self.num_classes, self.output_key = num_classes, output_key

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Add the presence label."""
        d = dict(data)
        for key in self.key_iterator(d):
            d[self.output_key] = presence_labels(d[key], self.num_classes)
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
