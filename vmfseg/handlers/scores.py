# SPDX-License-Identifier: Apache-2.0
"""Feed the scores of volumes from an evaluation engine."""

from __future__ import annotations

from typing import Any

import torch
from ignite.engine import Engine, Events
from monai.utils.enums import CommonKeys as Keys

from vmfseg.metrics import SegmentationScores

__all__ = ["ScoresHandler"]


class ScoresHandler:
    """Score every predicted volume against its truth on the native grid.

    It runs after the post-processing, which must leave a label map in ``pred`` of the output; the truth, spacing and
    names come from the batch.

    Args:
        scores: what collects.
        truth_key: entry of the batch with the true label map on the native grid.
    """

    def __init__(self, scores: SegmentationScores, truth_key: str = "truth") -> None:
        self.scores, self.truth_key = scores, truth_key

    def attach(self, engine: Engine) -> None:
        """Attach to an evaluator."""
        engine.add_event_handler(Events.STARTED, lambda _engine: self.scores.reset())
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Any) -> None:
        """Score the volumes of this iteration."""
        for row, output in zip(engine.state.batch, engine.state.output, strict=True):
            if self.truth_key not in row:
                continue
            truth = row[self.truth_key]
            affine = torch.as_tensor(truth.affine, dtype=torch.float64)
            self.scores.update(
                _array(output[Keys.PRED]),
                _array(truth),
                spacing=affine[:3, :3].norm(dim=0).tolist(),
                subject=str(row["subject"]),
                domain=str(row.get("domain", "all")),
                phase=None if not row.get("phase") else str(row["phase"]),
                annotated=_classes(row.get("annotated")),
                frame=None if row.get("frame") is None else int(row["frame"]),
            )


def _array(labels: torch.Tensor) -> Any:
    return labels[0].detach().cpu().numpy().astype("uint8" if float(labels.max()) < 256 else "int32")


def _classes(annotated: Any) -> list[int] | None:
    if annotated is None or (isinstance(annotated, str) and not annotated):
        return None
    return [int(c) for c in annotated]
