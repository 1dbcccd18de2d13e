# SPDX-License-Identifier: Apache-2.0
r"""How *meaningful* the kernel channels are: which anatomy each one is, and how well.

Channels are matched to classes on labelled *source* subjects (:func:`match_channels`) and judged on others
(:func:`describe_channels`); nothing of the judged data chooses a threshold or a channel. The unit is one subject: its
slices are pooled. With activations :math:`P_{ij}` (position :math:`i`, channel :math:`j`, summing to one over
:math:`j`) and class masks :math:`Y_c` brought to the lattice of the activations (area fraction above one half):

* **matched Dice** (M1): Dice of :math:`P_j > t_{jc}` and :math:`Y_c`, thresholds and one-to-one assignment (Hungarian)
  from the source;
* **average precision** (M2), free of thresholds, chance = prevalence;
* **information** (M3): :math:`U_{jc} = I(Y_c; Q_j) / H(Y_c)` with :math:`Q_j` = :math:`P_j` in 16 equal-frequency bins,
  minus its mean when the labels are those of *another* subject (the null); a channel is meaningful if
  :math:`\max_c U_{jc}` exceeds the 95th percentile of that null;
* **exclusivity** (M4): for each class, largest minus second largest :math:`U_{jc}`;
* **partition** (M5): winning channel against anatomy inside the dilated foreground: AMI, homogeneity, completeness.

The measures of homogeneity are in :mod:`vmfseg.representation.homogeneity`. No single number suffices: merged
structures show in M1, split ones in M1, M4 and compactness. These are measures of this project; the paper shows
pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import binary_dilation
from scipy.optimize import linear_sum_assignment

from vmfseg.metrics.labelmaps import foreground_labels
from vmfseg.utils import numpy_rng

from .homogeneity import describe_homogeneity
from .information import average_precision, equal_frequency_bins, information_share, partition_agreement
from .samples import ActivationSample, by_subject, fully_annotated, lattice_masks

__all__ = ["ChannelMatch", "bootstrap_interval", "describe_channels", "match_channels"]

Array = npt.NDArray[Any]

_THRESHOLDS = tuple(round(0.1 * k, 1) for k in range(1, 10))
_ROI_MARGIN = 10


@dataclass(frozen=True)
class ChannelMatch:
    """Channels matched to classes on calibration data.

    Args:
        labels: name of every foreground class by voxel value.
        thresholds: ``JC``, the threshold of every channel for every class.
        dice: ``JC``, the Dice it reached on the calibration data.
        assignment: channel of every class by name; classes are missing where there are fewer channels than classes.
    """

    labels: dict[int, str]
    thresholds: npt.NDArray[np.float64]
    dice: npt.NDArray[np.float64]
    assignment: dict[str, int]


def match_channels(
    samples: Sequence[ActivationSample], labels: Mapping[int, str], thresholds: Sequence[float] = _THRESHOLDS
) -> ChannelMatch:
    """Choose threshold and channel for every class on labelled *source* data.

    Args:
        samples: slices of the calibration subjects.
        labels: name of every class by voxel value, background 0 ignored.
        thresholds: thresholds to try.

    Raises:
        ValueError: if there is no sample, or no class occurs in any.
    """
    names = foreground_labels(labels)
    groups = by_subject(samples)
    table = np.full((len(thresholds), len(groups), samples[0].activations.shape[0], len(names)), np.nan)
    for row, group in enumerate(groups.values()):
        activations, masks = _pooled(group, names)
        for column, threshold in enumerate(thresholds):
            table[column, row] = _dice(activations > threshold, masks)
    if np.isnan(table).all():
        raise ValueError(
            f"samples must hold at least one of the classes {list(names.values())}, got none. Check labels."
        )
    mean = np.nan_to_num(_nanmean(table, axis=1), nan=0.0)
    best = mean.argmax(axis=0)
    dice = mean.max(axis=0)
    channels, classes = linear_sum_assignment(dice, maximize=True)
    order = sorted(zip(classes.tolist(), channels.tolist(), strict=True))
    assignment = {list(names.values())[c]: j for c, j in order}
    return ChannelMatch(names, np.asarray(thresholds, dtype=np.float64)[best], dice, assignment)


def describe_channels(samples: Sequence[ActivationSample], match: ChannelMatch, *, seed: int = 0) -> dict[str, Any]:
    """Judge matched channels on other subjects: numbers for a report, ``None`` where a figure is undefined.

    A class that was not annotated in a subject is left out there. Purity, homology and partition speak of
    the background too, so they take only subjects of which every class was drawn.

    Args:
        samples: slices of the subjects to report on, best of unseen domains.
        match: from :func:`match_channels` on source subjects.
        seed: of the bootstrap over subjects.

    Returns:
        ``matched_dice`` (the headline, with its 95 % bootstrap interval), ``classes`` (per class: channel, Dice, AP,
        exclusivity), ``channels`` (per channel: best class by Dice and by information, homogeneity), ``n_meaningful``,
        ``partition`` and ``usage``.

    Raises:
        ValueError: if there is no sample, or no subject of which every class was annotated.
    """
    names = list(match.labels.values())
    groups = by_subject(samples)
    complete = fully_annotated(groups, match.labels)
    if not complete:
        raise ValueError(
            f"samples must hold a subject with all of {names} annotated, got none. Leave out classes that nobody drew."
        )
    pairs = list(match.assignment.items())
    dice, precision, information = [], [], []
    for group in groups.values():
        activations, masks = _pooled(group, match.labels)
        dice.append(
            np.concatenate(
                [_dice(activations > match.thresholds[:, c, None], masks[c : c + 1]) for c in range(len(masks))],
                axis=1,
            )
        )
        precision.append({c: average_precision(activations[j], masks[names.index(c)]) for c, j in pairs})
        information.append(_information(activations, masks))
    per_subject = np.asarray(dice, dtype=np.float64)
    mean_dice = _nanmean(per_subject, axis=0)
    null = _null_information(list(groups.values()), match.labels)
    shares = _nanmean(np.asarray(information, dtype=np.float64), axis=0)
    corrected = shares - (_nanmean(null, axis=0) if len(null) else 0.0)
    limit = float(np.nanquantile(np.nanmax(null, axis=2), 0.95)) if len(null) and not np.isnan(null).all() else None
    meaning = _nanmax(shares)
    matched = np.stack([per_subject[:, j, names.index(c)] for c, j in pairs], axis=1)
    subject_scores = _nanmean(matched, axis=1)
    interval = bootstrap_interval(subject_scores, seed)
    homogeneity = describe_homogeneity(complete, match.labels)
    classes = {}
    for index, name in enumerate(names):
        channel = match.assignment.get(name)
        column = np.sort(shares[:, index])[::-1]
        classes[name] = {
            "channel": channel,
            "matched_dice": None if channel is None else _number(mean_dice[channel, index]),
            "calibration_dice": None if channel is None else _number(match.dice[channel, index]),
            "average_precision": None
            if channel is None
            else _number(_nanmean(np.array([p[name] for p in precision], dtype=np.float64), axis=0)),
            "exclusivity": _number(column[0] - column[1]) if len(column) > 1 else None,
        }
    channels = [
        {
            "channel": j,
            "best_class_by_dice": _best(mean_dice[j], names),
            "dice": _number(_nanmax(mean_dice[j])),
            "best_class_by_information": _best(shares[j], names),
            "information": _number(meaning[j]),
            "information_above_null": _number(_nanmax(corrected[j])),
            "meaningful": None if limit is None or np.isnan(meaning[j]) else bool(meaning[j] > limit),
            **homogeneity["channels"][j],
        }
        for j in range(len(shares))
    ]
    flags = [entry["meaningful"] for entry in channels]
    return {
        "n_subjects": len(groups),
        "matched_dice": _number(_nanmean(subject_scores, axis=0)),
        "matched_dice_interval_95": interval,
        "information_null_95": limit,
        "n_meaningful": None if None in flags else sum(bool(flag) for flag in flags),
        "classes": classes,
        "channels": channels,
        "partition": _partition(complete, match.labels),
        "usage": homogeneity["usage"],
        "intensity_homogeneity": homogeneity["intensity_homogeneity"],
        "mean_purity": homogeneity["mean_purity"],
        "mean_class_entropy": homogeneity["mean_class_entropy"],
    }


def bootstrap_interval(values: Array, seed: int = 0, draws: int = 2000) -> list[float] | None:
    """Return the 95 % percentile bootstrap interval of the mean over subjects, or ``None`` for fewer than two.

    Example:
        >>> bootstrap_interval(np.array([0.5, 0.5, 0.5]))
        [0.5, 0.5]
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if len(known) < 2:
        return None
    rng = numpy_rng("bootstrap", seed)
    means = rng.choice(known, (draws, len(known))).mean(axis=1)
    return [float(limit) for limit in np.quantile(means, (0.025, 0.975))]


