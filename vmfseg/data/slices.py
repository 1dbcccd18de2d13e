# SPDX-License-Identifier: Apache-2.0
"""Dataset of slices: deterministic transforms cached on volumes, random ones run on each slice."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.data import MetaTensor
from monai.transforms import Compose, Transform

from vmfseg.data.volume_dataset import VolumeDataset, split_random
from vmfseg.transforms.annotation import AsClassesd, annotated_slices, mask_labels, present_slices
from vmfseg.transforms.presence_labels import presence_labels
from vmfseg.utils import VmfError, derive_seed

__all__ = ["SliceDataset"]


class SliceDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Serve the slices of many volumes; each volume is read and prepared once (:class:`~vmfseg.data.VolumeDataset`).

    ``transform`` may hold any MONAI transform. Those before the first random one run once on volumes ``(C, H, W, D)``;
    from the first random one on they run on a slice ``(C, H, W)`` each time it is drawn, seeded by ``derive_seed(seed,
    epoch, sample)``, so that the result depends on neither the number of workers nor what was drawn before.

    An item is a dictionary: ``image`` ``(C, H, W)`` float32; ``label`` ``(1, H, W)`` uint8, absent for rows without
    label; ``domain``, ``subject``; ``frame`` (-1 for a 3-D file); ``slice``; ``annotated`` ``(N,)`` bool, the classes
    that were annotated in this slice; ``sample``, a text that identifies the slice and seeds its randomness; for rows
    with ``present`` instead of a label ``presence`` ``(N - 1,)`` bool; with ``motion`` also ``motion`` ``(1, H, W)``,
    how much each pixel changes over the frames of its file. Slices of rows with label or ``present`` in which no class
    was annotated (``slices`` of the row) are left out.

    Args:
        data: rows with absolute paths, as :meth:`vmfseg.data.Datalist.to_dicts` gives them. A row without ``label``
            never opens a label file.
        transform: from a row to ``image`` ``(C, H, W, D)`` and perhaps ``label`` ``(1, H, W, D)``.
        num_classes: N, background included.
        default: rows that are used where ``data`` is empty.
        cache_dir: folder of the persistent cache; empty for none.
        num_workers: threads that prepare volumes.
        progress: show a progress bar.
        memory_limit: bytes that may be kept in memory; ``None`` takes 60 % of what is free.
        seed: of random transforms when slices are taken by index; a :class:`~vmfseg.data.SliceLoader` uses its own.
        motion: add, for rows that are frames of one 4-D file, the standard deviation of the prepared images over these
            frames (all channels averaged), times 4 and at most 1: hearts move, little else does. 0 for a single frame.

    Raises:
        ValueError: if there is no row, or if ``motion`` meets random transforms, which would move the image alone.
        VmfError: see :class:`~vmfseg.data.VolumeDataset`; VMF153 labels outside the classes, VMF154 shapes, VMF280
            ``slices`` that the volume does not have.

    Example:
        >>> from monai.transforms import Lambda
        >>> fake = Lambda(lambda row: {**row, "image": torch.rand(1, 8, 8, 5)})
        >>> dataset = SliceDataset([{"image": "a.nii.gz", "domain": "A", "subject": "a"}], fake)
        >>> len(dataset), dataset[4]["sample"], sorted(dataset[4])
        (5, 'A/a/-/4', ['annotated', 'domain', 'frame', 'image', 'sample', 'slice', 'subject'])
    """

    def __init__(
        self,
        data: Sequence[Mapping[str, Any]] | None,
        transform: Callable[..., Any] | Sequence[Callable[..., Any]],
        num_classes: int = 4,
        default: Sequence[Mapping[str, Any]] = (),
        cache_dir: str | Path | None = None,
        num_workers: int = 0,
        progress: bool = False,
        memory_limit: int | None = None,
        seed: int = 0,
        motion: bool = False,
    ) -> None:
        self.num_classes, self.seed, self.epoch = num_classes, seed, 0
        self.deterministic, self.random = split_random(transform)
        if motion and self.random.transforms:
            raise ValueError("motion must be False with random transforms of slices, got True. Use BatchAugment.")
        self._as_classes = AsClassesd("label", num_classes)
        chain = _Stack(self.deterministic, num_classes)
        self.volumes = VolumeDataset(data, chain, default, cache_dir, num_workers, progress, memory_limit)
        self.rows: list[dict[str, Any]] = list(self.volumes.data)
        self.image_sizes: set[tuple[int, int]] = set()
        self._annotated: list[torch.Tensor] = []
        self._presence: list[npt.NDArray[np.bool_]] = []
        drawn: list[npt.NDArray[np.int64]] = []
        for number, row in enumerate(self.rows):
            stack = self.volumes[number]
            self.image_sizes.add((int(stack["image"].shape[1]), int(stack["image"].shape[2])))
            self._annotated.append(stack["annotated"].clone())
            drawn.append(_drawn(row, stack["annotated"]))
            if "presence" in stack:
                self._presence.append(stack["presence"].numpy()[drawn[-1]])
        self._volume_of = np.repeat(np.arange(len(drawn)), [len(slices) for slices in drawn])
        self._slice_of = np.concatenate(drawn)
        self._motion = self._motions() if motion else {}
        if not len(self):
            raise ValueError("data must hold an annotated slice, got none. Check the slices of the rows.")

    def __len__(self) -> int:
        return len(self._volume_of)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.fetch(index)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that seeds random transforms when slices are taken by index."""
        self.epoch = int(epoch)

    def fetch(self, index: int, label: bool = True, seed: int | None = None) -> dict[str, Any]:
        """Return a slice.

        Args:
            index: number of the slice.
            label: whether to show the label.
            seed: of the random transforms; default by seed, epoch and sample.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"slice {index} of {len(self)}")
        volume, position = int(self._volume_of[index]), int(self._slice_of[index])
        stack, frame = self.volumes[volume], self.rows[volume].get("frame")
        item: dict[str, Any] = {"image": stack["image"][..., position]}
        if "label" in stack and (label or self.random.transforms):
            item["label"] = stack["label"][..., position]
        elif label and "label" not in stack and "presence" in stack:
            item["presence"] = stack["presence"][position]
        item["domain"], item["subject"] = self.domain(index), self.subject(index)
        item["frame"], item["slice"] = -1 if frame is None else int(frame), position
        item["annotated"] = self._annotated[volume][:, position]
        item["sample"] = self.sample(index)
        if self._motion:
            item["motion"] = self._motion[str(self.rows[volume]["image"])][..., position]
        if self.random.transforms:
            item = self._randomize(item, derive_seed(self.seed, self.epoch, item["sample"]) if seed is None else seed)
            if not label:
                item.pop("label", None)
        return item

    def _randomize(self, item: dict[str, Any], seed: int) -> dict[str, Any]:
        for key in item.keys() & {"image", "label"}:
            item[key] = item[key].clone()  # transforms may work in place, and the cache must stay as it is
        self.random.set_random_state(seed=seed % 2**32)
        out = self.random(item)
        if not isinstance(out, dict):
            raise ValueError(
                f"transform must give one slice for a slice, got {type(out).__name__}. Use num_samples=1 or one crop."
            )
        if "label" in out:
            out["label"] = _bare(self._as_classes(out)["label"])
        out["image"] = _bare(out["image"]).to(torch.float32)
        return out

    def _motions(self) -> dict[str, torch.Tensor]:
        """Return the motion ``(1, H, W, D)`` of every file."""
        frames: dict[str, list[int]] = {}
        for number, row in enumerate(self.rows):
            frames.setdefault(str(row["image"]), []).append(number)
        found = {}
        for image, numbers in frames.items():
            stack = torch.stack([self.volumes[number]["image"] for number in numbers])
            spread = stack.std(dim=0, correction=0).mean(dim=0, keepdim=True)
            found[image] = _slices_first((4 * spread).clamp(max=1.0), torch.float32)
        return found

    def domain(self, index: int) -> str:
        """Return the domain of a slice."""
        return str(self.rows[self._volume_of[index]].get("domain", ""))

    def subject(self, index: int) -> str:
        """Return the subject of a slice; rows that name none count by their file."""
        row = self.rows[self._volume_of[index]]
        image = row["image"] if isinstance(row["image"], str | os.PathLike) else row["image"][0]
        return str(row.get("subject") or Path(str(image)).name.split(".")[0])

    def sample(self, index: int) -> str:
        """Return the text that identifies a slice: domain, subject, frame, slice."""
        frame = self.rows[self._volume_of[index]].get("frame")
        place = f"{'-' if frame is None else frame}/{self._slice_of[index]}"
        return f"{self.domain(index)}/{self.subject(index)}/{place}"

    def presence(self) -> npt.NDArray[np.bool_]:
        """Return which annotated foreground classes each slice holds, ``(len, N - 1)``, before random transforms.

        Raises:
            ValueError: if a row has neither label nor ``present``.
        """
        if len(self._presence) < len(self.rows):
            raise ValueError(
                "presence must be asked of labeled rows only, got rows without label. Use another sampling."
            )
        return np.concatenate(self._presence)


