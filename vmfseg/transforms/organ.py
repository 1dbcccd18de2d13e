# SPDX-License-Identifier: Apache-2.0
"""Label maps of one organ: what a network finds elsewhere is taken off."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.config import KeysCollection
from monai.transforms import MapTransform
from scipy import ndimage

__all__ = ["KeepOrgand", "largest_part"]

_TOUCHING = np.ones((3, 3, 3), bool)


def largest_part(labels: npt.NDArray[Any], reach: int = 1) -> npt.NDArray[Any]:
    r"""Keep the largest connected part of the foreground, all classes together; the rest becomes background.

    MONAI's ``KeepLargestConnectedComponent`` would cut an organ in two where a single bad slice has no label. Here
    the foreground reaches over :math:`r` slices along the axis first, so up to :math:`2r` empty slices part nothing
    whose ends overlap or touch in the plane. Voxels touch by faces, edges and corners.

    Shape: ``(X, Y, Z)``, slices last.

    Args:
        labels: class of every voxel, background 0.
        reach: r, in slices.

    Example:
        >>> stack = np.zeros((6, 6, 4), np.uint8)
        >>> stack[1:4, 1:4, 0] = stack[1:4, 1:4, 2] = 2
        >>> stack[5, 5, 3] = 1
        >>> [int((largest_part(stack, r) > 0).sum()) for r in (0, 1)]
        [9, 18]
    """
    found = labels > 0
    wide = ndimage.binary_dilation(found, np.ones((1, 1, 2 * reach + 1), bool)) if reach else found
    parts, count = ndimage.label(wide, _TOUCHING)
    if count < 2:
        return labels
    sizes = ndimage.sum_labels(found, parts, np.arange(1, count + 1))
    return np.where(parts == 1 + int(np.argmax(sizes)), labels, labels.dtype.type(0))


class KeepOrgand(MapTransform):  # type: ignore[misc]
    """Apply :func:`largest_part` to label maps ``(1, X, Y, Z)``; as a step of a model's postprocessing, after argmax.

    Args:
        keys: of the label maps.
        reach: r, in slices.
        allow_missing_keys: skip keys that are not there.

    Example:
        >>> label = torch.zeros(1, 4, 4, 1)
        >>> label[0, :2, :2], label[0, 3, 3] = 1, 2
        >>> KeepOrgand("label")({"label": label})["label"].sum().item()
        4.0
    """

    def __init__(self, keys: KeysCollection, reach: int = 1, allow_missing_keys: bool = False) -> None:
        super().__init__(keys, allow_missing_keys)
        if reach < 0:
            raise ValueError(f"reach must be at least 0 slices, got {reach}. 0 parts organs at every empty slice.")
        self.reach = reach

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Clean the label maps."""
        result = dict(data)
        for key in self.key_iterator(result):
            label = result[key]
            kept = largest_part(np.asarray(label[0].cpu()), self.reach)
            result[key] = label.clone()
            result[key][0] = torch.from_numpy(kept).to(label.device)
        return result
