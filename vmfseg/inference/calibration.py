# SPDX-License-Identifier: Apache-2.0
"""What the model is worth where the truth is known, so that it can say so where it is not."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.data import MetaTensor
from scipy.optimize import lsq_linear

from vmfseg.data import LoadVolumed
from vmfseg.inference.corruption import CORRUPTIONS, LEVELS, corrupt
from vmfseg.inference.predictor import Predictor
from vmfseg.inference.quality import SIGNALS, QualityModel
from vmfseg.transforms import ToSliceStackd

__all__ = ["QualityCase", "calibrate_quality", "fit_quality", "quality_cases"]

_RIDGE = 0.3


class QualityCase(dict[str, float]):
    """The signals of a volume with its true Dice and its subject.

    Args:
        signals: see :mod:`vmfseg.inference.quality`.
        dice: mean over the foreground classes that the truth has.
        subject: whose volume.
        level: of the corruption, 0 for the image as it is.
    """

    def __init__(self, signals: Mapping[str, float], dice: float, subject: str, level: int = 0) -> None:
        super().__init__(signals)
        self.dice, self.subject, self.level = dice, subject, level


def quality_cases(
    predictor: Predictor, rows: Sequence[Mapping[str, Any]], *, corruptions: bool = True, every_level: bool = False
) -> list[QualityCase]:
    """Segment labelled volumes, as they are and corrupted, and compare with the truth.

    Args:
        predictor: the model.
        rows: with image and label, as :class:`vmfseg.data.Experiment` gives them.
        corruptions: add each kind of corruption, at levels that change from volume to volume.
        every_level: take all levels of each kind instead.
    """
    volume: dict[Hashable, Any]
    load, stack = LoadVolumed(num_classes=len(predictor.spec.labels)), ToSliceStackd(("image", "label"))
    cases = []
    for index, row in enumerate(row for row in rows if row.get("label")):
        volume = dict(row.items())
        data = stack(load(volume))
        image, truth = data["image"], data["label"][0].numpy()
        plan = [("noise", 0)]
        for number, kind in enumerate(CORRUPTIONS if corruptions else ()):
            levels = range(1, LEVELS + 1) if every_level else [1 + (index + number) % LEVELS]
            plan += [(kind, level) for level in levels]
        for kind, level in plan:
            voxels = corrupt(image[0].numpy(), kind, level, seed=index)
            frame = predictor.predict_frame(MetaTensor(torch.from_numpy(voxels)[None], affine=image.affine))
            dice = _dice(frame.labels, truth, row.get("annotated"), len(predictor.spec.labels))
            if dice is not None:
                cases.append(QualityCase(frame.signals, dice, str(row.get("subject", index)), level))
    return cases


def fit_quality(cases: Sequence[QualityCase], threshold: float = 0.7) -> QualityModel:
    r"""Fit the predicted Dice: least squares with a small ridge, under the signs of :data:`SIGNALS`.

    The error is that of predictions for subjects left out of the fit one by one (of the fit itself, where there is only
    one subject).

    Args:
        cases: at least two.
        threshold: Dice below which a segmentation counts as failed.

    Raises:
        ValueError: fewer than two cases.
    """
    if len(cases) < 2:
        raise ValueError(f"cases must be at least two volumes with a truth, got {len(cases)}.")
    subjects = sorted({case.subject for case in cases})
    residuals: list[float] = []
    for left_out in subjects if len(subjects) > 1 else [""]:
        seen = [case for case in cases if case.subject != left_out]
        model = _fit(seen, threshold)
        judged = [case for case in cases if case.subject == left_out] or list(cases)
        residuals += [model.predict(case) - case.dice for case in judged]
    error = float(np.sqrt(np.mean(np.square(residuals))))
    model = _fit(cases, threshold)
    return QualityModel(
        model.mean, model.scale, model.weights, model.intercept, error, threshold, len(cases), len(subjects)
    )


def calibrate_quality(
    predictor: Predictor, rows: Sequence[Mapping[str, Any]], threshold: float = 0.7
) -> tuple[QualityModel, list[QualityCase]]:
    """Learn on source validation, and on corruptions of it, how the signals of a volume tell its Dice.

    Args:
        predictor: the model.
        rows: labelled volumes that it was not trained on.
        threshold: Dice below which a segmentation counts as failed.

    Returns:
        The model, and the cases it was fitted on.
    """
    cases = quality_cases(predictor, rows)
    return fit_quality(cases, threshold), cases


def _fit(cases: Sequence[QualityCase], threshold: float) -> QualityModel:
    table = _table(cases)
    truth = np.array([case.dice for case in cases])
    mean, scale = table.mean(axis=0), table.std(axis=0)
    used = scale > 1e-6
    scale = np.where(used, scale, 1.0)
    signs = np.array(list(SIGNALS.values()), dtype=np.float64)
    matrix = (table - mean) / scale * signs * used
    ridge = np.sqrt(_RIDGE) * np.eye(len(signs))
    fitted = lsq_linear(
        np.vstack([matrix, ridge]), np.concatenate([truth - truth.mean(), np.zeros(len(signs))]), (0.0, np.inf)
    )
    weights = fitted.x * signs * used
    names = list(SIGNALS)
    return QualityModel(
        mean=dict(zip(names, mean.tolist(), strict=True)),
        scale=dict(zip(names, scale.tolist(), strict=True)),
        weights=dict(zip(names, weights.tolist(), strict=True)),
        intercept=float(truth.mean()),
        error=0.0,
        threshold=threshold,
    )


def _table(cases: Sequence[QualityCase]) -> npt.NDArray[np.float64]:
    """Return one row of signals for each case; what could not be measured takes the worst value that was."""
    columns = []
    for name, sign in SIGNALS.items():
        known = [case[name] for case in cases if name in case]
        worst = (min(known) if sign > 0 else max(known)) if known else 0.0
        worst = {"entropy": 1.0}.get(name, worst if name.startswith("log") else 0.0) if known else 0.0
        columns.append([case.get(name, worst) for case in cases])
    return np.array(columns, dtype=np.float64).T


def _dice(labels: npt.NDArray[np.uint8], truth: npt.NDArray[Any], annotated: Any, classes: int) -> float | None:
    scores = []
    for value in range(1, classes):
        if annotated is not None and value not in annotated:
            continue
        wanted, found = truth == value, labels == value
        if wanted.any():
            scores.append(2 * float((wanted & found).sum()) / float(wanted.sum() + found.sum()))
    return float(np.mean(scores)) if scores else None
