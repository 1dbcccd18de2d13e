# SPDX-License-Identifier: Apache-2.0
"""Box around what a model found, for cropping: as a file beside the label map."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.transforms import KeepLargestConnectedComponent
from monai.transforms.utils import generate_spatial_bounding_box

from vmfseg.model.prediction import Prediction

__all__ = ["BOX_NAMES", "box_files", "box_overlap", "foreground_box"]

#: Endings of the files that :func:`box_files` may give.
BOX_NAMES = ("box.json",)

Box = list[list[int]]


def foreground_box(labels: npt.NDArray[Any]) -> Box | None:
    """Return ``[first, last + 1]`` of the largest connected part of the foreground along each axis, ``None`` for none.

    Example:
        >>> foreground_box(np.array([[0, 0, 0, 0], [0, 2, 1, 0], [0, 0, 0, 0], [3, 0, 0, 0]]))
        [[1, 2], [1, 3]]
    """
    mask = torch.from_numpy(np.asarray(labels) > 0)[None]
    if not bool(mask.any()):
        return None
    part = KeepLargestConnectedComponent(independent=False)(mask.to(torch.uint8))
    low, high = generate_spatial_bounding_box(part, allow_smaller=True)
    return [[int(a), int(b)] for a, b in zip(low, high, strict=True)]


def box_overlap(first: Sequence[Sequence[int]] | None, second: Sequence[Sequence[int]] | None) -> float:
    """Return the intersection over union of two boxes; 0 if one of them is missing.

    Example:
        >>> box_overlap([[0, 2], [0, 2]], [[1, 3], [0, 2]])
        0.3333333333333333
    """
    if first is None or second is None:
        return 0.0
    common = [max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in zip(first, second, strict=True)]
    sizes = [float(np.prod([high - low for low, high in box])) for box in (first, second)]
    both = float(np.prod(common))
    return both / (sum(sizes) - both)


def box_files(prediction: Prediction, labels: Mapping[int, str]) -> dict[str, bytes]:
    """Return ``box.json``: the box around the foreground of all segmented frames together, in voxels, or ``null``.

    Args:
        prediction: of a scan.
        labels: class names by value.
    """
    volume = prediction.labels.reshape(prediction.scan.header.shape)
    found = foreground_box(volume if volume.ndim == 3 else volume.max(axis=3))
    content = {
        "format": "vmfseg-box-1",
        "around": [name for value, name in sorted(labels.items()) if value],
        "box": found,
        "shape": list(volume.shape[:3]),
    }
    return {"box.json": json.dumps(content, indent=2).encode()}
