# SPDX-License-Identifier: Apache-2.0
r"""Metrics as the reference code computed them: slice-wise micro Dice and mask set distance.

They exist only to put a run beside the published tables (``protocol: paper``); no result of ours rests on them.

* :func:`slice_micro_dice`: the published "Dice". Per 2-D slice and over all foreground classes together, so a large
  class hides a small one, and an empty slice left empty scores 1.
* :func:`mask_set_distance`: the published "Hausdorff distance". It is no distance in space: every class mask is
  flattened to one point of :math:`\mathbb{R}^{HW}`, and the Hausdorff distance of the two *sets of masks* is taken. For
  a good prediction that is :math:`\sqrt{\max_c (\text{wrong pixels of class } c)}`. A stray pixel anywhere costs 1,
  two classes exchanged cost nothing, and there is no unit.

Departures from the reference code, on purpose: label maps on the native grid (it thresholds sigmoids at 0.5 on a
resampled, cropped grid), and the last subject counts (it forgets it).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from .labelmaps import annotated_labels, check_label_map, encode_labels, foreground_labels

__all__ = [
    "REFERENCE_NOTE",
    "ReferenceRow",
    "mask_set_distance",
    "reference_summary",
    "reference_volume",
    "slice_micro_dice",
]

#: Printed beside every figure of this file.
REFERENCE_NOTE = (
    "Figures of the reference code, for comparison with the published tables only. slice_micro_dice pools the "
    "foreground classes of a 2-D slice (empty slice left empty = 1). mask_set_distance is the published 'Hausdorff "
    "distance': the square root of a number of differing pixels, not a distance in space, without unit, blind to "
    "exchanged classes. Computed from label maps on the native grid; all subjects count."
)

_SMOOTH = 1e-4


@dataclass(frozen=True)
class ReferenceRow:
    """The reference's two figures of one volume: means over its slices."""

    subject: str
    domain: str
    phase: str | None
    frame: int | None
    n_slices: int
    slice_micro_dice: float
    mask_set_distance: float

    @property
    def volume_key(self) -> tuple[str, str, str, int]:
        """Identify the volume: domain, subject, phase, frame."""
        return (self.domain, self.subject, self.phase or "", -1 if self.frame is None else self.frame)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON and other processes."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ReferenceRow:
        """Build a row from :meth:`as_dict`; keys that are no field are ignored."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})


def slice_micro_dice(pred: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    r"""Return the reference's Dice of one slice, all foreground classes pooled.

    .. math:: \frac{2 \sum_c |A_c \cap B_c| + \epsilon}{\sum_c (|A_c| + |B_c|) + \epsilon}, \quad \epsilon = 10^{-4}

    Shape: Boolean masks ``NHW`` without the background; channels may overlap.

    Example:
        >>> empty = np.zeros((3, 8, 8), bool)
        >>> slice_micro_dice(empty, empty)
        1.0
    """
    masks = _one_hot(pred, truth)
    common = float(np.logical_and(*masks).sum())
    return (2 * common + _SMOOTH) / (float(masks[0].sum()) + float(masks[1].sum()) + _SMOOTH)


def mask_set_distance(pred: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    r"""Return the published pseudo-"Hausdorff distance". It measures no distance in space.

    With the class masks as points :math:`a_c, b_c \in \{0, 1\}^{HW}`,

    .. math:: \max\Bigl(\max_c \min_k \lVert a_c - b_k \rVert_2,\ \max_c \min_k \lVert b_c - a_k \rVert_2\Bigr) .

    Note that class :math:`c` is compared with the *nearest* class, whichever it is.

    Shape: Boolean masks ``NHW`` without the background. A single mask ``HW`` is treated as the reference treats it:
    its rows become the points, which gives another number of another scale (its spinal-cord tables).

    Example:
        >>> truth = np.zeros((2, 64, 64), bool)
        >>> truth[0, 4:20, 4:20], truth[1, 40:50, 40:50] = True, True
        >>> stray = truth.copy()
        >>> stray[0, 60, 2] = True
        >>> mask_set_distance(stray, truth), mask_set_distance(truth[::-1], truth)
        (1.0, 0.0)
    """
    points = [mask.reshape(len(mask), -1).astype(np.float64) for mask in _one_hot(pred, truth)]
    sizes = points[0].sum(axis=1), points[1].sum(axis=1)
    return _set_distance(sizes[0], sizes[1], points[0] @ points[1].T)


def reference_volume(
    pred: Any,
    truth: Any,
    labels: Mapping[int, str],
    annotated: Iterable[int] | npt.NDArray[np.bool_] | None = None,
    *,
    subject: str = "",
    domain: str = "all",
    phase: str | None = None,
    frame: int | None = None,
    slice_axis: int = -1,
) -> ReferenceRow:
    """Score a label map the reference's way: slice by slice along ``slice_axis``, then the mean.

    Shape: ``HWD`` or ``1HWD`` integer label maps.

    Args:
        pred: predicted label map.
        truth: true label map.
        labels: name of every class by voxel value.
        annotated: the annotated classes, see :func:`vmfseg.metrics.evaluate_volume`; the others are left out.
        subject: the person or animal.
        domain: scanner, vendor or site.
        phase: ``"ED"``, ``"ES"`` or ``None``.
        frame: index of the frame or ``None``.
        slice_axis: the axis across the slices.

    Raises:
        ValueError: for maps that :func:`vmfseg.metrics.evaluate_volume` refuses as well.
    """
    names = foreground_labels(labels)
    drawn = annotated_labels(annotated, names)
    kept = [0, *(code for code, label in enumerate(names, start=1) if label in drawn)]
    maps = [
        np.moveaxis(check_label_map(name, array), slice_axis, 0) for name, array in (("pred", pred), ("truth", truth))
    ]
    codes = [encode_labels(name, array, names) for name, array in zip(("pred", "truth"), maps, strict=True)]
    if maps[0].shape != maps[1].shape:
        raise ValueError(f"pred must have the shape of truth {maps[1].shape}, got {maps[0].shape}. Resample it first.")
    size, depth = len(names) + 1, len(maps[0])
    offsets = (np.arange(depth) * size * size)[:, None, None]
    counts = np.bincount((offsets + codes[1] * size + codes[0]).ravel(), minlength=depth * size * size)
    dices, distances = [], []
    for confusion in counts.reshape(depth, size, size):
        in_pred, in_truth = confusion.sum(axis=0)[kept[1:]], confusion.sum(axis=1)[kept[1:]]
        common = confusion[np.ix_(kept[1:], kept[1:])]
        dices.append((2 * np.trace(common) + _SMOOTH) / (in_pred.sum() + in_truth.sum() + _SMOOTH))
        distances.append(_set_distance(in_pred, in_truth, common.T) if len(kept) > 1 else 0.0)
    return ReferenceRow(subject, domain, phase, frame, depth, float(np.mean(dices)), float(np.mean(distances)))


def reference_summary(rows: Sequence[ReferenceRow]) -> dict[str, Any]:
    """Return the published kind of table: mean and sample SD over subjects per domain, and over domains.

    A subject's score is the mean over all slices of its volumes (ED and ES). The average row is the mean of the domain
    means with the *population* SD over domains, as published.
    """
    table: dict[str, Any] = {"note": REFERENCE_NOTE, "domains": {}}
    keys = ("slice_micro_dice", "mask_set_distance")
    for domain in sorted({row.domain for row in rows}):
        subjects = sorted({row.subject for row in rows if row.domain == domain})
        entry: dict[str, Any] = {"n_subjects": len(subjects)}
        for key in keys:
            scores = [_subject_score([r for r in rows if (r.domain, r.subject) == (domain, s)], key) for s in subjects]
            spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
            entry[key] = {"mean": float(np.mean(scores)), "sd_sample": spread}
        table["domains"][domain] = entry
    means = {key: [entry[key]["mean"] for entry in table["domains"].values()] for key in keys}
    table["average_of_domains"] = {
        key: {"mean": float(np.mean(values)), "sd_population": float(np.std(values))} if values else None
        for key, values in means.items()
    }
    return table


def _subject_score(rows: Sequence[ReferenceRow], key: str) -> float:
    return float(np.average([getattr(row, key) for row in rows], weights=[row.n_slices for row in rows]))


def _one_hot(pred: npt.ArrayLike, truth: npt.ArrayLike) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    masks = np.asarray(pred, dtype=bool), np.asarray(truth, dtype=bool)
    if masks[0].shape != masks[1].shape or masks[0].ndim < 2:
        raise ValueError(
            f"pred and truth must be masks of one shape (N, H, W), got {masks[0].shape} and {masks[1].shape}. "
            "Leave out the background."
        )
    return masks


def _set_distance(in_pred: npt.NDArray[Any], in_truth: npt.NDArray[Any], common: npt.NDArray[Any]) -> float:
    squared = in_pred[:, None] + in_truth[None, :] - 2 * common
    return float(np.sqrt(max(squared.min(axis=1).max(), squared.min(axis=0).max())))
