# SPDX-License-Identifier: Apache-2.0
"""Loader that draws its batches from several loaders by stated shares."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing
from fractions import Fraction
from math import isfinite
from typing import Any

from vmfseg.data.sampling import StreamLoader

__all__ = ["MixedLoader"]


class MixedLoader(StreamLoader):
    r"""Draw labelled batches from several loaders, each by its share, spread evenly.

    Loaders are asked in turn whether the next batch is theirs. With the batches that the loaders before left, numbered
    :math:`m = 0, 1, \dots`, and the share :math:`s` of this loader among itself and those after it, batch :math:`m` is
    its own if :math:`\lfloor (m + 1) s \rfloor > \lfloor m s \rfloor`; it is then its batch number
    :math:`\lfloor m s \rfloor`, and the loaders after it get number :math:`m - \lfloor m s \rfloor` otherwise. So which
    loader gives batch :math:`n`, and which of its batches that is, are pure functions of :math:`n`: a resumed run sees
    what an uninterrupted one sees. Any stretch of batches holds each loader's share up to one batch for two loaders.

    Args:
        loaders: with a method ``stream(start, count)``, by name, such as :class:`~vmfseg.data.PhantomLoader` and
            :class:`~vmfseg.data.SliceLoader`; ``None`` for one that there is not.
        shares: weights by name; they need not sum to one. A loader without a share has 1.
        length: nominal number of batches in an epoch.

    Raises:
        ValueError: if no loader has a positive share, a share is negative or not finite, or a name is not known.

    Example:
        >>> class Letters:
        ...     def __init__(self, letter): self.letter = letter
        ...     def stream(self, start, count): yield from (f"{self.letter}{n}" for n in range(start, start + count))
        >>> mixed = MixedLoader({"phantom": Letters("p"), "labeled": Letters("r")}, {"phantom": 3, "labeled": 1})
        >>> list(mixed.stream(0, 8)), list(mixed.stream(5, 3))
        (['p0', 'p1', 'p2', 'r0', 'p3', 'p4', 'p5', 'r1'], ['p4', 'p5', 'r1'])
    """

    supervision = "mask"

    def __init__(
        self, loaders: Mapping[str, Any], shares: Mapping[str, float] | None = None, length: int = 100
    ) -> None:
        given = {name: float(share) for name, share in (shares or {}).items()}
        unknown = [name for name in given if name not in loaders]
        if unknown or any(share < 0 or not isfinite(share) for share in given.values()):
            raise ValueError(
                f"shares must be numbers of at least 0 for {', '.join(loaders)}, got {dict(shares or {})}. "
                "Give each loader its weight, 0 to leave it out."
            )
        used = [(given.get(name, 1.0), name) for name, loader in loaders.items() if loader is not None]
        # the rarest first: its batches are then spread evenly over all
        self.shares = {name: share for share, name in sorted(used, key=lambda pair: pair[0]) if share > 0}
        if not self.shares or length < 1:
            raise ValueError(
                f"some loader must have a positive share and length must be at least 1, got {given} and {length}."
            )
        self.loaders, self._length = {name: loaders[name] for name in self.shares}, length
        rest = [Fraction(share).limit_denominator(10_000) for share in self.shares.values()]
        self._parts = [part / sum(rest[index:]) for index, part in enumerate(rest)]

    def stream(self, start: int, count: int) -> Generator[dict[str, Any], None, None]:
        """Yield ``count`` batches from batch number ``start`` on."""
        first, last = self._before(start), self._before(start + count)
        with ExitStack() as open_streams:
            streams = [
                open_streams.enter_context(closing(loader.stream(begin, end - begin)))
                for loader, begin, end in zip(self.loaders.values(), first, last, strict=True)
            ]
            for number in range(start, start + count):
                yield next(streams[self._owner(number)])

    def _before(self, number: int) -> list[int]:
        """Return how many of the batches before ``number`` each loader gives."""
        counts = []
        for part in self._parts:
            counts.append(int(number * part))
            number -= counts[-1]
        return counts

    def _owner(self, number: int) -> int:
        counts = zip(self._before(number), self._before(number + 1), strict=True)
        return next(index for index, (before, after) in enumerate(counts) if after > before)
