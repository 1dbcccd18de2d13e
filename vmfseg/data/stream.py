# SPDX-License-Identifier: Apache-2.0
"""Epochs of any length over one loader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from vmfseg.data.epochs import EpochCounter
from vmfseg.data.loader import SliceLoader

__all__ = ["SliceStream"]


class SliceStream(EpochCounter):
    """Cut the endless stream of a loader into epochs of ``steps_per_epoch`` batches.

    With :math:`s` steps an epoch, step :math:`i` of epoch :math:`e` is batch :math:`es + i` of the loader, counted over
    all of its passes: everything is seen before anything is repeated, and what an epoch holds depends on its number
    alone. It is :class:`~vmfseg.data.InterleavedLoader` for the one setting that has no labels at all.

    Args:
        loader: the slices.
        steps_per_epoch: batches in an epoch.

    Raises:
        ValueError: if ``steps_per_epoch`` is below 1.

    Example:
        >>> import torch
        >>> from monai.transforms import Lambda
        >>> from vmfseg.data import SliceDataset
        >>> fake = Lambda(lambda row: {**row, "image": torch.zeros(1, 8, 8, 3)})
        >>> loader = SliceLoader(SliceDataset([{"image": "a", "subject": "a"}], fake), batch_size=1, shuffle=False)
        >>> stream = SliceStream(loader, steps_per_epoch=2)
        >>> [[int(batch["slice"][0]) for batch in stream] for _ in range(3)]
        [[0, 1], [2, 0], [1, 2]]
    """

    def __init__(self, loader: SliceLoader, steps_per_epoch: int) -> None:
        if steps_per_epoch < 1:
            raise ValueError(f"steps_per_epoch must be at least 1, got {steps_per_epoch}.")
        self.loader, self.steps = loader, steps_per_epoch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        epoch, start = self._begin()
        with closing(self.loader.stream(epoch * self.steps + start, self.steps - start)) as batches:
            yield from batches
