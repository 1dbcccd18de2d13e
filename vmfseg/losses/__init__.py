# SPDX-License-Identifier: Apache-2.0
"""Losses of the five methods."""

from .clustering import VMFClusteringLoss
from .compound import VMFLoss
from .consistency import ActivationConsistencyLoss
from .cross_pseudo import CrossPseudoLoss
from .presence import PresenceLoss
from .segmentation import MaskedCrossEntropyLoss, MaskedDiceLoss

__all__ = [
    "ActivationConsistencyLoss",
    "CrossPseudoLoss",
    "MaskedCrossEntropyLoss",
    "MaskedDiceLoss",
    "PresenceLoss",
    "VMFClusteringLoss",
    "VMFLoss",
]
