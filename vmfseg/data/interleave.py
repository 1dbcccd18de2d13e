# SPDX-License-Identifier: Apache-2.0
"""Loaders that combine loaders: labeled and unlabeled batches in turn, or several loaders by stated shares."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from fractions import Fraction
from itertools import chain, islice
from math import isfinite
from typing import Any

import torch

from vmfseg.data.sampling import EpochCounter, StreamLoader

__all__ = ["InterleavedLoader", "MixedLoader"]

Batch = dict[str, Any]


class InterleavedLoader(EpochCounter):
    r"""Yield a labeled batch, then ``ratio`` unlabeled ones, and so on.

    Takes any two iterables of batches: a :class:`~vmfseg.data.SliceLoader`, a ``DataLoader`` of torch or MONAI, a list.
    An unlabeled batch has no key ``label``; the loss decides which terms apply.

    *Loaders that can begin at any batch* (with a method ``stream``, such as ``SliceLoader``) go on where they stopped,
    over the ends of epochs: with :math:`s` steps an epoch, step :math:`i` of epoch :math:`e` takes labeled batch
    :math:`es + i` and unlabeled batches from :math:`(es + i)\,\text{ratio}` on, and a stream that is used up starts
    its next, newly shuffled pass. So the shorter one never ends the epoch, everything is seen before anything is
    repeated, the order is a pure function of the loaders' seeds and the epoch, and skipped batches are not loaded.

    *Other iterables* start anew with every epoch, and again when they are used up; where they, their sampler, batch
    sampler or dataset have ``set_epoch``, it is called with the number of the pass. :meth:`start_at` reads and drops.

    With ``joint=True`` a step yields one batch with both: ``image`` ``(B_l + B_u, C, H, W)``, the labeled samples
    first; ``label`` ``(B_l, 1, H, W)``; ``labeled`` ``(B_l + B_u,)`` bool. ``presence`` covers the labeled samples,
    or all if the unlabeled loader shows presence labels. All other keys cover all samples.

    Args:
        labeled: defines the epoch: one pass over it, unless ``steps_per_epoch`` is given.
        unlabeled: the other stream. ``None``: only batches of ``labeled`` come, which then may be without labels: an
            endless stream that is cut into epochs. Masks of ``unlabeled`` are not shown.
        ratio: unlabeled batches for each labeled one.
        steps_per_epoch: labeled batches in an epoch; ``None`` takes ``len(labeled)``.
        joint: yield both in one batch.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> few = [{"image": torch.zeros(2, 1, 8, 8), "label": torch.zeros(2, 1, 8, 8)}]
        >>> many = [{"image": torch.zeros(2, 1, 8, 8)} for _ in range(6)]
        >>> stream = InterleavedLoader(few, many, ratio=2, steps_per_epoch=2)
        >>> ["label" in batch for batch in stream]
        [True, False, False, True, False, False]
    """

    def __init__(
        self,
        labeled: Iterable[Batch],
        unlabeled: Iterable[Batch] | None = None,
        ratio: int = 1,
        steps_per_epoch: int | None = None,
        joint: bool = False,
    ) -> None:
        for name, loader in (("labeled", labeled), ("unlabeled", unlabeled)):
            if loader is not None and (not isinstance(loader, Iterable) or isinstance(loader, Iterator)):
                raise ValueError(
                    f"{name} must be a loader that can be iterated again and again, got {type(loader).__name__}. "
                    "Give a DataLoader or a list of batches."
                )
        if unlabeled is not None and getattr(labeled, "supervision", "") == "none":
            raise ValueError("labeled must show labels, got a loader without. Check its rows and its supervision.")
        if ratio < 1:
            raise ValueError(f"ratio must be at least 1, got {ratio}. Use unlabeled=None for labeled batches only.")
        if steps_per_epoch is None and not hasattr(labeled, "__len__"):
            raise ValueError("steps_per_epoch must be given for a loader without length, got None.")
        self.steps = len(labeled) if steps_per_epoch is None else steps_per_epoch  # type: ignore[arg-type]
        if self.steps < 1:
            raise ValueError(f"steps_per_epoch must be at least 1, got {self.steps}.")
        sizes = [getattr(getattr(x, "dataset", None), "image_sizes", None) for x in (labeled, unlabeled)]
        if joint and sizes[0] and sizes[1] and sizes[0] != sizes[1]:
            raise ValueError(
                f"joint batches must have one image size, got {sorted(sizes[0])} and {sorted(sizes[1])}. "
                "Use the same transforms for both."
            )
        self.labeled, self.unlabeled, self.joint = labeled, unlabeled, joint
        self.ratio = ratio if unlabeled is not None else 0

    def __len__(self) -> int:
        return self.steps if self.joint else self.steps * (1 + self.ratio)

    @property
    def kinds(self) -> dict[str, int]:
        """Steps of an epoch by what they hold, where labelled and unlabelled batches come in turn."""
        apart = self.ratio and not self.joint
        return {"labelled": self.steps, "unlabelled": self.steps * self.ratio} if apart else {}

    def __iter__(self) -> Iterator[Batch]:
        epoch, start = self._begin()
        period = 1 if self.joint else 1 + self.ratio
        with_label = -(-start // period)  # labeled batches before the start
        without = start * self.ratio if self.joint else start - with_label
        other = self.labeled if self.unlabeled is None else self.unlabeled  # with ratio 0 nothing is taken from it
        with (
            closing(_epoch_of(self.labeled, epoch, self.steps, with_label)) as labeled,
            closing(_epoch_of(other, epoch, self.steps * self.ratio, without)) as unlabeled,
        ):
            for position in range(start, len(self)):
                if self.joint:
                    yield self._join(next(labeled), [self._hide(next(unlabeled)) for _ in range(self.ratio)])
                elif position % period == 0:
                    yield next(labeled)
                else:
                    yield self._hide(next(unlabeled))

    def _hide(self, batch: Batch) -> Batch:
        """Take away the mask of an unlabeled batch, and the presence label unless it is asked for."""
        hidden = {"label"} if getattr(self.unlabeled, "supervision", "") == "presence" else {"label", "presence"}
        return {key: value for key, value in batch.items() if key not in hidden}

    def _join(self, labeled: Batch, unlabeled: Sequence[Batch]) -> Batch:
        parts = [labeled, *unlabeled]
        joined: Batch = {}
        for key, value in labeled.items():
            columns = [part[key] for part in parts if key in part]
            joined[key] = torch.cat(columns) if isinstance(value, torch.Tensor) else list(chain(*columns))
        joined["labeled"] = torch.arange(len(joined["image"])) < len(labeled["image"])
        return joined


def _epoch_of(loader: Any, epoch: int, count: int, skip: int) -> Generator[Batch, None, None]:
    """Yield the batches of one epoch of ``count`` batches, from batch ``skip`` on."""
    if hasattr(loader, "stream"):
        yield from loader.stream(epoch * count + skip, count - skip)
    else:
        yield from islice(_passes(loader, epoch, count), skip, count)


def _passes(loader: Any, epoch: int, count: int) -> Iterator[Batch]:
    """Iterate over a plain loader again and again; each pass of each epoch has a number of its own."""
    passes = -(-count // max(1, len(loader))) if hasattr(loader, "__len__") else 1
    for number in range(epoch * passes, epoch * passes + count):
        for part in (loader, *(getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset"))):
            if hasattr(part, "set_epoch"):
                part.set_epoch(number)
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise ValueError("loaders must give batches in every epoch, got none. A generator can be used only once.")


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
