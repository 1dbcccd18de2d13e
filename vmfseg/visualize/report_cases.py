# SPDX-License-Identifier: Apache-2.0
"""Sections of a report that need the network: pictures of cases, kernels and their anatomy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vmfseg.data.experiment import Experiment
from vmfseg.metrics.scores import ScoreRow
from vmfseg.model import Predictor
from vmfseg.representation import ActivationSample, describe_channels, match_channels
from vmfseg.utils import numpy_rng

from .activations import (
    TISSUE_GROUPS,
    AnatomyTable,
    ChannelLabel,
    anatomy_table,
    draw_confusion,
    order_channels,
)
from .report_page import Page, picture
from .slice_montage import draw_montage
from .slice_views import SliceView, as_samples, view_volume, worst_slice

__all__ = ["ScoredVolume", "add_pictures", "scored_volumes"]

_FAINT = 0.05  # below this Dice, the best class of a kernel is none
_MOST_VOLUMES = 8  # for the table of kernels and tissues; more change little and take time


@dataclass(frozen=True)
class ScoredVolume:
    """The scores of one volume, all classes together."""

    rows: tuple[ScoreRow, ...]

    @property
    def mean(self) -> float | None:
        """Mean Dice over the classes that count."""
        known = [row.dice for row in self.rows if row.dice is not None]
        return float(np.mean(known)) if known else None

    @property
    def name(self) -> str:
        """Subject with phase or frame, and the domain."""
        first = self.rows[0]
        moment = first.phase or ("" if first.frame is None else f"frame {first.frame}")
        return " ".join(part for part in (first.subject, moment) if part) + f", domain {first.domain}"

    @property
    def remark(self) -> str:
        """Which structures were missed or spurious."""
        words = {"missed": "missed", "spurious": "spurious"}
        found = {word: [r.class_name for r in self.rows if r.status == status] for status, word in words.items()}
        return ", ".join(f"{word} {' '.join(names)}" for word, names in found.items() if names)


def scored_volumes(rows: Sequence[ScoreRow]) -> list[ScoredVolume]:
    """Group rows by volume, worst mean Dice first; volumes without any score come last."""
    groups: dict[Any, list[ScoreRow]] = {}
    for row in rows:
        groups.setdefault(row.volume_key, []).append(row)
    volumes = [ScoredVolume(tuple(groups[key])) for key in sorted(groups)]
    return sorted(volumes, key=lambda volume: (volume.mean is None, volume.mean or 0.0))


def add_pictures(
    page: Page, predictor: Predictor, experiment: Experiment, volumes: Sequence[ScoredVolume], cases: int
) -> None:
    """Segment the worst and the median volumes again and add their pictures, and the kernels, to the page.

    Args:
        page: what to add to.
        predictor: the model.
        experiment: its data.
        volumes: from :func:`scored_volumes`.
        cases: how many worst cases.
    """
    rows = _rows_by_volume(experiment)
    found = [(volume, rows[volume.rows[0].volume_key]) for volume in volumes if volume.rows[0].volume_key in rows]
    if not found:
        page.notes.append("None of the scored volumes is in the data, so there are no pictures of cases.")
        return
    if len(found) < len(volumes):
        page.notes.append(f"{len(volumes) - len(found)} of {len(volumes)} scored volumes are not in the data.")
    chosen = list(range(min(cases, len(found))))
    median = len(found) // 2
    wanted = {*chosen, *([median] if median not in chosen else []), *_spread(len(found), _MOST_VOLUMES)}
    views = {k: view_volume(predictor, found[k][1]) for k in sorted(wanted)}
    target = [view for k in sorted(views) for view in views[k]]
    labels = predictor.labels
    if not predictor.has_kernels:
        page.notes.append("The network has no vMF kernels, so there are no kernel maps and no table of kernels.")
    table, note = _anatomy(target, labels)
    order = None if table is None else order_channels(table)
    page.cases += [_case(found[k][0], views[k], labels, order) for k in chosen]
    if median not in chosen:
        page.typical = _case(found[median][0], views[median], labels, order)
    if table is not None and order is not None:
        page.confusion = picture(draw_confusion(table, order), "Share of each tissue that each kernel explains")
        page.confusion_note = note
        page.kernels, page.kernel_note = _kernels(predictor, experiment, as_samples(target), order)


def _rows_by_volume(experiment: Experiment) -> dict[tuple[str, str, str, int], dict[str, Any]]:
    rows: dict[tuple[str, str, str, int], dict[str, Any]] = {}
    for row in (*experiment.target, *experiment.validation, *experiment.labeled):
        frame = row.get("frame")
        names = str(row.get("domain", "all")), str(row["subject"]), str(row.get("phase") or "")
        rows.setdefault((*names, -1 if frame is None else int(frame)), row)
    return rows


def _spread(count: int, most: int) -> list[int]:
    return sorted({round(k) for k in np.linspace(0, count - 1, min(count, most))})


def _case(
    volume: ScoredVolume, views: Sequence[SliceView], labels: Mapping[int, str], order: Sequence[ChannelLabel] | None
) -> dict[str, Any]:
    view = worst_slice(views)
    figures = ", ".join(
        f"{row.class_name} {row.dice:.3f}" if row.dice is not None else f"{row.class_name} –" for row in volume.rows
    )
    mean = "undefined" if volume.mean is None else f"{volume.mean:.3f}"
    place = f"slice {view.index + 1} of {len(views)}"
    facts = [f"mean Dice {mean} ({figures})", f"{place}, {view.wrong} wrong pixels of {view.pred.size}"]
    if volume.remark:
        facts.append(volume.remark)
    alt = f"{volume.name}: image, truth, prediction and the other outputs of the network"
    return {"title": volume.name, "facts": facts, "picture": picture(draw_montage(view, labels, order), alt)}


def _anatomy(views: Sequence[SliceView], labels: Mapping[int, str]) -> tuple[AnatomyTable | None, str]:
    tissues = as_samples(views, tissues=True)
    how = (
        "Which kernels explain which {what}: rows sum to 100 %, shares below 0.5 % are left blank, kernels stand in "
        "the order of the maps above."
    )
    if tissues:
        note = (
            how.format(what="tissue") + " The phantom knows the tissue of every voxel, also those that no one labels."
        )
        return anatomy_table(tissues, TISSUE_GROUPS), note
    samples = [sample for sample in as_samples(views) if sample.labels.any()]
    if not samples:
        return None, ""
    groups = {name: [label] for label, name in labels.items() if label}
    return anatomy_table(samples, groups), how.format(what="labelled structure")


def _kernels(
    predictor: Predictor,
    experiment: Experiment,
    samples: Sequence[ActivationSample],
    order: Sequence[ChannelLabel],
) -> tuple[list[dict[str, Any]], str]:
    """Match channels to classes on labelled source subjects and judge them on the volumes of the report."""
    source = experiment.labeled
    picks = numpy_rng("calibration", 0).permutation(len(source))[:_MOST_VOLUMES]
    seen = [view for k in sorted(picks) for view in view_volume(predictor, source[k], tissues=False)]
    calibration = as_samples(seen)
    if not calibration or not samples:
        return [], ""
    names, judged = _judged(samples, {label: name for label, name in predictor.labels.items() if label})
    if not any(np.isin(sample.labels, list(names)).any() for sample in calibration):
        return [], ""
    figures = describe_channels(judged, match_channels(calibration, names))
    rows = []
    for entry in order:
        channel = figures["channels"][entry.channel]
        rows.append(
            {
                "channel": entry.channel,
                "tissue": entry.name,
                "soft_dice": entry.dice,
                "best": channel["best_class_by_dice"] if (channel["dice"] or 0.0) >= _FAINT else None,
                "dice": channel["dice"],
                "information": channel["information"],
                "meaningful": {True: "yes", False: "no", None: "–"}[channel["meaningful"]],
                "purity": channel["purity"],
                "coherence": channel["resultant_length"],
                "compactness": channel["largest_piece"],
                "usage": 100 * channel["usage"],
            }
        )
    matched = figures["matched_dice"]
    text = (
        f"Thresholds and channels were chosen on labelled source subjects ({len({s.subject for s in calibration})}) "
        f"and are judged on the subjects of this report ({figures['n_subjects']}): matched Dice "
        f"{'undefined' if matched is None else format(matched, '.3f')}. Information is the share of a class's entropy "
        "that the map tells; a kernel is meaningful where it exceeds the 95th percentile with the labels of another "
        "subject. Purity is corrected for prevalence; coherence is the mean resultant length of the features."
    )
    left = [name for label, name in predictor.labels.items() if label and label not in names]
    if left:
        text += f" Not judged, because nobody drew it beside the others: {', '.join(left)}."
    return rows, text


def _judged(
    samples: Sequence[ActivationSample], labels: Mapping[int, str]
) -> tuple[dict[int, str], list[ActivationSample]]:
    """Return the classes that are drawn together in most slices, and the slices that have them all.

    Where labels are partial, a kernel can be judged only where everything that it is compared with was drawn.
    """
    drawn = [frozenset(labels if sample.annotated is None else sample.annotated) for sample in samples]
    together = max(set(drawn), key=lambda group: (len(group) * sum(group <= other for other in drawn), sorted(group)))
    names = {label: name for label, name in labels.items() if label in together}
    return names, [sample for sample, group in zip(samples, drawn, strict=True) if together <= group]
