# SPDX-License-Identifier: Apache-2.0
"""Active learning: choose the image to label next."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from vmfseg.serving.label_store import LabelStore
from vmfseg.serving.served_models import ServedModel
from vmfseg.serving.worklist import judge, remember, remembered
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
        raise VmfError("VMF186", subject=name[:80], fix=fix)
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
    scores: dict[str, float] = {}
    end = time.monotonic() + budget
    for image in images:
        known = remembered(labels, image, model)
        if known is None and (time.monotonic() < end or not scores):
            known = judge(labels.studies.get(image), model)
            remember(labels, image, model, known)
        if known is not None:
            scores[image] = float(known["score"])
    if not scores:
        return None
    chosen = min(scores, key=lambda image: (scores[image], image))
    by = "predicted Dice" if model.predictor.quality is not None else "one minus the mean entropy"
    facts = {"score": round(scores[chosen], 4), "by": by, "scored": len(scores), "unlabeled": len(images)}
    return chosen, facts


def _shown(labels: LabelStore, image: str) -> int:
    shown = labels.studies.info(image).get("strategy", {})
    times: Sequence[Any] = [note.get("ts", 0) for note in shown.values()] if isinstance(shown, dict) else []
    return max((int(when) for when in times), default=0)
