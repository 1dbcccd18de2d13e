# SPDX-License-Identifier: Apache-2.0
"""Dataset of whole volumes, each prepared once: MONAI's ``CacheDataset``, with a disk cache behind it."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from monai.data import CacheDataset
from monai.transforms import Compose, RandomizableTrait, Transform

from vmfseg.data.disk_cache import DiskCache
from vmfseg.utils import VmfError
from vmfseg.utils.errors import find_vmf_error
from vmfseg.utils.memory import available_memory

__all__ = ["VolumeDataset", "split_random"]

_LOG = logging.getLogger(__name__)
_MEMORY_SHARE = 0.6  # of the free memory: transforms, networks, optimizers and workers need the rest
_GIB = 2.0**30
_UNKNOWN = 1 << 62
_LOCK = threading.Lock()  # of the module: a lock of an instance could not be sent to a worker


class VolumeDataset(CacheDataset):  # type: ignore[misc]
    """Serve volumes whose deterministic transforms ran once; random transforms run each time.

    Prepared volumes are held in memory by MONAI's ``CacheDataset``. With ``cache_dir`` they are also kept on disk by
    MONAI's ``PersistentDataset`` (:class:`~vmfseg.data.disk_cache.DiskCache`), where the next run finds them. What does
    not fit into the memory is read from disk, from ``cache_dir`` or from a temporary folder, and one warning says so.

    Args:
        data: rows with absolute paths, as :meth:`vmfseg.data.Datalist.to_dicts` gives them; a program that trains on
            its own images (MONAI Label) puts a list of ``{"image": ..., "label": ...}`` here.
        transform: MONAI transforms from a row to volumes. Those before the first random one are cached.
        default: rows that are used where ``data`` is empty.
        cache_dir: folder of the persistent cache; empty for none.
        num_workers: threads that prepare volumes.
        progress: show a progress bar.
        memory_limit: bytes that may be kept in memory; ``None`` takes 60 % of what is free.

    Raises:
        ValueError: if there is no row.
        VmfError: what the reader refuses, with the file's name; VMF151 a transform that fails, VMF510 and VMF511 not
            enough memory or disk.

    Example:
        >>> from monai.transforms import Lambda
        >>> fake = Lambda(lambda row: {**row, "image": torch.ones(1, 8, 8, 5)})
        >>> dataset = VolumeDataset([], fake, default=[{"image": "a.nii.gz", "subject": "a"}])
        >>> len(dataset), dataset[0]["image"].shape
        (1, torch.Size([1, 8, 8, 5]))
    """

    def __init__(
        self,
        data: Sequence[Mapping[str, Any]] | None,
        transform: Callable[..., Any] | Sequence[Callable[..., Any]],
        default: Sequence[Mapping[str, Any]] = (),
        cache_dir: str | Path | None = None,
        num_workers: int = 0,
        progress: bool = False,
        memory_limit: int | None = None,
    ) -> None:
        rows = [{k: v for k, v in row.items() if v is not None} for row in (data or default)]
        if not rows:
            raise ValueError("data must hold at least one row, got none. Check the datalist and the split.")
        self.deterministic, self.random = split_random(transform)
        chain = Compose([_Chain(self.deterministic)])
        self._disk = DiskCache(rows, chain, cache_dir) if cache_dir else None
        free = available_memory() or _UNKNOWN
        self._limit = int(free * _MEMORY_SHARE) if memory_limit is None else memory_limit
        self._reserve = free - self._limit if memory_limit is None else 0
        super().__init__(
            rows,
            chain,
            num_workers=max(1, num_workers),
            progress=progress,
            copy_cache=False,
            as_contiguous=False,
        )
        held = sum(item is not None for item in self._cache)
        _LOG.info("%d of %d volumes are held in memory (%.2f GiB)", held, len(rows), sum(self._sizes) / _GIB)

    def set_data(self, data: Sequence[Mapping[str, Any]]) -> None:
        """Replace the rows and prepare them, as MONAI's ``CacheDataset`` does."""
        self._sizes: list[int] = []
        self._full = False
        if self._disk is not None:
            self._disk = DiskCache(data, self.transform, self._disk.cache_dir)
        super().set_data(data)

    def _fill_cache(self, indices: Sequence[int] | None = None) -> list[Any]:
        """Prepare the rows of one file next to each other, so that the reader opens it once."""
        order = sorted(range(len(self.data)), key=lambda i: str(self.data[i].get("image")))
        alone = self.num_workers == 1 and not self.progress  # threads cost address space
        prepared = [self._load_cache_item(i) for i in order] if alone else super()._fill_cache(order)
        items = dict(zip(order, prepared, strict=True))
        return [items[i] for i in range(len(order))]

    def _load_cache_item(self, idx: int) -> Any:
        """Return a prepared row, or ``None`` after it went to disk because the memory is used up."""
        with _explained(self.data[idx]):
            if not self._full:
                item = super()._load_cache_item(idx) if self._disk is None else self._disk.fetch(idx)
                if self._keep(sum(v.nbytes for v in item.values() if isinstance(v, torch.Tensor))):
                    return item
            self._from_disk(idx)
            return None

    def _transform(self, index: int) -> Any:
        item = self._cache[index]
        if item is None:
            with _explained(self.data[index]):
                item = self._from_disk(index % len(self))
        return self.random(deepcopy(item)) if self.random.transforms else dict(item)

    def _from_disk(self, index: int) -> Any:
        return None if self._disk is None else self._disk.fetch(index, mapped=True)

    def _keep(self, size: int) -> bool:
        """Count a volume of ``size`` bytes in, or say that the memory is full; the first time the user is told."""
        with _LOCK:
            if self._full:
                return False
            short = (available_memory() or _UNKNOWN) < self._reserve
            if sum(self._sizes) + size <= self._limit and not short:
                self._sizes.append(size)
                return True
            needed = len(self.data) * (sum(self._sizes) + size) / (len(self._sizes) + 1)
            kept = ""
            if self._disk is None:
                folder = tempfile.mkdtemp(prefix="vmfseg-cache-")
                weakref.finalize(self, _remove, folder, os.getpid())
                self._disk = DiskCache(self.data, self.transform, folder)
                kept = " for this run; give cache_dir to keep them for the next"
            warnings.warn(
                f"{len(self.data)} volumes need about {needed / _GIB:.2f} GiB of memory, and {self._limit / _GIB:.2f} "
                f"GiB may be used: the rest is kept on disk in {self._disk.cache_dir}{kept}.",
                stacklevel=5,
            )
            _check_disk(Path(self._disk.cache_dir), needed - sum(self._sizes))
            self._full = True
            return False


