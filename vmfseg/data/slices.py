# SPDX-License-Identifier: Apache-2.0
"""Volumes prepared once and served as slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.transforms import Compose

from vmfseg.data.cache import Array, CachedStack, CacheFault
from vmfseg.data.store import VolumeStore
from vmfseg.transforms import annotated_classes

__all__ = ["SliceDataset"]


class SliceDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Serve the slices of many volumes; each volume is read and transformed once.

    Rows go through ``transform`` on MONAI's ``CacheDataset`` and stay in memory. What does not fit is kept on disk, in
    ``cache_dir`` or, for this run only, in a temporary folder, and a warning tells the estimate. With ``cache_dir`` the
    prepared volumes are also found again by the next run (:class:`vmfseg.data.VolumeCache`).

    An item is a dictionary: ``image`` ``(1, H, W)`` float32; ``label`` ``(1, H, W)`` uint8, absent for rows without
    label; ``domain``, ``subject``; ``frame`` (-1 for a 3-D file); ``slice``; ``annotated`` ``(N,)`` bool, see
    :func:`vmfseg.transforms.annotated_classes`; ``sample``, a text that identifies the slice and seeds its
    augmentation.

    Args:
        data: rows with absolute paths, as :meth:`vmfseg.data.Datalist.to_dicts` gives them. A row without ``label``
        never
            opens a label file.
        transform: deterministic transforms from a row to ``image`` ``(1, H, W, D)`` and perhaps ``label``: the loader,
            then :func:`vmfseg.transforms.slice_space_transforms`. Augmentation belongs to the loaders.
        num_classes: N, background included.
        cache_dir: folder of the persistent cache, or ``None``.
        num_workers: threads that prepare volumes.
        progress: show a progress bar.
        memory_limit: bytes that may be kept in memory; ``None`` takes 60 % of what is free.

    Raises:
        ValueError: if ``data`` is empty or ``transform`` is random. VmfError: what the reader refuses, with the
        file's name; VMF151 a transform that fails, VMF153 labels outside the
            classes, VMF154 shapes, VMF510 and VMF511 not enough memory or disk.

    Example:
        >>> from monai.transforms import Lambda
        >>> from monai.data import MetaTensor
        >>> fake = Lambda(lambda row: {**row, "image": torch.rand(1, 8, 8, 5)})
        >>> dataset = SliceDataset([{"image": "a.nii.gz", "domain": "A", "subject": "a"}], fake)
        >>> len(dataset), dataset[4]["sample"], sorted(dataset[4])
        (5, 'A/a/-/4', ['annotated', 'domain', 'frame', 'image', 'sample', 'slice', 'subject'])
    """

    def __init__(
        self,
        data: Sequence[Mapping[str, Any]],
        transform: Callable[..., Any] | Sequence[Callable[..., Any]],
        num_classes: int = 4,
        cache_dir: str | Path | None = None,
        num_workers: int = 0,
        progress: bool = False,
        memory_limit: int | None = None,
    ) -> None:
        if not data:
            raise ValueError("data must hold at least one row, got none. Check the datalist and the split.")
        self.rows = [{k: v for k, v in row.items() if k != "label" or v is not None} for row in data]
        self.num_classes = num_classes
        steps = transform if isinstance(transform, Compose) else Compose(transform)
        self._store = VolumeStore(self.rows, steps, num_classes, cache_dir, memory_limit)
        self._stacks = self._store.fill(num_workers, progress)
        lengths = [len(stack) for stack in self._stacks]
        self._volume_of = np.repeat(np.arange(len(lengths)), lengths)
        self._slice_of = np.concatenate([np.arange(length) for length in lengths])
        self._annotated = [annotated_classes(row.get("annotated"), num_classes) for row in self.rows]

    def __len__(self) -> int:
        return len(self._volume_of)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.fetch(index)

    def fetch(self, index: int, label: bool = True) -> dict[str, Any]:
        """Return a slice; ``label=False`` leaves the label out, and unread."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"slice {index} of {len(self)}")
        volume, position = int(self._volume_of[index]), int(self._slice_of[index])
        row = self.rows[volume]
        item: dict[str, Any] = {"image": self._read(volume, "image", position)}
        if label and row.get("label") is not None:
            item["label"] = self._read(volume, "label", position)
        frame = row.get("frame")
        item["domain"], item["subject"] = self.domain(index), self.subject(index)
        item["frame"], item["slice"] = -1 if frame is None else int(frame), position
        item["annotated"] = self._annotated[volume]
        item["sample"] = self.sample(index)
        return item

    def domain(self, index: int) -> str:
        """Return the domain of a slice."""
        return str(self.rows[self._volume_of[index]].get("domain", ""))

    def subject(self, index: int) -> str:
        """Return the subject of a slice; rows that name none count by their file."""
        row = self.rows[self._volume_of[index]]
        return str(row.get("subject") or Path(str(row["image"])).name.split(".")[0])

    def sample(self, index: int) -> str:
        """Return the text that identifies a slice: domain, subject, frame, slice."""
        frame = self.rows[self._volume_of[index]].get("frame")
        place = f"{'-' if frame is None else frame}/{self._slice_of[index]}"
        return f"{self.domain(index)}/{self.subject(index)}/{place}"

    def is_labeled(self, index: int) -> bool:
        """Tell whether a slice has a label."""
        return self.rows[self._volume_of[index]].get("label") is not None

    def presence(self) -> npt.NDArray[np.bool_]:
        """Return which foreground classes each slice holds, ``(len, N - 1)``, before augmentation.

        Raises:
            ValueError: if a row has no label.
        """
        if any(row.get("label") is None for row in self.rows):
            raise ValueError(
                "presence must be asked of labeled rows only, got rows without label. Use another sampling."
            )
        tables = [self._whole(volume, "presence") for volume in range(len(self.rows))]
        return np.concatenate(tables).astype(np.bool_)

    @property
    def image_sizes(self) -> set[tuple[int, int]]:
        """The in-plane sizes that occur; slices of several sizes cannot share a batch."""
        shapes = (s.shapes["image"] if isinstance(s, CachedStack) else s["image"].shape for s in self._stacks)
        return {(int(shape[-2]), int(shape[-1])) for shape in shapes}

    def _read(self, volume: int, name: str, position: int) -> torch.Tensor:
        stack = self._stacks[volume]
        if not isinstance(stack, CachedStack):
            return torch.from_numpy(stack[name][position])
        try:
            return torch.from_numpy(stack.read(name, position))
        except CacheFault as fault:
            stack = self._stacks[volume] = self._store.rebuild(volume, fault)
            return torch.from_numpy(stack.read(name, position))

    def _whole(self, volume: int, name: str) -> Array:
        stack = self._stacks[volume]
        return stack.read(name) if isinstance(stack, CachedStack) else stack[name]
