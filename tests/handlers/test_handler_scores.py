# SPDX-License-Identifier: Apache-2.0
"""ScoresHandler: every volume with a truth is scored once, in millimeters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ignite.engine import Engine
from monai.data import MetaTensor

from vmfseg.handlers import ScoresHandler
from vmfseg.metrics import SegmentationScores


def _rolled(_engine, row):
    """Predict the true labels, moved by one voxel along the first axis."""
    return {"pred": torch.roll(row["image"], 1, dims=1)}


@pytest.mark.parametrize("runs", [1, 2], ids=["once", "twice does not add up"])
def test_volumes_are_scored_with_their_own_spacing(runs):
    label = torch.zeros(1, 6, 6, 3)
    label[:, 1:4, 1:4] = 1
    rows = []
    for subject, spacing in (("a", 2.0), ("b", 3.0), ("c", 5.0)):
        row = {"image": label.clone(), "subject": subject, "domain": "D", "phase": "ED", "frame": 0}
        truth = MetaTensor(label, affine=np.diag([spacing, spacing, 8.0, 1.0]))
        rows.append(row if subject == "c" else {**row, "label": truth})
    scores = SegmentationScores({0: "background", 1: "LV"})
    engine = Engine(_rolled)
    ScoresHandler(scores).attach(engine)
    for _ in range(runs):
        engine.run(rows)
    assert [row.subject for row in scores.rows] == ["a", "b"]  # c has no truth
    for row, spacing in zip(scores.rows, (2.0, 3.0), strict=True):
        assert row.dice == pytest.approx(2 * (2 * 3 * 3) / (2 * 27))
        assert row.hd_mm == pytest.approx(spacing)
        assert (row.domain, row.phase, row.frame) == ("D", "ED", 0)
