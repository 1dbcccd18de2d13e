# SPDX-License-Identifier: Apache-2.0
"""Scores of a label map against the truth on its native grid: one row per class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .labelmaps import annotated_labels, check_label_map, encode_labels, foreground_labels, mask_unannotated
from .policy import Status, image_diagonal, mask_status
from .surface import bounding_box, check_spacing, percentile_distance, surface_distances

__all__ = ["METRICS", "Case", "ScoreRow", "evaluate_cases", "evaluate_volume"]

#: The figures of a row that are averaged in reports, in the order of the tables.
METRICS = ("dice", "hd_mm", "hd95_mm", "assd_mm", "volume_pred_ml", "volume_true_ml", "volume_diff_ml")


@dataclass(frozen=True)
class ScoreRow:
    """The figures of one class in one volume. ``None`` means excluded (see ``status``), never zero and never NaN.

    Args:
        label: the voxel value of the class.
        class_name: the name of the class.
        status: what the policy made of it, see :mod:`vmfseg.metrics.policy`.
        dice: overlap, 0..1.
        hd_mm: Hausdorff distance.
        hd95_mm: larger of the two directed 95th percentiles.
        assd_mm: average symmetric surface distance.
        volume_pred_ml: predicted volume.
        volume_true_ml: true volume; ``None`` where the class is not annotated.
        volume_diff_ml: predicted minus true volume.
        subject: the person or animal.
        domain: scanner, vendor, site: what generalization is measured over.
        phase: ``"ED"``, ``"ES"`` or ``None``.
        frame: index of the frame in a 4-D file or ``None``.
        spacing_mm: the voxel size that was used.
    """

    label: int
    class_name: str
    status: Status
    dice: float | None
    hd_mm: float | None
    hd95_mm: float | None
    assd_mm: float | None
    volume_pred_ml: float
    volume_true_ml: float | None
    volume_diff_ml: float | None
    subject: str = ""
    domain: str = "all"
    phase: str | None = None
    frame: int | None = None
    spacing_mm: tuple[float, ...] = ()

    @property
    def volume_key(self) -> tuple[str, str, str, int]:
        """Identify the volume the row belongs to: domain, subject, phase, frame."""
        return (self.domain, self.subject, self.phase or "", -1 if self.frame is None else self.frame)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, CSV and other processes."""
        return {**asdict(self), "spacing_mm": list(self.spacing_mm)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ScoreRow:
        """Build a row from :meth:`as_dict`; keys that are no field are ignored."""
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        return cls(**{**known, "spacing_mm": tuple(known.get("spacing_mm", ()))})


@dataclass(frozen=True)
class Case:
    """One volume to score: prediction and truth on the same grid, and where it comes from."""

    pred: Any
    truth: Any
    spacing: Sequence[float]
    subject: str
    domain: str = "all"
    phase: str | None = None
    frame: int | None = None
    annotated: Iterable[int] | npt.NDArray[np.bool_] | None = None
    slices: Any = None
    slice_axis: int = -1


def evaluate_volume(
    pred: Any,
    truth: Any,
    spacing: Sequence[float],
    labels: Mapping[int, str],
    annotated: Iterable[int] | npt.NDArray[np.bool_] | None = None,
    slices: Any = None,
    slice_axis: int = -1,
) -> list[ScoreRow]:
    r"""Score every class of a label map in millimetres on the grid it is given on.

    Dice is :math:`2|A \cap B| / (|A| + |B|)`, from one confusion matrix; distances are those of
    :mod:`vmfseg.metrics.surface`, empty masks follow :mod:`vmfseg.metrics.policy`. Nothing is resampled: give both
    maps on the native grid of the truth.

    Shape: ``HWD`` or ``1HWD`` integer label maps, NumPy arrays or tensors. A single slice is ``HW1``.

    Args:
        pred: predicted label map.
        truth: true label map of the same shape.
        spacing: voxel size in mm, three numbers. Required: without it there are no millimetres.
        labels: name of every class by voxel value; 0 is background and is not scored.
        annotated: voxel values that were annotated in this subject, or a Boolean vector over the classes with the
            background at index 0; ``None`` means all.
        slices: slices that were annotated, for all classes or for each (:mod:`vmfseg.transforms.annotation_text`); all
            figures of a class are those of its annotated slices. ``None`` means all.
        slice_axis: the axis of the arrays that ``slices`` counts.

    Returns:
        One row per foreground class, ordered by label.

    Raises:
        ValueError: for other shapes, missing spacing, label values without a name.

    Example:
        >>> truth = np.zeros((16, 16, 4), np.uint8)
        >>> truth[4:10, 4:10, 1:3] = 1
        >>> pred = np.roll(truth, 1, axis=0)
        >>> lv, rv = evaluate_volume(pred, truth, (1.25, 1.25, 8.0), {1: "LV", 2: "RV"})
        >>> lv.class_name, round(lv.dice, 4), lv.hd_mm, lv.volume_true_ml
        ('LV', 0.8333, 1.25, 0.9)
        >>> rv.status, rv.dice
        ('both_empty', None)
    """
    names = foreground_labels(labels)
    maps = [check_label_map("pred", pred), check_label_map("truth", truth)]
    if maps[0].shape != maps[1].shape:
        raise ValueError(f"pred must have the shape of truth {maps[1].shape}, got {maps[0].shape}. Resample it first.")
    sizes = check_spacing(spacing, 3)
    drawn = annotated_labels(annotated, names)
    masked = [mask_unannotated(array, names, slices, slice_axis) for array in maps]
    maps, drawn = [array for array, _ in masked], drawn & masked[0][1]
    box = bounding_box((maps[0] != 0) | (maps[1] != 0)) or (slice(0, 0),) * 3
    crops = [np.ascontiguousarray(array[box]) for array in maps]
    codes = [encode_labels(name, crop, names) for name, crop in zip(("pred", "truth"), crops, strict=True)]
    size = len(names) + 1
    confusion = np.bincount((codes[1] * size + codes[0]).ravel(), minlength=size * size).reshape(size, size)
    milliliter = float(np.prod(sizes)) / 1000
    diagonal = image_diagonal(maps[0].shape, sizes)
    rows = []
    for code, (label, name) in enumerate(names.items(), start=1):
        in_pred, in_truth, common = int(confusion[:, code].sum()), int(confusion[code].sum()), confusion[code, code]
        status = mask_status(in_pred, in_truth, label in drawn)
        dice = hd = hd95 = assd = None
        if status == "scored":
            forward, backward = surface_distances(codes[0] == code, codes[1] == code, sizes)
            dice = float(2 * common / (in_pred + in_truth))
            hd, hd95 = percentile_distance(forward, backward), percentile_distance(forward, backward, 95)
            assd = float((forward.sum() + backward.sum()) / (forward.size + backward.size))
        elif status in ("missed", "spurious"):
            dice, hd, hd95, assd = 0.0, diagonal, diagonal, diagonal
        known = status != "not_annotated"
        rows.append(
            ScoreRow(
                label=label,
                class_name=name,
                status=status,
                dice=dice,
                hd_mm=hd,
                hd95_mm=hd95,
                assd_mm=assd,
                volume_pred_ml=in_pred * milliliter,
                volume_true_ml=in_truth * milliliter if known else None,
                volume_diff_ml=(in_pred - in_truth) * milliliter if known else None,
                spacing_mm=sizes,
            )
        )
    return rows


def evaluate_cases(cases: Iterable[Case], labels: Mapping[int, str]) -> list[ScoreRow]:
    """Score volume after volume: one row per subject × frame × class, each with its domain.

    Args:
        cases: the volumes; a generator keeps only one in memory.
        labels: see :func:`evaluate_volume`.

    Example:
        >>> truth = np.ones((4, 4, 2), np.uint8)
        >>> rows = evaluate_cases([Case(truth, truth, (1, 1, 5), "s1", "A", phase="ED")], {1: "LV"})
        >>> rows[0].subject, rows[0].domain, rows[0].phase, rows[0].dice
        ('s1', 'A', 'ED', 1.0)
    """
    rows: list[ScoreRow] = []
    for case in cases:
        rows.extend(
            replace(score, subject=case.subject, domain=case.domain, phase=case.phase, frame=case.frame)
            for score in evaluate_volume(
                case.pred, case.truth, case.spacing, labels, case.annotated, case.slices, case.slice_axis
            )
        )
    return rows
