# SPDX-License-Identifier: Apache-2.0
"""Stage 4: what belongs to a model so that its predictions can be trusted or not."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes

from vmfseg.data import LoadVolumed
from vmfseg.engines.stages.runner import say
from vmfseg.model.calibration import fit_quality, quality_cases
from vmfseg.model.predictor import Predictor
from vmfseg.model.quality import QUALITY_FORMAT, typical_ranges
from vmfseg.model.shift import SHIFT_FORMAT, ShiftReference
from vmfseg.model.spec import BundleSpec
from vmfseg.model.survey import group_subjects, survey
from vmfseg.model.tensors import tensors_digest
from vmfseg.utils import atomic_path, atomic_write
from vmfseg.utils.io import StrPath

__all__ = ["CalibrationStage", "validation_slices"]

_FILES = ("quality.json", "shift.json", "calibration.safetensors")


class CalibrationStage:
    """Stage that leaves, beside the weights, what a prediction's trust is judged by.

    Outputs, also copied to ``ckpt_dir``: ``quality.json`` (the model of the predicted Dice), ``shift.json`` (what
    source scans look like to the network) and ``calibration.safetensors`` (some validation slices, for int8 exports).
    The first two carry a checksum of the weights, so that they are never used with others. What cannot be had, for want
    of labels or with ``slices`` 0, is not written, and one of an earlier model is removed.

    The slices are parts of patients' images where the data is real: set ``slices`` to 0 for a bundle that is shared.

    Args:
        network: trained.
        validation: labelled source volumes that chose the model.
        labels: class names by value.
        pixdim: in-plane spacing in mm.
        image_size: in-plane size.
        images: further source volumes for the statistics of the domain.
        ckpt_dir: where the model is; empty for none.
        slices: how many slices to store.
        max_volumes: how many volumes at most to calibrate on and to take statistics of, spread over the domains.
        batch_size: slices at once.
        rank: of this process; only the first one works.
        fingerprint: what decides the result.
    """

    name = "calibration"

    def __init__(
        self,
        network: torch.nn.Module,
        validation: Sequence[Mapping[str, Any]],
        labels: Mapping[int, str],
        pixdim: float,
        image_size: int,
        images: Sequence[Mapping[str, Any]] = (),
        ckpt_dir: StrPath = "",
        slices: int = 32,
        max_volumes: int = 60,
        batch_size: int = 16,
        rank: int = 0,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        if slices < 0:
            raise ValueError(f"slices must not be negative, got {slices}. 0 stores none.")
        if max_volumes < 1:
            raise ValueError(f"max_volumes must be at least 1, got {max_volumes}.")
        self.network, self.validation, self.images = network, list(validation), list(images)
        self.labels, self.ckpt_dir, self.slices, self.rank = dict(labels), ckpt_dir, slices, rank
        self.space = {"pixdim": pixdim, "roi": image_size}
        self.max_volumes, self.batch_size = max_volumes, batch_size
        formats = [QUALITY_FORMAT, SHIFT_FORMAT]  # a run of an older version is calibrated again
        self.fingerprint = {"slices": slices, "max_volumes": max_volumes, "formats": formats, **(fingerprint or {})}

    def run(self, folder: Path, resume: bool) -> Sequence[str]:
        """Calibrate and write."""
        if self.rank:
            return []
        folder.mkdir(parents=True, exist_ok=True)
        names = {0: "background", **{int(value): name for value, name in self.labels.items()}}
        spec = BundleSpec(folder, "", "", {}, self.space, names, folder / "model.safetensors")
        bare: Any = getattr(self.network, "module", self.network)
        predictor = Predictor.from_network(bare.eval(), spec, batch_size=self.batch_size)
        weights = tensors_digest(bare.state_dict())
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
        model = fit_quality(cases, typical=typical)
        clean = [case.dice for case in cases if case.level == 0]
        model.save(path, source_validation_dice=round(float(np.mean(clean)), 4), weights=weights)
        say(
            f"quality: predicted Dice is right to {model.error:.3f} on source validation and its corruptions "
            f"({model.volumes} volumes of {model.subjects} subjects)"
        )

    def _publish(self, folder: Path) -> None:
        if not self.ckpt_dir or self.rank:
            return
        for name in _FILES:
            place = Path(self.ckpt_dir) / name
            if (folder / name).is_file():
                with atomic_path(place) as temporary:
                    shutil.copyfile(folder / name, temporary)
            else:
                place.unlink(missing_ok=True)


def validation_slices(predictor: Predictor, rows: Sequence[Mapping[str, Any]], count: int) -> torch.Tensor:
    """Return slices as the network sees them, ``B1HW`` in 8 bits, spread over the volumes.

    Args:
        predictor: whose slice space is meant.
        rows: the volumes.
        count: how many at most.
    """
    chain, load = predictor.spec.transforms(), LoadVolumed("image")
    kept: list[torch.Tensor] = []
    chosen_rows = _spread(rows, count)
    each = -(-count // max(1, len(chosen_rows)))
    for row in chosen_rows:
        image = load({"image": row["image"], **({"frame": row["frame"]} if row.get("frame") is not None else {})})
        volume = chain(image)["image"].as_tensor().permute(3, 0, 1, 2)
        chosen = torch.linspace(0, len(volume) - 1, min(each, len(volume))).round().long()
        kept += list((255 * volume[chosen]).round().to(torch.uint8))
    size = predictor.spec.image_size
    return torch.stack(kept)[:count].contiguous() if kept else torch.zeros(0, 1, *size, dtype=torch.uint8)


def _spread(rows: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Return at most ``count`` rows, the domains in turn."""
    unique = list({(row["image"], row.get("frame")): row for row in rows}.values())
    queues: dict[str, list[Mapping[str, Any]]] = {}
    for row in unique:
        queues.setdefault(str(row.get("domain", "")), []).append(row)
    turns = [row for k in range(len(unique)) for queue in queues.values() for row in queue[k : k + 1]]
    return turns[:count]
