# SPDX-License-Identifier: Apache-2.0
"""Handler that scores predicted volumes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ignite.engine import Engine, Events
from monai.utils.enums import CommonKeys as Keys

from vmfseg.metrics import SegmentationScores
from vmfseg.transforms.spatial import slice_axis

__all__ = ["ScoresHandler"]


class ScoresHandler:
    """Score every predicted volume against its truth on the native grid.

    For engines whose output has a label map ``pred`` on the image's own grid, one volume an iteration
    (:class:`vmfseg.engines.PredictionEvaluator`); the truth, spacing and names come from the batch.

    Args:
        scores: what collects.
        truth_key: entry of the batch with the true label map on the native grid.
    """

    def __init__(self, scores: SegmentationScores, truth_key: str = "label") -> None:
        self.scores, self.truth_key = scores, truth_key

    def attach(self, engine: Engine) -> None:
        """Attach to an evaluator."""
        engine.add_event_handler(Events.STARTED, lambda _engine: self.scores.reset())
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Any) -> None:
        """Score the volume of this iteration."""
        row = engine.state.batch
        if self.truth_key not in row:
            return
        truth = row[self.truth_key]
        affine = torch.as_tensor(truth.affine, dtype=torch.float64)
        self.scores.update(
            _array(engine.state.output[Keys.PRED]),
            _array(truth),
            spacing=affine[:3, :3].norm(dim=0).tolist(),
            subject=str(row["subject"]),
            domain=str(row.get("domain", "all")),
            phase=None if not row.get("phase") else str(row["phase"]),
            annotated=row.get("annotated"),
            slices=row.get("slices"),
            slice_axis=slice_axis(np.asarray(affine), truth.shape[1:]),
            frame=row.get("frame"),
        )


def _array(labels: torch.Tensor) -> Any:
    return labels[0].detach().cpu().numpy().astype("uint8" if float(labels.max()) < 256 else "int32")
