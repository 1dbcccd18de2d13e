# SPDX-License-Identifier: Apache-2.0
"""ScoresHandler: every volume with a truth is scored once, in millimeters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.engines import SupervisedEvaluator

from vmfseg.handlers import ScoresHandler
from vmfseg.metrics import SegmentationScores


class Rolled(torch.nn.Module):
    """Predicts its input, moved by one voxel along the first axis."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.roll(x, 1, dims=2)


@pytest.mark.parametrize("runs", [1, 2], ids=["once", "twice does not add up"])
def test_volumes_are_scored_with_their_own_spacing(runs):
    label = torch.zeros(1, 1, 6, 6, 3)
    label[..., 1:4, 1:4, :] = 1
    batches = []
    for subject, spacing in (("a", 2.0), ("b", 3.0), ("c", 5.0)):
        truth = MetaTensor(label, meta={"affine": np.diag([spacing, spacing, 8.0, 1.0])[None]})
        truth.is_batch = True
        batch = {"image": label.clone(), "subject": [subject], "domain": ["D"], "phase": ["ED"], "frame": [0]}
        batches.append(batch if subject == "c" else {**batch, "truth": truth})
    scores = SegmentationScores({0: "background", 1: "LV"})
    evaluator = SupervisedEvaluator(
        "cpu", batches, Rolled(), val_handlers=[ScoresHandler(scores)],
        prepare_batch=lambda batch, *_args, **_kwargs: (batch["image"], None),
    )  # fmt: skip
    for _ in range(runs):
        evaluator.run()
    rows = scores.rows
    assert [row.subject for row in rows] == ["a", "b"]  # c has no truth
    for row, spacing in zip(rows, (2.0, 3.0), strict=True):
        assert row.dice == pytest.approx(2 * (2 * 3 * 3) / (2 * 27))
        assert row.hd_mm == pytest.approx(spacing)
