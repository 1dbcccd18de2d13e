# SPDX-License-Identifier: Apache-2.0
"""Loader of labelled phantom batches, drawn while they are asked for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from vmfseg.data.sampling import StreamLoader
from vmfseg.data.slice_loader import Augment
from vmfseg.phantom import PhantomSlices
from vmfseg.transforms.presence_labels import presence_labels
from vmfseg.utils import derive_seed

__all__ = ["PhantomLoader"]


class PhantomLoader(StreamLoader):
    r"""Batches of :class:`~vmfseg.phantom.PhantomSlices` without end: no slice ever comes twice.

    With :math:`B` slices a batch, :math:`W` processes and batch :math:`n` of process :math:`r`, the batch holds items
    :math:`(nW + r)B, \dots, (nW + r + 1)B - 1`. So a batch is a pure function of the seed and its number: a resumed run
    sees what an uninterrupted one sees, and 0 workers give the same bytes as 8. Batches have the keys of
    :class:`~vmfseg.data.SliceLoader`; every class counts as annotated.

    Args:
        kind: ``"hearts"`` or ``"cords"``.
        num_classes: N, background included.
        batch_size: B.
        seed: of the slices and of the augmentation.
        augment: called as ``augment(batch, seeds)``, for instance :class:`vmfseg.transforms.BatchAugment`.
        num_workers: processes that draw ahead.
        length: nominal number of batches in an epoch.
        rank: number of this process in distributed training.
        world_size: number of processes.
        **slices: further arguments of :class:`~vmfseg.phantom.PhantomSlices`: ``pixdim``, ``size``, ``lost``, ``gin``.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> loader = PhantomLoader("cords", 3, batch_size=2, seed=7, size=32)
        >>> batch = next(loader.stream(5, 1))
        >>> batch["image"].shape, batch["presence"].shape, batch["sample"]
        (torch.Size([2, 1, 32, 32]), torch.Size([2, 2]), ['cords-7-10', 'cords-7-11'])
    """

    supervision = "mask"

    def __init__(
        self,
        kind: str,
        num_classes: int,
        batch_size: int = 4,
        seed: int = 0,
        augment: Augment | None = None,
        num_workers: int = 0,
        length: int = 100,
        rank: int = 0,
        world_size: int = 1,
        **slices: Any,
    ) -> None:
        if min(batch_size, length, world_size) < 1 or not 0 <= rank < world_size or num_workers < 0:
            raise ValueError(
                f"batch_size, length and world_size must be at least 1, num_workers at least 0 and rank below "
                f"world_size, got {batch_size}, {length}, {world_size}, {num_workers} and {rank}."
            )
        self.batch_size, self.num_workers, self._length = batch_size, num_workers, length
        self.rank, self.world_size = rank, world_size
        self.dataset = PhantomSlices(kind, seed=seed, length=length * batch_size, **slices)
        self._batches = _PhantomBatches(self.dataset, num_classes, augment)

    def stream(self, start: int, count: int) -> Generator[dict[str, Any], None, None]:
        """Yield ``count`` batches from batch number ``start`` on."""
        firsts = [(n * self.world_size + self.rank) * self.batch_size for n in range(start, start + count)]
        loader: DataLoader[dict[str, Any]] = DataLoader(
            self._batches,
            batch_size=None,
            sampler=[range(first, first + self.batch_size) for first in firsts],
            num_workers=min(self.num_workers, count),
            collate_fn=dict,
        )
        yield from loader


class _PhantomBatches(Dataset[dict[str, Any]]):
    """A dataset whose items are whole batches, so that workers augment whole batches."""

    def __init__(self, slices: PhantomSlices, num_classes: int, augment: Augment | None) -> None:
        self.slices, self.num_classes, self.augment = slices, num_classes, augment

    def __getitem__(self, numbers: range) -> dict[str, Any]:
        batch: dict[str, Any] = default_collate([self.slices[number] for number in numbers])
        batch["annotated"] = torch.ones(len(numbers), self.num_classes, dtype=torch.bool)
        if self.augment is not None:
            batch = self.augment(batch, [derive_seed(self.slices.seed, "augment", number) for number in numbers])
        batch["presence"] = presence_labels(batch["label"], self.num_classes)
        return batch
