# SPDX-License-Identifier: Apache-2.0
"""For one process: the batches that several processes see together."""

from __future__ import annotations

import torch

from vmfseg.data import InterleavedLoader, SliceLoader


class GlobalBatches:
    """The batches of all ranks of a :class:`InterleavedLoader`, joined."""

    def __init__(self, dataset, batch_size, seed, augment, steps_per_epoch, world_size):
        loaders = [
            SliceLoader(dataset, batch_size, seed=seed, augment=augment, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        self.streams = [InterleavedLoader(loader, steps_per_epoch=steps_per_epoch) for loader in loaders]

    def __len__(self):
        return len(self.streams[0])

    def set_epoch(self, epoch):
        for stream in self.streams:
            stream.set_epoch(epoch)

    def __iter__(self):
        for batches in zip(*self.streams, strict=True):
            yield {"image": torch.cat([batch["image"] for batch in batches])}
