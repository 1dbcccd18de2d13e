# SPDX-License-Identifier: Apache-2.0
"""Sampling of slices: the order in an epoch is a pure function of seed and epoch, shared out by subject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.data.slices import SliceDataset
from vmfseg.utils import check_choice, numpy_rng

__all__ = ["BALANCES", "EpochCounter", "SliceOrder", "StreamLoader", "shard_subjects"]

BALANCES = ("none", "domain", "foreground")

Indices = npt.NDArray[np.int64]


class EpochCounter:
    """Base of loaders that can begin at any epoch and at any batch: every iteration is the next epoch.

    A loader says its number of batches by ``__len__`` and calls :meth:`_begin` first thing in ``__iter__``.
    """

    _epoch: int = 0
    _start: int = 0

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self._epoch = int(epoch)

    def start_at(self, iteration: int) -> None:
        """Skip the first batches of the next iteration.

        Raises:
            ValueError: if the epoch is shorter.
        """
        if not 0 <= iteration <= len(self):
            raise ValueError(f"iteration must be 0 to {len(self)}, got {iteration}.")
        self._start = int(iteration)

    def _begin(self) -> tuple[int, int]:
        """Return the epoch of this iteration and its first batch, and count on."""
        epoch, start = self._epoch, self._start
        self._epoch, self._start = epoch + 1, 0
        return epoch, start


class StreamLoader(EpochCounter):
    """Base of loaders of ``_length`` batches an epoch that can give any stretch of their batches."""

    _length: int = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        epoch, start = self._begin()
        yield from self.stream(epoch * len(self) + start, len(self) - start)

    def stream(self, start: int, count: int) -> Generator[dict[str, Any], None, None]:
        """Yield ``count`` batches from batch number ``start`` on, counted over all epochs from 0."""
        raise NotImplementedError


class SliceOrder:
    """Order in which the slices of a dataset are visited.

    ``balanced="none"``: each slice once. ``"domain"``: every domain gets equal turns. ``"foreground"``: every
    foreground class, and the slices without any, get equal turns. Balanced epochs have the length of plain ones;
    small groups repeat, large ones show a random part.

    With several processes (``world_size``), whole subjects are shared out, the same ones in every epoch, so that a
    process only ever needs its own; shuffled epochs have one length on all of them (short shares repeat a few slices),
    unshuffled ones visit every slice exactly once over all processes.

    Args:
        dataset: the slices.
        shuffle: visit in random order.
        seed: of the run.
        balanced: one of :data:`BALANCES`.
        rank: number of this process.
        world_size: number of processes.

    Raises:
        ValueError: if an argument is out of range or there are fewer subjects than processes.
    """

    def __init__(
        self,
        dataset: SliceDataset,
        shuffle: bool,
        seed: int,
        balanced: str = "none",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        check_choice("balanced", balanced, BALANCES)
        if balanced != "none" and not shuffle:
            raise ValueError(f"balanced must be 'none' without shuffle, got {balanced!r}. Set shuffle=True.")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be 0 to world_size - 1, got {rank} of {world_size}.")
        self.shuffle, self.seed = shuffle, seed
        subjects = [(dataset.domain(i), dataset.subject(i)) for i in range(len(dataset))]
        shares = shard_subjects(subjects, world_size)
        self._own = shares[rank]
        self._length = max(len(share) for share in shares) if shuffle else len(self._own)
        self._strata = _strata(dataset, self._own, balanced)

    def __len__(self) -> int:
        return self._length

    def __call__(self, epoch: int) -> Indices:
        """Return the indices of an epoch."""
        if not self.shuffle:
            return self._own
        rng = numpy_rng(self.seed, "order", epoch)
        rounds = -(-len(self) // len(self._strata))
        columns = [_cycled(stratum, rounds, rng) for stratum in self._strata]
        return rng.permuted(np.stack(columns, axis=1), axis=1).reshape(-1)[: len(self)]


def shard_subjects(subjects: Sequence[object], world_size: int) -> list[Indices]:
    """Share out slices by subject, largest subjects first, each to the process that has least so far.

    Args:
        subjects: the subject of each slice.
        world_size: number of processes.

    Raises:
        ValueError: if there are fewer subjects than processes.

    Example:
        >>> [share.tolist() for share in shard_subjects(["a", "a", "b", "c"], 2)]
        [[0, 1], [2, 3]]
    """
    counts = Counter(subjects)
    if len(counts) < world_size:
        raise ValueError(
            f"world_size must be at most the number of subjects, got {world_size} for {len(counts)}. "
            "Subjects are never divided; use fewer processes."
        )
    loads = [0] * world_size
    owner: dict[object, int] = {}
    for subject, count in sorted(counts.items(), key=lambda pair: (-pair[1], str(pair[0]))):
        owner[subject] = loads.index(min(loads))
        loads[owner[subject]] += count
    owners = np.array([owner[subject] for subject in subjects])
    return [np.flatnonzero(owners == rank) for rank in range(world_size)]


def _strata(dataset: SliceDataset, own: Indices, balanced: str) -> list[Indices]:
    if balanced == "domain":
        domains = np.array([dataset.domain(int(i)) for i in own])
        return [own[domains == name] for name in sorted(set(domains.tolist()))]
    if balanced == "foreground":
        present = dataset.presence()[own]
        groups = [own[present[:, c]] for c in range(present.shape[1])] + [own[~present.any(axis=1)]]
        return [group for group in groups if len(group)]
    return [own]


def _cycled(stratum: Indices, count: int, rng: np.random.Generator) -> Indices:
    """Return ``count`` indices: shuffled passes over the stratum, one after the other."""
    passes = -(-count // len(stratum))
    return np.concatenate([rng.permutation(stratum) for _ in range(passes)])[:count]
