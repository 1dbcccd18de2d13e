# SPDX-License-Identifier: Apache-2.0
"""Transforms that MONAI has not: slice space, percentiles, annotated slices, batched augmentation, one organ."""

from .annotation import AsClassesd, MaskUnannotatedd
from .augment import BatchAugment
from .copy_paste import BidirectionalCopyPaste
from .intensity import PercentileNormalized
from .organ import KeepOrgand
from .patch_mask import PatchMask
from .random_contrast import GINAugment
from .slice_space import slice_space_transforms
from .spatial import InPlaneSpacingd, ToSliceStackd

__all__ = [
    "AsClassesd",
    "BatchAugment",
    "BidirectionalCopyPaste",
    "GINAugment",
    "InPlaneSpacingd",
    "KeepOrgand",
    "MaskUnannotatedd",
    "PatchMask",
    "PercentileNormalized",
    "ToSliceStackd",
    "slice_space_transforms",
]