class _Stack(Transform):  # type: ignore[misc]
    """Run the deterministic chain on a row and keep plain tensors whose slices are contiguous in memory."""

    def __init__(self, chain: Compose, num_classes: int) -> None:
        self.chain, self.num_classes = chain, num_classes
        self.as_classes = AsClassesd("label", num_classes)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        result = self.chain(dict(row), threading=True)
        image = _check_shape(result["image"], row["image"], channels=None)
        annotated = annotated_slices(image, self.num_classes, row.get("annotated"), row.get("slices"))
        stack = {"image": _slices_first(image, torch.float32), "annotated": annotated}
        if row.get("label") is None:
            if row.get("present") is not None:
                stack["presence"] = present_slices(image, self.num_classes, row["present"])
            return stack
        label = _check_shape(self.as_classes({"label": result["label"]})["label"], row["label"], channels=1)
        if label.shape[1:] != image.shape[1:]:
            raise _shape_error(row["label"], tuple(label.shape), f"the image's {tuple(image.shape)}")
        classes = _slices_first(label, torch.uint8)
        if row.get("slices") is not None:
            classes = mask_labels(classes, annotated)
        by_slice = classes.permute(3, 0, 1, 2)
        return {**stack, "label": classes, "presence": presence_labels(by_slice, self.num_classes)}