def _pooled(group: Sequence[ActivationSample], labels: Mapping[int, str]) -> tuple[Array, Array]:
    activations = np.concatenate([s.activations.reshape(len(s.activations), -1) for s in group], axis=1)
    masks = np.concatenate([lattice_masks(s, labels).reshape(len(labels), -1) for s in group], axis=1)
    return activations, masks


def _dice(chosen: Array, masks: Array) -> Array:
    """Return ``JC``: Dice of every chosen region ``JP`` with every mask ``CP``, NaN where a mask is empty."""
    common = chosen.astype(np.float64) @ masks.astype(np.float64).T
    sizes = chosen.sum(axis=1)[:, None] + masks.sum(axis=1)[None]
    dice = 2 * common / np.maximum(sizes, 1)
    present = masks.sum(axis=1) > 0
    return np.where(present[None], dice, np.nan)


def _information(activations: Array, masks: Array) -> Array:
    codes = [equal_frequency_bins(channel) for channel in activations]
    return np.array([[information_share(code, mask) for mask in masks] for code in codes], dtype=np.float64)


def _null_information(groups: Sequence[Sequence[ActivationSample]], labels: Mapping[int, str]) -> Array:
    """Information about the labels of another subject, for every cyclic pairing of subjects (at most 20)."""
    tables = []
    for shift in range(1, min(len(groups), 21)):
        for index, group in enumerate(groups):
            other = groups[(index + shift) % len(groups)]
            pairs = [(a, b) for a, b in zip(group, other, strict=False) if a.activations.shape == b.activations.shape]
            if pairs:
                activations = np.concatenate([a.activations.reshape(len(a.activations), -1) for a, _ in pairs], axis=1)
                masks = np.concatenate([lattice_masks(b, labels).reshape(len(labels), -1) for _, b in pairs], axis=1)
                table = _information(activations, masks)
                if not np.isnan(table).all():
                    tables.append(table)
    return np.asarray(tables, dtype=np.float64)


