# SPDX-License-Identifier: Apache-2.0
r"""Policy for empty and unannotated masks: what a missed, spurious or absent structure scores.

Most tools give NaN for the distance of an empty mask and then average over what is left, so that a network which
misses the hard structures gets a *better* mean distance. Here a failure costs as much as an image can cost:

==================  =========  ==============  ====================================================================
status              Dice       distances       meaning
==================  =========  ==============  ====================================================================
``scored``          as is      as is           both masks hold voxels
``missed``          0          image diagonal  truth holds voxels, the prediction none
``spurious``        0          image diagonal  the prediction holds voxels, truth none
``both_empty``      excluded   excluded        neither holds voxels: nothing to score, but counted
``not_annotated``   excluded   excluded        the annotator did not draw this class in this subject; counted
==================  =========  ==============  ====================================================================

The image diagonal :math:`\sqrt{\sum_i (n_i s_i)^2}` (:math:`n_i` voxels of :math:`s_i` mm along axis :math:`i`) is
longer than any distance between two voxels, so no mean distance improves when one more structure is missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from .surface import check_spacing

__all__ = ["COUNTED", "EXCLUDED", "POLICY", "Status", "image_diagonal", "mask_status"]

Status = Literal["scored", "missed", "spurious", "both_empty", "not_annotated"]

#: Statuses that enter every mean, and those that are left out of it and counted as ``n_excluded``.
EXCLUDED: tuple[Status, ...] = ("both_empty", "not_annotated")
COUNTED: tuple[Status, ...] = tuple(status for status in get_args(Status) if status not in EXCLUDED)

#: The policy in words; every metrics.json carries it.
POLICY = (
    "Truth empty and prediction empty: the structure is excluded from the means and counted in n_excluded. "
    "Only one of them empty: Dice 0 and every distance is the diagonal of the image in mm, counted in n_missed "
    "(prediction empty) or n_spurious (truth empty). Class not annotated in a subject: excluded and counted in "
    "n_excluded; n_not_annotated says how many of these."
)


def mask_status(voxels_pred: int, voxels_true: int, annotated: bool = True) -> Status:
    """Return what a structure with so many predicted and true voxels counts as.

    Example:
        >>> mask_status(12, 10), mask_status(0, 10), mask_status(12, 0), mask_status(0, 0)
        ('scored', 'missed', 'spurious', 'both_empty')
        >>> mask_status(12, 0, annotated=False)
        'not_annotated'
    """
    if not annotated:
        return "not_annotated"
    if voxels_pred and voxels_true:
        return "scored"
    if voxels_true:
        return "missed"
    return "spurious" if voxels_pred else "both_empty"


def image_diagonal(shape: Sequence[int], spacing: Sequence[float]) -> float:
    """Return the length in mm from one corner of the image to the opposite one.

    Example:
        >>> image_diagonal((3, 4), (1.0, 1.0))
        5.0
    """
    sizes = check_spacing(spacing, len(shape))
    return math.sqrt(sum((count * size) ** 2 for count, size in zip(shape, sizes, strict=True)))
