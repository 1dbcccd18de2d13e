# SPDX-License-Identifier: Apache-2.0
"""Calibration stage: predicted Dice, source statistics for the shift test, slices for int8 exports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes

from vmfseg.data import LoadVolumed
from vmfseg.engines.stages.runner import say
from vmfseg.metrics.tables import counted
from vmfseg.model.calibration import fit_quality, fit_temperature, quality_cases
from vmfseg.model.predictor import Predictor
from vmfseg.model.quality import QUALITY_FORMAT, typical_ranges
from vmfseg.model.shift import SHIFT_FORMAT, ShiftReference
from vmfseg.model.survey import group_subjects, survey
from vmfseg.utils import atomic_write
from vmfseg.utils.io import StrPath, copy_file

__all__ = ["CalibrationStage", "trained_predictor", "validation_slices"]

_TEMPERATURE_VOLUMES = 4
_FILES = ("quality.json", "shift.json", "calibration.safetensors")


class CalibrationStage:
    """Fit the predicted Dice and the statistics of the source on source validation, and store them beside the weights.

    Outputs, also copied to ``ckpt_dir``: ``quality.json`` (the model of the predicted Dice), ``shift.json`` (what
    source scans look like to the network) and ``calibration.safetensors`` (some validation slices, for int8 exports).
    The first two carry a checksum of the weights, so that they are never used with others. What cannot be had, for want
    of labels or with ``slices`` 0, is not written, and one of an earlier model is removed.

    The slices are parts of patients' images where the data is real: set ``slices`` to 0 for a bundle that is shared.

    Args:
        model: the training stage, or the folder of a trained model.
        validation: labelled source volumes that chose the model.
        images: further source volumes for the statistics of the domain.
        ckpt_dir: where the model is; empty for none.
        slices: how many slices to store.
        max_volumes: how many volumes at most to calibrate on and to take statistics of, spread over the domains.
        batch_size: slices at once.
        device: where the network runs.
        rank: of this process; only the first one works.
        fingerprint: what decides the result beside the settings of the config.
    """

    name = "calibration"

    def __init__(
        self,
        model: Any,
        validation: Sequence[Mapping[str, Any]],
        images: Sequence[Mapping[str, Any]] = (),
        ckpt_dir: StrPath = "",
        slices: int = 32,
        max_volumes: int = 60,
        batch_size: int = 16,
        device: str | torch.device | None = None,
        rank: int = 0,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        if slices < 0:
            raise ValueError(f"slices must not be negative, got {slices}. 0 stores none.")
        if max_volumes < 1:
            raise ValueError(f"max_volumes must be at least 1, got {max_volumes}.")
        self.model, self.validation, self.images = model, list(validation), list(images)
        self.ckpt_dir, self.slices, self.rank = ckpt_dir, slices, rank
        self.max_volumes, self.batch_size, self.device = max_volumes, batch_size, device
        formats = [QUALITY_FORMAT, SHIFT_FORMAT]  # a run of an older version is calibrated again
        self.fingerprint = {"formats": formats, **(fingerprint or {})}

    def run(self, folder: Path, resume: bool) -> Sequence[str]:
        """Calibrate and write."""
        if self.rank:
            return []
        folder.mkdir(parents=True, exist_ok=True)
        predictor = trained_predictor(self.model, self.device, self.batch_size)
        weights = predictor.digest
        chosen = _spread([*self.validation, *self.images], self.max_volumes)
        volumes = survey(predictor, [dict(row) for row in chosen])
        subjects = [subject for group in group_subjects(volumes).values() for subject in group]
        ShiftReference.from_subjects(subjects).save(folder / "shift.json", weights=weights)
        typical = typical_ranges([statistics for found in volumes.values() for statistics in found])
        self._quality(predictor, typical, folder / "quality.json", weights)
        stored = validation_slices(predictor, self.validation, self.slices)
        if len(stored):
            atomic_write(folder / "calibration.safetensors", safetensors_bytes({"slices": stored}))
            say(f"{len(stored)} slices of validation images are stored for int8 exports (calibration_slices 0: none)")
        self._publish(folder)
        return [name for name in _FILES if (folder / name).is_file()]

    def load(self, folder: Path) -> None:
        """Take up the files of an earlier run."""
        self._publish(folder)

    def _quality(self, predictor: Predictor, typical: Mapping[str, Any], path: Path, weights: str) -> None:
        cases = quality_cases(predictor, _spread(self.validation, self.max_volumes))
        if len(cases) < 2:
            say("quality: no labelled source volume to learn it on, so predictions get no predicted Dice")
            return
        temperature, losses = fit_temperature(predictor, _spread(self.validation, _TEMPERATURE_VOLUMES))
        model = replace(fit_quality(cases, typical=typical), temperature=temperature)
        clean = [case.dice for case in cases if case.level == 0]
        model.save(path, source_validation_dice=round(float(np.mean(clean)), 4), weights=weights)
        if losses:
            change = f"negative log-likelihood {losses[0]:.4f} -> {losses[1]:.4f}"
            say(f"probabilities: temperature {temperature:.2f} ({change})")
        say(
            f"typical error of predicted Dice: {model.error:.2f} on source validation and its corruptions "
            f"({counted(model.volumes, 'volume')} of {counted(model.subjects, 'subject')})"
        )

    def _publish(self, folder: Path) -> None:
        if not self.ckpt_dir or self.rank:
            return
        for name in _FILES:
            place = Path(self.ckpt_dir) / name
            if (folder / name).is_file():
                copy_file(folder / name, place)
            else:
                place.unlink(missing_ok=True)


def trained_predictor(model: Any, device: str | torch.device | None = None, batch_size: int = 16) -> Predictor:
    """Return the predictor of a training stage that is done, or of the folder of a trained model."""
    place = getattr(model, "folder", model)
    if place is None:
        raise ValueError("model must be a training stage that is done or a folder, got a stage that has not run.")
    return Predictor.from_bundle(place, device, batch_size=batch_size, trust=True)


def validation_slices(predictor: Predictor, rows: Sequence[Mapping[str, Any]], count: int) -> torch.Tensor:
    """Return slices as the network sees them, ``BCHW`` in 8 bits, spread over the volumes.

    Args:
        predictor: whose preprocessing is meant.
        rows: the volumes.
        count: how many at most.
    """
    load = LoadVolumed("image")
    kept: list[torch.Tensor] = []
    chosen_rows = _spread(rows, count)
    each = -(-count // max(1, len(chosen_rows)))
    for row in chosen_rows:
        image = load({"image": row["image"], **({"frame": row["frame"]} if row.get("frame") is not None else {})})
        volume = predictor.grid.place(image["image"]).slices
        chosen = torch.linspace(0, len(volume) - 1, min(each, len(volume))).round().long()
        kept += list((255 * volume[chosen]).clamp(0, 255).round().to(torch.uint8))
    shape = predictor.model.channels, *predictor.model.image_size
    return torch.stack(kept)[:count].contiguous() if kept else torch.zeros(0, *shape, dtype=torch.uint8)


def _spread(rows: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Return at most ``count`` rows, the domains in turn."""
    unique = list({(str(row["image"]), row.get("frame")): row for row in rows}.values())
    queues: dict[str, list[Mapping[str, Any]]] = {}
    for row in unique:
        queues.setdefault(str(row.get("domain", "")), []).append(row)
    turns = [row for k in range(len(unique)) for queue in queues.values() for row in queue[k : k + 1]]
    return turns[:count]
