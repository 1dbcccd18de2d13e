# SPDX-License-Identifier: Apache-2.0
"""Where prepared volumes are kept: in memory as long as they fit, then on disk."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import CacheDataset
from monai.transforms import Compose, RandomizableTrait, Transform

from vmfseg.data.cache import Array, CachedStack, CacheFault, VolumeCache, config_text
from vmfseg.data.payload import available_memory
from vmfseg.transforms import AsClassesd, presence_labels
from vmfseg.utils import VmfError, find_vmf_error

__all__ = ["MemoryStack", "VolumeStore"]

_LOG = logging.getLogger(__name__)
_MEMORY_SHARE = 0.6  # of the free memory: transforms, networks, optimizers and workers need the rest
_GIB = 2.0**30


class MemoryStack(dict[str, Array]):
    """The arrays of one volume in memory, slices first; its length is the number of slices."""

    def __len__(self) -> int:
        return len(self["image"])


class VolumeStore:
    """Prepares rows and decides which of them stay in memory.

    Args:
        rows: rows of a datalist with absolute paths.
        transform: deterministic transforms from a row to volumes in slice space.
        num_classes: N, background included.
        cache_dir: folder of the persistent cache, or ``None``.
        memory_limit: bytes that may stay in memory; ``None`` takes 60 % of what is free.
    """

    def __init__(
        self,
        rows: list[dict[str, Any]],
        transform: Compose,
        num_classes: int,
        cache_dir: str | Path | None,
        memory_limit: int | None,
    ) -> None:
        random = [t for t in transform.flatten().transforms if isinstance(t, RandomizableTrait)]
        if random:
            raise ValueError(
                f"transform must be deterministic, got {type(random[0]).__name__}. Use augment= of the loader for it."
            )
        self.rows, self.transform, self.num_classes = rows, transform, num_classes
        self._as_classes = AsClassesd("label", num_classes)
        self._config = f"{config_text(transform)} classes {num_classes}"
        self._persistent = None if cache_dir is None else VolumeCache(cache_dir, self._config)
        self._overflow = self._persistent
        free = available_memory() or 1 << 62
        self._limit = memory_limit if memory_limit is not None else int(free * _MEMORY_SHARE)
        self._reserve = 0 if memory_limit is not None else free - self._limit
        self._used, self._warned, self._lock = 0, False, threading.Lock()
        self._temporary: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_lock"}  # workers may be spawned

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def fill(self, num_workers: int, progress: bool) -> list[MemoryStack | CachedStack]:
        """Prepare all rows, those of one file next to each other so that the reader opens it once."""
        files: dict[str, list[int]] = {}
        for number, row in enumerate(self.rows):
            files.setdefault(str(row["image"]), []).append(number)
        order = [number for numbers in files.values() for number in numbers]
        stacks: list[MemoryStack | CachedStack | None] = [None] * len(order)
        try:
            first = self.place(order[0])
            stacks[order[0]] = first
            self._estimate(first)
            rest = CacheDataset(
                order[1:],
                Compose([_Place(self)]),
                num_workers=max(1, num_workers),
                progress=progress,
                copy_cache=False,
                as_contiguous=False,
            )
            for position, number in enumerate(order[1:]):
                stacks[number] = rest[position].stack
        except Exception as error:
            known = find_vmf_error(error)
            if known is None:
                raise
            raise known from error
        return [stack for stack in stacks if stack is not None]

    def place(self, number: int) -> MemoryStack | CachedStack:
        """Prepare one row and keep it in memory, or on disk once the memory is used up."""
        row = self.rows[number]
        with self._lock:
            full = self._used >= self._limit
        if full:
            return self._disk().stack(row, lambda: self.prepare(number))
        if self._persistent is None:
            arrays = self.prepare(number)
        else:
            arrays = self._persistent.arrays(row, lambda: self.prepare(number))
        stack, size = MemoryStack(arrays), sum(array.nbytes for array in arrays.values())
        with self._lock:
            fits = self._used + size <= self._limit and (available_memory() or 1 << 62) >= self._reserve
            self._used = self._used + size if fits else self._limit  # the first that does not fit ends the search
        return stack if fits else self._disk().stack(row, lambda: arrays)

    def rebuild(self, number: int, fault: CacheFault) -> CachedStack:
        """Replace a bad entry of the cache while it is in use."""
        return self._disk().rebuild(self.rows[number], lambda: self.prepare(number), fault)

    def prepare(self, number: int) -> dict[str, Array]:
        """Run the transforms on one row and return its arrays, slices first."""
        row = self.rows[number]
        try:
            result = self.transform(dict(row))
            arrays = {"image": _slices_first(result["image"], row["image"], torch.float32)}
            if row.get("label") is not None:
                label = self._as_classes({"label": result["label"]})["label"]
                arrays["label"] = _slices_first(label, row["label"], torch.uint8)
        except Exception as error:
            raise _explain(error, row) from error
        if "label" in arrays:
            if arrays["label"].shape != arrays["image"].shape:
                raise _shape_error(row["label"], arrays["label"].shape, f"the image's {arrays['image'].shape}")
            arrays["presence"] = presence_labels(torch.from_numpy(arrays["label"]), self.num_classes).numpy()
        return arrays

    def _estimate(self, first: MemoryStack | CachedStack) -> None:
        """Tell from the first volume what all of them will need, before the time is spent."""
        shapes = first.shapes if isinstance(first, CachedStack) else {k: v.shape for k, v in first.items()}
        pixels = int(np.prod(shapes["image"]))
        labeled = sum(row.get("label") is not None for row in self.rows)
        needed = pixels * (4 * len(self.rows) + labeled)
        if needed <= self._limit:
            _LOG.info("%d volumes need about %.2f GiB and are kept in memory", len(self.rows), needed / _GIB)
            return
        cache = self._disk(f"about {needed / _GIB:.2f} GiB")
        self._check_disk(cache.folder, needed - self._limit)

    def _disk(self, needed: str = "more") -> VolumeCache:
        """Return the cache on disk; what does not fit into the memory goes there, and the user is told once."""
        with self._lock:
            if self._overflow is None:
                self._temporary = tempfile.mkdtemp(prefix="vmfseg-cache-")
                weakref.finalize(self, _remove, self._temporary, os.getpid())
                self._overflow = VolumeCache(self._temporary, self._config)
            cache, told, self._warned = self._overflow, self._warned, True
        if not told:
            kept = "" if self._temporary is None else " for this run; give cache_dir to keep them for the next"
            warnings.warn(
                f"{len(self.rows)} volumes need {needed} of memory as slices, and {self._limit / _GIB:.2f} GiB may be "
                f"used: the rest is kept on disk in {cache.folder}{kept}.",
                stacklevel=5,
            )
        return cache

    def _check_disk(self, folder: Path, needed: int) -> None:
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        free = shutil.disk_usage(existing).free
        if needed > free:
            raise VmfError(
                "VMF511",
                subject=str(folder),
                rule="the prepared slices fit neither into the memory nor on this disk",
                found=f"about {needed / _GIB:.2f} GiB are needed on disk, {free / _GIB:.2f} GiB are free",
                fix="give a cache_dir on a larger disk, or use fewer volumes or a smaller roi",
            )


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # workers inherit the finalizer and must leave the folder alone
        shutil.rmtree(folder, ignore_errors=True)


class _Placed:
    """Carries a stack through MONAI, which would take a dictionary apart."""

    def __init__(self, stack: MemoryStack | CachedStack) -> None:
        self.stack = stack


class _Place(Transform):  # type: ignore[misc]
    def __init__(self, store: VolumeStore) -> None:
        self.store = store

    def __call__(self, number: int) -> _Placed:
        return _Placed(self.store.place(number))


def _slices_first(volume: Any, path: object, dtype: torch.dtype) -> Array:
    """Return ``(1, H, W, D)`` as a contiguous ``(D, 1, H, W)`` array."""
    if not isinstance(volume, torch.Tensor) or volume.ndim != 4 or volume.shape[0] != 1 or not volume.numel():
        raise _shape_error(path, tuple(getattr(volume, "shape", ())), "(1, H, W, D)")
    plain = torch.as_tensor(np.asarray(volume)).to(dtype)
    return plain.permute(3, 0, 1, 2).contiguous().numpy()


def _shape_error(path: object, found: tuple[int, ...], wanted: str) -> VmfError:
    return VmfError(
        "VMF154",
        subject=str(path),
        rule=f"the prepared volume must have the shape {wanted}",
        found=str(tuple(found)),
        fix="load with one channel and one frame, on one grid for image and label (vmfseg verify tells)",
    )


def _explain(error: Exception, row: Mapping[str, Any]) -> VmfError:
    known = find_vmf_error(error)
    if known is not None:
        return known
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    reason = f"{type(cause).__name__}: {(str(cause) or 'no message').splitlines()[0]}"
    if isinstance(cause, MemoryError) or "allocate memory" in str(cause):
        return VmfError(
            "VMF510",
            subject=str(row["image"]),
            rule="the memory is not enough to prepare this volume",
            found=reason,
            fix="use fewer workers, set memory_limit, or resample to a larger pixdim",
        )
    return VmfError(
        "VMF151",
        subject=str(row["image"]),
        rule="the transforms fail on this volume",
        found=reason,
        fix="check the file and the transforms",
    )
