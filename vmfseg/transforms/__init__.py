# SPDX-License-Identifier: Apache-2.0
"""MONAI transforms, where MONAI has none: slice space, presence labels, batched augmentation."""

from .augment import BatchAugment, strong_augment
from .intensity import PercentileNormalize, PercentileNormalized
from .labels import AsClassesd, PresenceLabeld, annotated_classes, presence_labels
from .slice_space import slice_space_transforms
from .spatial import InPlaneSpacing, InPlaneSpacingd, ToSliceStack, ToSliceStackd, slice_stack_axcodes

__all__ = [
    "AsClassesd",
    "BatchAugment",
    "InPlaneSpacing",
    "InPlaneSpacingd",
    "PercentileNormalize",
    "PercentileNormalized",
    "PresenceLabeld",
    "ToSliceStack",
    "ToSliceStackd",
    "annotated_classes",
    "presence_labels",
    "slice_space_transforms",
    "slice_stack_axcodes",
    "strong_augment",
]
