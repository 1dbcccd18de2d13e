# SPDX-License-Identifier: Apache-2.0
"""Active learning: choose the image to label next."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from vmfseg.serving.label_store import LabelStore
from vmfseg.serving.served_models import ServedModel
from vmfseg.serving.studies import Study
from vmfseg.utils import VmfError, did_you_mean

__all__ = ["STRATEGIES", "check_strategy", "next_by_chance", "next_by_quality"]

#: What ``/info/`` says about the strategies.
STRATEGIES = {
    "random": {"description": "any image without a finished label, those not shown for longest first"},
    "quality": {"description": "the image whose segmentation the model itself expects to be worst"},
}
_BUDGET_SECONDS = 20.0


def check_strategy(name: str) -> str:
    """Return the name of a strategy that exists.

    Raises:
        VmfError: VMF186.
    """
    if name not in STRATEGIES:
        fix = did_you_mean(name, STRATEGIES).strip() or f"there are {', '.join(STRATEGIES)}"
        raise VmfError("VMF186", subject=name[:80], rule="there is no such strategy", fix=fix)
    return name


def next_by_chance(labels: LabelStore) -> tuple[str, dict[str, Any]] | None:
    """Choose among the images that were not handed out before, or else longest ago; ``None`` if all are labelled."""
    seen = {image: _shown(labels, image) for image in labels.unlabeled()}
    if not seen:
        return None
    oldest = min(seen.values())
    return secrets.choice([image for image, when in seen.items() if when == oldest]), {}


def next_by_quality(
    labels: LabelStore, model: ServedModel, budget: float = _BUDGET_SECONDS
) -> tuple[str, dict[str, Any]] | None:
    """Choose the image with the lowest predicted Dice; ``None`` if all are labelled.

    Images are scored once and remembered while file and weights stay the same. If there are more new ones than fit
    into the time, the rest is scored by the next requests, and the answer says how many were.

    Args:
        labels: which images are labelled.
        model: that judges itself. Without a quality model, the mean entropy stands in for one minus the Dice.
        budget: seconds; at least one image is scored.
    """
    images = labels.unlabeled()
    scores, end = {}, time.monotonic() + budget
    for image in images:
        study = labels.studies.get(image)
        known = labels.studies.info(image).get("quality", {})
        stamp = _stamp(study, model)
        if isinstance(known, Mapping) and known.get("stamp") == stamp:
            scores[image] = float(known["score"])
        elif time.monotonic() < end or not scores:
            scores[image] = _score(study, model)
            labels.studies.update_info(image, {"quality": {"stamp": stamp, "score": scores[image]}})
    if not scores:
        return None
    chosen = min(scores, key=lambda image: (scores[image], image))
    by = "predicted Dice" if model.predictor.quality is not None else "one minus the mean entropy"
    facts = {"score": round(scores[chosen], 4), "by": by, "scored": len(scores), "unlabeled": len(images)}
    return chosen, facts


def _score(study: Study, model: ServedModel) -> float:
    """Return how good the labels of an image are, as the model sees it; one that cannot be read comes first."""
    try:
        quality = model.answer(study.path, study.id, {}).prediction.quality
    except VmfError:
        return -1.0
    if quality["predicted_dice"] is not None:
        return float(quality["predicted_dice"])
    entropies = [frame["signals"].get("entropy", 1.0) for frame in quality["frames"]]
    return 1.0 - float(max(entropies))


def _stamp(study: Study, model: ServedModel) -> list[Any]:
    status, weights = study.path.stat(), model.predictor.model.weights.stat()
    return [status.st_mtime_ns, status.st_size, model.name, weights.st_mtime_ns, model.run]


def _shown(labels: LabelStore, image: str) -> int:
    shown = labels.studies.info(image).get("strategy", {})
    times: Sequence[Any] = [note.get("ts", 0) for note in shown.values()] if isinstance(shown, dict) else []
    return max((int(when) for when in times), default=0)
