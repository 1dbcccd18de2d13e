# SPDX-License-Identifier: Apache-2.0
"""Loader of slice batches: augmented as batches, the same for any number of workers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from vmfseg.data.sampling import SliceOrder, StreamLoader
from vmfseg.data.slices import SliceDataset
from vmfseg.transforms.presence_labels import presence_labels, tile_presence
from vmfseg.utils import VmfError, check_choice, derive_seed
from vmfseg.utils.errors import find_vmf_error

__all__ = ["SUPERVISIONS", "SliceLoader"]

#: What a loader shows of the labels.
SUPERVISIONS = ("mask", "presence", "none")

_DEAD_WORKER = re.compile(r"DataLoader worker \(pid")  # how torch reports a process that is gone

Augment = Callable[[Mapping[str, Any], Sequence[int]], dict[str, Any]]
_Spec = tuple[int, list[int], list[int]]  # epoch, slices, how often each came before in this epoch


class SliceLoader(StreamLoader):
    """Iterate over a :class:`~vmfseg.data.SliceDataset` in batches.

    A batch is a dictionary: ``image`` ``(B, C, H, W)``; ``label`` ``(B, 1, H, W)`` and ``presence`` ``(B, N - 1)``
    bool, computed after augmentation, where rows have labels; ``annotated`` ``(B, N)`` bool; ``frame``, ``slice``
    ``(B,)``; lists ``domain``, ``subject``, ``sample``.

    Order and augmentation are a pure function of (seed, epoch): the random transforms of the dataset and ``augment``
    get ``derive_seed(seed, epoch, s)`` for sample ``s``. So a resumed run sees what an uninterrupted one sees, and 0
    workers the same bytes as 8. Every new iteration is the next epoch, unless :meth:`set_epoch` says which.

    Args:
        dataset: the slices.
        batch_size: B.
        shuffle: random order; also whether the last, incomplete batch is dropped by default.
        seed: of the run.
        augment: called as ``augment(batch, seeds)``, for instance :class:`vmfseg.transforms.BatchAugment`; or several,
            called one after the other with the same seeds, from which each derives its own draws.
        num_workers: processes that make batches; 0 makes them in this process.
        drop_last: drop an incomplete last batch; ``None`` drops it when shuffling, but never the only one.
        balanced: ``"none"``, ``"domain"`` or ``"foreground"``, see :class:`~vmfseg.data.sampling.SliceOrder`.
        supervision: ``"mask"``; ``"presence"`` shows presence labels but no masks (vMFWeak), for rows with ``present``
            instead of a mask what that says; ``"none"`` shows neither.
        tile: with ``supervision="presence"``, side of square tiles in pixels: ``presence`` is then
            ``(B, N - 1, H / tile, W / tile)``, what each tile shows; 0 for the whole slice.
        rank: number of this process in distributed training.
        world_size: number of processes; subjects are shared out among them.
        pin_memory: copy batches to page-locked memory, for a GPU.

    Raises:
        ValueError: if an argument is out of range, slices differ in size, labeled and unlabeled rows are mixed, or
            presence of tiles is asked of rows that say it for whole slices.

    Example:
        >>> import torch
        >>> from monai.transforms import Lambda
        >>> fake = Lambda(lambda row: {**row, "image": torch.rand(1, 8, 8, 5)})
        >>> rows = [{"image": f"{name}.nii.gz", "domain": "A", "subject": name} for name in "ab"]
        >>> loader = SliceLoader(SliceDataset(rows, fake), batch_size=4, seed=7)
        >>> len(loader), next(iter(loader))["image"].shape
        (2, torch.Size([4, 1, 8, 8]))
    """

    def __init__(
        self,
        dataset: SliceDataset,
        batch_size: int = 4,
        shuffle: bool = True,
        seed: int = 0,
        augment: Augment | Sequence[Augment] | None = None,
        num_workers: int = 0,
        drop_last: bool | None = None,
        balanced: str = "none",
        supervision: str = "mask",
        rank: int = 0,
        world_size: int = 1,
        pin_memory: bool = False,
        tile: int = 0,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        if batch_size > 1 and len(dataset.image_sizes) > 1:
            raise ValueError(
                f"slices must have one size to share a batch, got {sorted(dataset.image_sizes)}. "
                "Give slice_space_transforms a roi, or use batch_size=1."
            )
        self.dataset, self.batch_size, self.num_workers, self.pin_memory = dataset, batch_size, num_workers, pin_memory
        self.supervision = _check_supervision(dataset, supervision, tile)
        self._order = SliceOrder(dataset, shuffle, seed, balanced, rank, world_size)
        steps = augment if isinstance(augment, Sequence) else [] if augment is None else [augment]
        self._batches = _Batches(dataset, seed, steps, self.supervision, tile)
        self.drop_last = shuffle and len(self._order) >= batch_size if drop_last is None else drop_last
        self._length = len(self._order) // batch_size if self.drop_last else -(-len(self._order) // batch_size)
        if not self._length:
            raise ValueError(
                f"batch_size must be at most the number of slices with drop_last, got {batch_size} for "
                f"{len(self._order)}. Set drop_last=False."
            )
        self._plan: tuple[int, list[_Spec]] = (-1, [])

    def stream(self, start: int, count: int) -> Generator[dict[str, Any], None, None]:
        """Yield ``count`` batches from batch number ``start`` on, counted over all epochs from 0.

        Raises:
            VmfError: what a worker refuses, with the file's name; VMF513 if a worker dies.
        """
        numbers = range(start, start + count)
        loader: DataLoader[dict[str, Any]] = DataLoader(
            self._batches,
            batch_size=None,
            sampler=[self.spec(number) for number in numbers],
            num_workers=min(self.num_workers, len(numbers)),
            collate_fn=dict,
            pin_memory=self.pin_memory,
        )
        batches = iter(loader)
        try:
            yield from batches
        except Exception as error:
            known = _explain(error)
            if known is None:
                raise
            raise known from error
        finally:
            # torch ends workers when the iterator is collected; after an error that takes it 5 s for each worker
            getattr(batches, "_shutdown_workers", lambda: None)()

    def spec(self, number: int) -> _Spec:
        """Return what batch ``number`` holds, counted over all epochs from 0."""
        epoch, position = divmod(number, len(self))
        if self._plan[0] != epoch:
            self._plan = (epoch, self._make_plan(epoch))
        return self._plan[1][position]

    def _make_plan(self, epoch: int) -> list[_Spec]:
        seen: Counter[int] = Counter()
        plan: list[_Spec] = []
        order = self._order(epoch).tolist()
        for first in range(0, len(self) * self.batch_size, self.batch_size):
            indices = order[first : first + self.batch_size]
            repeats = []
            for index in indices:
                repeats.append(seen[index])
                seen[index] += 1
            plan.append((epoch, indices, repeats))
        return plan


class _Batches(Dataset[dict[str, Any]]):
    """A dataset whose items are whole batches, so that workers augment whole batches."""

    def __init__(
        self, dataset: SliceDataset, seed: int, augment: Sequence[Augment], supervision: str, tile: int = 0
    ) -> None:
        self.dataset, self.seed, self.augment, self.supervision = dataset, seed, augment, supervision
        self.tile = tile

    def __getitem__(self, spec: _Spec) -> dict[str, Any]:
        epoch, indices, repeats = spec
        names = zip((self.dataset.sample(index) for index in indices), repeats, strict=True)
        seeds = [derive_seed(self.seed, epoch, s, *([r] if r else [])) for s, r in names]
        label = self.supervision != "none"
        items = [self.dataset.fetch(index, label, seed) for index, seed in zip(indices, seeds, strict=True)]
        said = [item.pop("presence", None) for item in items]
        if self.supervision == "presence":
            for item in items:  # no mask, but a presence label; what is cut off by augmentation is not known
                item.setdefault("label", torch.zeros_like(item["image"][:1], dtype=torch.uint8))
        batch: dict[str, Any] = default_collate(items)
        for step in self.augment:
            batch = step(batch, seeds)
        if "label" in batch:
            batch["presence"] = presence_labels(batch["label"], self.dataset.num_classes)
            if self.supervision == "presence":
                if self.tile:
                    batch["presence"] = tile_presence(batch["label"], self.dataset.num_classes, self.tile)
                for position, presence in enumerate(said):
                    if presence is not None:
                        batch["presence"][position] = presence
                del batch["label"]
        return batch


def _check_supervision(dataset: SliceDataset, supervision: str, tile: int) -> str:
    check_choice("supervision", supervision, SUPERVISIONS)
    labeled = sum(row.get("label") is not None for row in dataset.rows)
    if supervision == "presence":
        said = sum(row.get("label") is None and row.get("present") is not None for row in dataset.rows)
        if said and tile:
            raise ValueError(
                f"tile must be 0 for rows that say what whole slices show, got {tile} and {said} rows with present "
                "instead of a mask. Set presence_tile to 0, or leave these rows out."
            )
        labeled += said
    if supervision != "none" and 0 < labeled < len(dataset.rows):
        raise ValueError(
            f"dataset must be labeled throughout or not at all, got {labeled} labeled rows of {len(dataset.rows)}. "
            "Use two datasets and InterleavedLoader, or supervision='none'."
        )
    if supervision == "presence" and not labeled:
        raise ValueError("supervision must be 'none' for rows without label, got 'presence'.")
    return supervision if labeled else "none"


def _explain(error: Exception) -> VmfError | None:
    known = find_vmf_error(error)
    if known is not None:
        return known
    if _DEAD_WORKER.search(str(error)):
        return VmfError("VMF513", subject="a loader's worker process", found=str(error).splitlines()[0])
    return None
