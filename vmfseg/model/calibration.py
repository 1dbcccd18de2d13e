# SPDX-License-Identifier: Apache-2.0
"""Fit the predicted Dice on labelled source volumes and corruptions of them, and the temperature of probabilities."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.data import MetaTensor
from scipy.optimize import lsq_linear

from vmfseg.data import LoadVolumed
from vmfseg.model.corruption import CORRUPTIONS, LEVELS, corrupt
from vmfseg.model.grid import PlacedVolume, normalized
from vmfseg.model.prediction import FramePrediction, volume_statistics
from vmfseg.model.predictor import Predictor
from vmfseg.model.quality import SIGNALS, QualityModel, signal_value, typical_ranges
from vmfseg.transforms import ToSliceStackd
from vmfseg.transforms.annotation import annotated_slices

__all__ = ["QualityCase", "fit_quality", "fit_temperature", "quality_cases"]

_RIDGE = 0.3
_FAILED = 0.7  # Dice below which a segmentation counts as failed


@dataclass(frozen=True)
class QualityCase:
    """A segmented volume whose truth is known.

    Attributes:
        frame: what the network said.
        dice: mean over the foreground classes that the truth has.
        subject: whose volume.
        kind: of the corruption.
        level: of the corruption, 0 for the image as it is.
        structures: Dice of every class that the truth has, by name.
    """

    frame: FramePrediction
    dice: float
    subject: str
    kind: str = ""
    level: int = 0
    structures: dict[str, float] = field(default_factory=dict)


def quality_cases(
    predictor: Predictor, rows: Sequence[Mapping[str, Any]], *, corruptions: bool = True, every_level: bool = False
) -> list[QualityCase]:
    """Segment labelled volumes, as they are and corrupted, and compare with the truth.

    Args:
        predictor: the model.
        rows: with image and label, as :class:`vmfseg.data.experiment.Experiment` gives them.
        corruptions: add each kind of corruption, at levels that change from volume to volume.
        every_level: take all levels of each kind instead.
    """
    volume: dict[Hashable, Any]
    load, stack = LoadVolumed(num_classes=len(predictor.labels)), ToSliceStackd(("image", "label"))
    cases = []
    for index, row in enumerate(row for row in rows if row.get("label")):
        volume = dict(row.items())
        data = stack(load(volume))
        image, truth = data["image"], data["label"][0].numpy()
        table = annotated_slices(data["label"], len(predictor.labels), row.get("annotated"), row.get("slices"))
        plan = [("noise", 0)]
        for number, kind in enumerate(CORRUPTIONS if corruptions else ()):
            levels = range(1, LEVELS + 1) if every_level else [1 + (index + number) % LEVELS]
            plan += [(kind, level) for level in levels]
        for kind, level in plan:
            voxels = np.stack([corrupt(channel, kind, level, seed=index) for channel in image.numpy()])
            frame = predictor.predict_frame(MetaTensor(torch.from_numpy(voxels), affine=image.affine))
            scores = _dice(frame.labels, truth, table)
            if scores:
                # labels are not needed any more, and many cases would hold many of them
                kept = replace(frame, labels=np.zeros((0, 0, 0), np.uint8))
                named = {predictor.labels[value]: dice for value, dice in scores.items()}
                mean = float(np.mean(list(scores.values())))
                cases.append(QualityCase(kept, mean, str(row.get("subject", index)), kind, level, named))
    return cases


def fit_quality(cases: Sequence[QualityCase], typical: Mapping[str, Sequence[float]] | None = None) -> QualityModel:
    r"""Fit the predicted Dice: least squares with a small ridge, under the signs of :data:`SIGNALS`.

    Errors and intervals are those of predictions for subjects left out of the fit one by one (of the fit itself, where
    there is only one subject). Every class that the truth of two or more cases has gets a fit of its own.

    Args:
        cases: at least two.
        typical: what source volumes look like, see :func:`typical_ranges`; default what the cases without corruption
            look like.

    Raises:
        ValueError: fewer than two cases.
    """
    if len(cases) < 2:
        raise ValueError(f"cases must be at least two volumes with a truth, got {len(cases)}.")
    if typical is None:
        typical = typical_ranges([volume_statistics(case.frame) for case in cases if case.level == 0])
    fitted, error, interval = _judged_fit(cases, typical)
    structures: dict[str, dict[str, Any]] = {}
    for name in sorted({name for case in cases for name in case.structures}):
        drawn = [replace(case, dice=case.structures[name]) for case in cases if name in case.structures]
        if len(drawn) > 1:
            part, part_error, part_interval = _judged_fit(drawn, typical, fitted.sizes)
            # in the units of the signals of the whole model
            structures[name] = {**_in_units_of(fitted, part), "error": part_error, "interval": part_interval}
    count = len({case.subject for case in cases})
    return replace(fitted, error=error, interval=interval, structures=structures, volumes=len(cases), subjects=count)


def _judged_fit(
    cases: Sequence[QualityCase],
    typical: Mapping[str, Sequence[float]],
    sizes: dict[str, list[float]] | None = None,
) -> tuple[QualityModel, float, list[float]]:
    """Return the fit, its error on subjects left out, and the 5 and 95 % quantiles of truth minus prediction there."""
    subjects = sorted({case.subject for case in cases})
    residuals: list[float] = []
    for left_out in subjects if len(subjects) > 1 else [""]:
        model = _fit([case for case in cases if case.subject != left_out], typical, sizes)
        judged = [case for case in cases if case.subject == left_out] or list(cases)
        residuals += [case.dice - model.predict(model.judged(case.frame)) for case in judged]
    error = float(np.sqrt(np.mean(np.square(residuals))))
    return _fit(cases, typical, sizes), error, [float(q) for q in np.quantile(residuals, [0.05, 0.95])]


def _in_units_of(whole: QualityModel, part: QualityModel) -> dict[str, Any]:
    r"""Return intercept and weights of a fit for signals in the units of another, so that one table serves both.

    :math:`b + \sum w (s - m) / \sigma` with the other's :math:`m', \sigma'` has
    :math:`w' = w \sigma' / \sigma` and :math:`b' = b + \sum w (m' - m) / \sigma`.
    """
    weights = {name: weight * whole.scale[name] / part.scale[name] for name, weight in part.weights.items()}
    moved = sum(w * (whole.mean[n] - part.mean[n]) / part.scale[n] for n, w in part.weights.items())
    return {"intercept": part.intercept + moved, "weights": weights}


def _fit(
    cases: Sequence[QualityCase],
    typical: Mapping[str, Sequence[float]],
    sizes: dict[str, list[float]] | None = None,
) -> QualityModel:
    names, ranges = list(SIGNALS), {name: list(pair) for name, pair in typical.items()}
    known = _sizes(cases) if sizes is None else sizes
    model = QualityModel({}, {}, {}, 0.0, 0.0, _FAILED, typical=ranges, sizes=known)
    table = np.array([[signal_value(model.judged(case.frame), name) for name in names] for case in cases])
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
    return replace(
        model,
        mean=dict(zip(names, mean.tolist(), strict=True)),
        scale=dict(zip(names, scale.tolist(), strict=True)),
        weights=dict(zip(names, weights.tolist(), strict=True)),
        intercept=float(truth.mean()),
    )


def _sizes(cases: Sequence[QualityCase]) -> dict[str, list[float]]:
    """Return the range of the volumes of every class that was found, on images as they are."""
    found: dict[str, list[float]] = {}
    for case in cases:
        for name, volume in case.frame.volumes.items():
            if case.level == 0 and volume > 0:
                found.setdefault(name, []).append(volume)
    return {name: [min(volumes), max(volumes)] for name, volumes in found.items()}


def _dice(labels: npt.NDArray[np.uint8], truth: npt.NDArray[Any], annotated: torch.Tensor) -> dict[int, float]:
    """Return the Dice of the classes that the truth has, on the slices ``(N, D)`` that were annotated for them."""
    scores = {}
    for value in range(1, len(annotated)):
        drawn = annotated[value].numpy()
        wanted, found = (truth == value) & drawn, (labels == value) & drawn
        if wanted.any():
            scores[value] = 2 * float((wanted & found).sum()) / float(wanted.sum() + found.sum())
    return scores


#: Temperatures that are tried, 1 among them.
_CANDIDATES = tuple(float(value) for value in 2.0 ** (np.arange(-3, 7) / 3))
_FLOOR = 1e-6


def fit_temperature(predictor: Predictor, rows: Sequence[Mapping[str, Any]]) -> tuple[float, tuple[float, ...]]:
    r"""Return the temperature, and the mean negative log-likelihood without and with it; 1 where nothing is labelled.

    With the probability :math:`p_T(c \mid x)` that the predictor writes for class :math:`c` at voxel :math:`x` when
    logits are divided by :math:`T`, the temperature is the one that makes the truth of labelled source volumes most
    likely,

    .. math:: T = \operatorname*{arg\,min}_T -\frac{1}{|X|} \sum_{x \in X} \log p_T(c_x \mid x) ,

    over the voxels of the model's window in slices where every class was drawn (Guo et al., ICML 2017, with the maps
    as they are written: after the activation, on the grid of the scan). The labels do not change.

    Args:
        predictor: the model.
        rows: labelled volumes that it was not trained on.
    """
    load, stack = LoadVolumed(num_classes=len(predictor.labels)), ToSliceStackd(("image", "label"))
    sums, count = np.zeros(len(_CANDIDATES)), 0
    for row in (row for row in rows if row.get("label")):
        volume: dict[Hashable, Any] = dict(row.items())
        data = stack(load(volume))
        truth = data["label"].as_tensor()[0].long()
        table = annotated_slices(data["label"], len(predictor.labels), row.get("annotated"), row.get("slices"))
        first = predictor.grid.place(data["image"], predictor.locate(data["image"]).shift)
        logits = [predictor.backend(batch).logits for batch in first.slices.split(predictor.batch_size)]
        used = torch.zeros_like(truth, dtype=torch.bool)
        for number, temperature in enumerate(_CANDIDATES):
            placed = PlacedVolume(first.grid, first.native, first.space, first.plane)
            for part in logits:
                placed.add(part, keep=True, temperature=temperature)
            scores = placed.result(keep=True)[1]
            if scores is None:
                continue
            used = (scores.sum(dim=0) > 0) & table.all(dim=0)
            chances = normalized(scores).gather(0, truth[None])[0][used]
            sums[number] -= float(chances.clamp_min(_FLOOR).log().sum(dtype=torch.float64))
        count += int(used.sum())
    if not count:
        return 1.0, ()
    best = int(np.argmin(sums))
    return _CANDIDATES[best], (float(sums[_CANDIDATES.index(1.0)] / count), float(sums[best] / count))
