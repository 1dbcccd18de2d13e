# SPDX-License-Identifier: Apache-2.0
r"""Calibrate probabilities by one number: the temperature that divides all logits.

With the probability :math:`p_T(c \mid x)` that the predictor writes for class :math:`c` at voxel :math:`x` when logits
are divided by :math:`T`, the temperature is the one that makes the truth of labelled source volumes most likely,

.. math:: T = \operatorname*{arg\,min}_T -\frac{1}{|X|} \sum_{x \in X} \log p_T(c_x \mid x) ,

over the voxels of the model's window in slices where every class was drawn (Guo et al., ICML 2017, with the maps as
they are written: after the activation, on the grid of the scan). The labels do not change.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from vmfseg.data import LoadVolumed
from vmfseg.model.grid import PlacedVolume, normalized
from vmfseg.model.predictor import Predictor
from vmfseg.transforms import ToSliceStackd
from vmfseg.transforms.annotation import annotated_slices

__all__ = ["fit_temperature"]

#: Temperatures that are tried, 1 among them.
_CANDIDATES = tuple(float(value) for value in 2.0 ** (np.arange(-3, 7) / 3))
_FLOOR = 1e-6


def fit_temperature(predictor: Predictor, rows: Sequence[Mapping[str, Any]]) -> tuple[float, tuple[float, ...]]:
    """Return the temperature, and the mean negative log-likelihood without and with it; 1 where nothing is labelled.

    Args:
        predictor: the model.
        rows: labelled volumes that it was not trained on.
    """
    load, stack = LoadVolumed(num_classes=len(predictor.labels)), ToSliceStackd(("image", "label"))
    sums, count = np.zeros(len(_CANDIDATES)), 0
    for row in (row for row in rows if row.get("label")):
        volume: dict[Hashable, Any] = dict(row.items())
        data = stack(load(volume))
        truth = data["label"].as_tensor()[0].long()
        table = annotated_slices(data["label"], len(predictor.labels), row.get("annotated"), row.get("slices"))
        first = predictor.grid.place(data["image"], predictor.locate(data["image"]).shift)
        logits = [predictor.backend(batch).logits for batch in first.slices.split(predictor.batch_size)]
        used = torch.zeros_like(truth, dtype=torch.bool)
        for number, temperature in enumerate(_CANDIDATES):
            placed = PlacedVolume(first.grid, first.native, first.space, first.plane)
            for part in logits:
                placed.add(part, keep=True, temperature=temperature)
            scores = placed.result(keep=True)[1]
            if scores is None:
                continue
            used = (scores.sum(dim=0) > 0) & table.all(dim=0)
            chances = normalized(scores).gather(0, truth[None])[0][used]
            sums[number] -= float(chances.clamp_min(_FLOOR).log().sum(dtype=torch.float64))
        count += int(used.sum())
    if not count:
        return 1.0, ()
    best = int(np.argmin(sums))
    return _CANDIDATES[best], (float(sums[_CANDIDATES.index(1.0)] / count), float(sums[best] / count))
