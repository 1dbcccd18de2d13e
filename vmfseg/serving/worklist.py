# SPDX-License-Identifier: Apache-2.0
"""Work list: the images of the store with predicted Dice and flag, those to look at first on top.

An image is segmented once for its place in the list. What came out is remembered in ``.vmfseg/info.json`` while the
file and the weights of the model stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vmfseg.serving.image_index import IndexedImage
from vmfseg.serving.label_store import FINAL, LabelStore
from vmfseg.serving.served_models import ServedModel
from vmfseg.utils import VmfError

__all__ = ["judge", "remember", "remembered", "score_next", "summarize", "work_list"]

_ORDER = {"unreadable": 0, "red": 1, "amber": 2, "unknown": 3, "green": 4}


def summarize(quality: Mapping[str, Any]) -> dict[str, Any]:
    """Return flag, predicted Dice and score of a prediction.

    The score is the predicted Dice. Without a quality model it is one minus the largest mean entropy of a frame.
    """
    dice = quality["predicted_dice"]
    entropy = max(float(frame["signals"].get("entropy", 1.0)) for frame in quality["frames"])
    return {"flag": str(quality["light"]), "dice": dice, "score": float(dice) if dice is not None else 1.0 - entropy}


def judge(study: IndexedImage, model: ServedModel) -> dict[str, Any]:
    """Segment an image and return its summary; one that cannot be read has the flag ``"unreadable"`` and score -1."""
    try:
        return summarize(model.answer(study.path, study.id, {}).prediction.quality)
    except VmfError as error:
        return {"flag": "unreadable", "dice": None, "score": -1.0, "problem": error.code}


def remembered(labels: LabelStore, image: str, model: ServedModel) -> dict[str, Any] | None:
    """Return the summary of an image if file and weights are the same as then."""
    known = labels.studies.info(image).get("quality")
    study = labels.studies.get(image)
    return dict(known) if isinstance(known, Mapping) and known.get("stamp") == _stamp(study, model) else None


def remember(labels: LabelStore, image: str, model: ServedModel, summary: Mapping[str, Any]) -> None:
    """Keep the summary of an image."""
    stamp = _stamp(labels.studies.get(image), model)
    labels.studies.update_info(image, {"quality": {"stamp": stamp, **summary}})


def work_list(labels: LabelStore, model: ServedModel) -> list[dict[str, Any]]:
    """Return all images in the order in which to look at them.

    Images without a finished label come first: those that cannot be read, then red, amber, unknown and green, the
    lowest score first, then those that were not scored. Images with a finished label follow in the same order.

    Args:
        labels: of the store.
        model: whose predictions are judged.
    """
    rows = []
    for image in labels.studies.ids():
        known = remembered(labels, image, model) or {}
        rows.append(
            {
                "image": image,
                "flag": known.get("flag"),
                "predicted_dice": known.get("dice"),
                "score": known.get("score"),
                "problem": known.get("problem"),
                "labeled": FINAL in labels.of_image(image),
            }
        )
    return sorted(rows, key=_place)


def score_next(labels: LabelStore, model: ServedModel) -> str | None:
    """Judge the first image that has no score, unlabelled ones first, and return its id; ``None`` if all have one."""
    missing = [row["image"] for row in work_list(labels, model) if row["flag"] is None]
    if not missing:
        return None
    image = str(missing[0])
    remember(labels, image, model, judge(labels.studies.get(image), model))
    return image


def _place(row: Mapping[str, Any]) -> tuple[bool, int, float, str]:
    return row["labeled"], _ORDER.get(str(row["flag"]), len(_ORDER)), float(row["score"] or 0.0), str(row["image"])


def _stamp(study: IndexedImage, model: ServedModel) -> list[Any]:
    status, weights = study.path.stat(), model.predictor.model.weights.stat()
    return [status.st_mtime_ns, status.st_size, model.name, weights.st_mtime_ns, model.run]