def _drawn(row: Mapping[str, Any], annotated: torch.Tensor) -> npt.NDArray[np.int64]:
    """Return the slices of a volume that are drawn: all, but of a labelled one only those with an annotated class."""
    if (row.get("label") is None and row.get("present") is None) or row.get("slices") is None:
        return np.arange(annotated.shape[1])
    return np.flatnonzero(annotated[1:].any(dim=0).numpy())


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_tensor() if isinstance(tensor, MetaTensor) else tensor


def _slices_first(volume: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``(C, H, W, D)`` as a view of contiguous slices ``(D, C, H, W)``."""
    return _bare(volume).to(dtype).permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)


def _check_shape(volume: Any, path: object, channels: int | None) -> torch.Tensor:
    good = isinstance(volume, torch.Tensor) and volume.ndim == 4 and volume.numel() > 0
    if not good or (channels is not None and volume.shape[0] != channels):
        raise _shape_error(path, tuple(getattr(volume, "shape", ())), f"({channels or 'C'}, H, W, D)")
    checked: torch.Tensor = volume
    return checked


def _shape_error(path: object, found: tuple[int, ...], wanted: str) -> VmfError:
    return VmfError(
        "VMF154", subject=str(path), rule=f"the prepared volume must have the shape {wanted}", found=str(tuple(found))
    )
