# SPDX-License-Identifier: Apache-2.0
"""Chain of transforms from a loaded volume to slice space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from monai.config import KeysCollection
from monai.transforms import CastToTyped, Compose, MapLabelValued, ResizeWithPadOrCropd
from monai.utils import ensure_tuple, ensure_tuple_rep

from vmfseg.transforms.annotation import AsClassesd
from vmfseg.transforms.intensity import PercentileNormalized
from vmfseg.transforms.spatial import InPlaneSpacingd, ToSliceStackd

__all__ = ["slice_space_transforms"]


def slice_space_transforms(
    pixdim: float | Sequence[float] | None = 1.2,
    roi: int | Sequence[int] | None = 288,
    keys: KeysCollection = ("image", "label"),
    *,
    normalize: str | None = "slice",
    percentiles: tuple[float, float] = (0.5, 99.5),
    label_map: Mapping[int, int] | None = None,
    num_classes: int | None = None,
) -> Compose:
    """Return the chain that takes loaded volumes to slice space.

    Map labels, put the slices last, resample in the plane, normalize, pad with zeros and crop the center. Follows
    §4.2 of the reference's preprocessing with three repairs: a constant slice becomes zeros and not NaN, the crop is
    central and not the top left corner, and spacing is read for both in-plane axes. Percentiles are taken after
    resampling.

    Every step that changes the grid can be inverted (``chain.inverse`` or MONAI's ``Invertd``).

    Shape: ``(C, X, Y, Z)`` in any orientation -> image ``(C, H, W, D)`` float32, label ``(1, H, W, D)`` uint8.

    Args:
        pixdim: in-plane spacing in mm: 1.2 for hearts, 0.5 for cords; ``None`` keeps the scanner's.
        roi: in-plane size: 288 for hearts, 144 for cords; ``None`` keeps it.
        keys: the image first; all others are labels on its grid. Missing labels are skipped.
        normalize: percentiles per ``"slice"`` or ``"volume"``, or ``None`` to leave intensities alone.
        percentiles: lower and upper percentile.
        label_map: from the label values in the file to class indices; values not listed stay.
        num_classes: N, background included; label values from N on are refused.

    Example:
        >>> from monai.data import MetaTensor
        >>> volume = MetaTensor(torch.rand(1, 60, 50, 5), affine=torch.diag(torch.tensor([2.4, 2.4, 9.0, 1.0])))
        >>> chain = slice_space_transforms(pixdim=1.2, roi=96)
        >>> slices = chain({"image": volume})
        >>> slices["image"].shape, chain.inverse(slices)["image"].shape
        (torch.Size([1, 96, 96, 5]), torch.Size([1, 60, 50, 5]))
    """
    names = ensure_tuple(keys)
    image, labels = names[0], names[1:]
    modes = ["bilinear"] + ["nearest"] * len(labels)
    steps: list[object] = []
    if label_map and labels:
        steps.append(
            MapLabelValued(labels, list(label_map), list(label_map.values()), dtype=np.float32, allow_missing_keys=True)
        )
    steps.append(ToSliceStackd(names, allow_missing_keys=True))
    if pixdim is not None:
        steps.append(InPlaneSpacingd(names, pixdim=pixdim, mode=modes, allow_missing_keys=True))
    if normalize is not None:
        steps.append(PercentileNormalized(image, *percentiles, per=normalize))
    if roi is not None:
        size = (*ensure_tuple_rep(roi, 2), -1)
        steps.append(ResizeWithPadOrCropd(names, spatial_size=size, mode="constant", value=0, allow_missing_keys=True))
    steps.append(CastToTyped(image, dtype=torch.float32))
    if labels:
        steps.append(AsClassesd(labels, num_classes, allow_missing_keys=True))
    return Compose(steps)