def split_random(transform: Callable[..., Any] | Sequence[Callable[..., Any]]) -> tuple[Compose, Compose]:
    """Split a chain of transforms before its first random one.

    Returns:
        the deterministic transforms, and the rest.

    Example:
        >>> from monai.transforms import Flipd, RandFlipd, ScaleIntensityd
        >>> chain = Compose([Flipd("image"), Compose([RandFlipd("image"), ScaleIntensityd("image")])])
        >>> [[type(t).__name__ for t in part.transforms] for part in split_random(chain)]
        [['Flipd'], ['RandFlipd', 'ScaleIntensityd']]
    """
    chain = transform if isinstance(transform, Compose) else Compose(transform)
    steps = chain.flatten().transforms
    first = next((i for i, step in enumerate(steps) if isinstance(step, RandomizableTrait)), len(steps))
    return Compose(steps[:first]), Compose(steps[first:])


class _Chain(Transform):  # type: ignore[misc]
    """A deterministic chain as one step: MONAI would not cache functions that are no ``Transform``."""

    def __init__(self, chain: Compose) -> None:
        self.chain = chain

    def __call__(self, row: Mapping[str, Any]) -> Any:
        return self.chain(dict(row), threading=True)


@contextmanager
def _explained(row: Mapping[str, Any]) -> Iterator[None]:
    """Turn what transforms raise into an error that names the image."""
    try:
        yield
    except Exception as error:
        known = find_vmf_error(error)
        if known is not None:
            raise known from error
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        memory = isinstance(cause, MemoryError) or "allocate memory" in str(cause)
        raise VmfError(
            "VMF510" if memory else "VMF151",
            subject=str(row.get("image")),
            rule=f"the {'memory is not enough to prepare' if memory else 'transforms fail on'} this volume",
            found=f"{type(cause).__name__}: {(str(cause) or 'no message').splitlines()[0]}",
            fix="use fewer workers, set memory_limit, or resample to a larger pixdim"
            if memory
            else "check the file and the transforms; rows without a label need allow_missing_keys",
        ) from error


def _check_disk(folder: Path, needed: float) -> None:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise VmfError(
            "VMF511",
            subject=str(folder),
            found=f"about {needed / _GIB:.2f} GiB are needed on disk, {free / _GIB:.2f} GiB are free",
        )


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # workers inherit the finalizer and must leave the folder alone
        shutil.rmtree(folder, ignore_errors=True)
