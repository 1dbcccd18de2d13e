# SPDX-License-Identifier: Apache-2.0
"""What loaders share that can begin at any epoch and at any batch."""

from __future__ import annotations

__all__ = ["EpochCounter"]


class EpochCounter:
    """Count epochs: every iteration over the loader is the next one, unless told otherwise.

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
        """Choose the epoch of the next iteration; without it, every iteration is the next epoch."""
        self._epoch = int(epoch)

    def start_at(self, iteration: int) -> None:
        """Skip the first batches of the next iteration; nothing is loaded for them.

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