def _partition(groups: Mapping[str, Sequence[ActivationSample]], labels: Mapping[int, str]) -> dict[str, float | None]:
    scores: list[dict[str, float]] = []
    for group in groups.values():
        winners, anatomy = [], []
        for sample in group:
            masks = lattice_masks(sample, labels)
            margin = max(1, _ROI_MARGIN // (sample.labels.shape[0] // sample.activations.shape[1]))
            inside: npt.NDArray[np.bool_] = np.logical_or.reduce(masks, axis=0)
            roi = binary_dilation(inside, iterations=margin)
            winners.append(sample.activations.argmax(axis=0)[roi])
            anatomy.append((masks * np.arange(1, len(masks) + 1)[:, None, None]).sum(axis=0)[roi])
        if sum(map(len, winners)):
            scores.append(partition_agreement(np.concatenate(anatomy), np.concatenate(winners)))
    keys = ("ami", "homogeneity", "completeness")
    return {key: float(np.mean([score[key] for score in scores])) if scores else None for key in keys}


def _nanmean(values: Array, axis: int) -> Array:
    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(axis=axis)
    count = known.sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _nanmax(values: Array) -> Array:
    filled = np.where(np.isnan(values), -np.inf, values).max(axis=-1)
    return np.where(np.isinf(filled), np.nan, filled)


def _number(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def _best(values: Array, names: Sequence[str]) -> str | None:
    return None if np.isnan(values).all() else names[int(np.nanargmax(values))]
