# SPDX-License-Identifier: Apache-2.0
"""From a volume to the network's slices and back to the volume's own grid, by the transforms of a model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from monai.transforms import (
    AsDiscreted,
    CenterSpatialCropd,
    Compose,
    InvertibleTransform,
    ResizeWithPadOrCropd,
    SpatialCropd,
)

from vmfseg.transforms.spatial import ToSliceStackd

__all__ = ["FieldOfView", "PlacedVolume", "Shift", "SliceGrid", "move_window", "normalized"]

#: Of a window from the middle of the plane, in pixels.
Shift = tuple[int, int]

#: Operations that treat every slice alike, so that they can be undone for some slices at a time.
_IN_PLANE = frozenset(
    {"InPlaneSpacing", "ResizeWithPadOrCrop", "Pad", "SpatialPad", "DivisiblePad", "Crop", "SpatialCrop",
     "CenterSpatialCrop"}
)  # fmt: skip


#: Steps that cut the middle out of the plane.
_CENTRAL = (ResizeWithPadOrCropd, CenterSpatialCropd)


class SliceGrid:
    """The transforms of a model, taken apart into what reorders axes, what changes the plane, and what ends in labels.

    Args:
        preprocessing: deterministic transforms of ``{"image": (C, X, Y, Z)}`` to ``(C, H, W, D)``, slices last.
        postprocessing: transforms of ``{"pred": logits}``; those before ``AsDiscreted`` act on class scores in slice
            space, those after it on the label map on the volume's grid.
    """

    def __init__(self, preprocessing: Compose, postprocessing: Compose) -> None:
        steps = list(preprocessing.transforms)
        cut = next((i + 1 for i, step in enumerate(steps) if isinstance(step, ToSliceStackd)), 0)
        if sum(isinstance(step, InvertibleTransform) for step in steps[:cut]) > 1:
            cut = 0  # something else changes the grid before the slices are stacked
        self.reorder, self.plane = Compose(steps[:cut]), Compose(steps[cut:])
        after = list(postprocessing.transforms)
        end = next((i for i, step in enumerate(after) if isinstance(step, AsDiscreted)), len(after))
        self.scores, self.finish = Compose(after[:end]), Compose(after[end + 1 :])

    def place(self, image: MetaTensor, shift: Shift = (0, 0)) -> PlacedVolume:
        """Return the slices of a volume, with the way back.

        Args:
            image: the volume, ``(C, X, Y, Z)``.
            shift: of the window from the middle of the plane; see :func:`move_window`.
        """
        native = self.reorder({"image": image})["image"]
        plane = move_window(self.plane, shift)
        return PlacedVolume(self, native, plane({"image": native})["image"], plane)

    def field_of_view(self, image: MetaTensor) -> FieldOfView | None:
        """Return the plane before its middle is cut out; ``None`` if no step does that."""
        index = _central_step(self.plane)
        return None if index is None else FieldOfView(self, self.reorder({"image": image})["image"], index)


def move_window(plane: Compose, shift: Shift) -> Compose:
    """Return transforms that cut a window out beside the middle of the plane.

    A step before the central one takes twice the shift off one side, which moves the middle by the shift; everything
    else stays as it is.

    Args:
        plane: with a step that cuts the middle out.
        shift: in pixels of the plane before that step.
    """
    index = _central_step(plane)
    if shift == (0, 0) or index is None:
        return plane
    steps = list(plane.transforms)
    low = [max(0, 2 * step) for step in shift]
    high = [max(0, -2 * step) for step in shift]
    return Compose([*steps[:index], _TrimSidesd(low, high), *steps[index:]])


def _central_step(plane: Compose) -> int | None:
    return next((i for i, step in enumerate(plane.transforms) if isinstance(step, _CENTRAL)), None)


class _TrimSidesd(InvertibleTransform):  # type: ignore[misc]
    """Take pixels off the sides of the plane of image and label; MONAI's ``SpatialCropd`` for a size that is not known.

    Args:
        low: pixels at the begin of both axes.
        high: pixels at their end.
    """

    def __init__(self, low: Sequence[int], high: Sequence[int]) -> None:
        self.low, self.high = low, high
        self._crop: Any = None  # MONAI asks for the very object that cropped to undo it

    def __call__(self, data: Any) -> dict[Any, Any]:
        """Crop."""
        height, width, depth = (int(size) for size in data["image"].shape[1:])
        ends = [height - self.high[0], width - self.high[1], depth]
        self._crop = SpatialCropd(("image", "label"), roi_start=[*self.low, 0], roi_end=ends, allow_missing_keys=True)
        return dict(self._crop(data))

    def inverse(self, data: Any) -> dict[Any, Any]:
        """Pad with zeros."""
        return dict(self._crop.inverse(data))


class FieldOfView:
    """The plane of a volume before its middle is cut out, for windows anywhere in it.

    Attributes:
        plane: ``(C, H, W, D)`` at the network's spacing.
        window: size of the window, ``(h, w)``.
        reach: how far the window can be moved along both axes and still lie in the plane.

    Args:
        grid: the transforms.
        native: the volume with its slices last.
        index: of the central step.
    """

    def __init__(self, grid: SliceGrid, native: MetaTensor, index: int) -> None:
        steps = list(grid.plane.transforms)
        self._before, self._rest = Compose(steps[:index]), Compose(steps[index:])
        self.plane: MetaTensor = self._before({"image": native})["image"]
        middle = steps[index]({"image": self.some_slices((0,))})["image"]
        self.window = (int(middle.shape[1]), int(middle.shape[2]))
        height, width = (max(0, (int(n) - w) // 2) for n, w in zip(self.plane.shape[1:3], self.window, strict=True))
        self.reach = (height, width)

    @property
    def depth(self) -> int:
        """How many slices there are."""
        return int(self.plane.shape[-1])

    def some_slices(self, chosen: Sequence[int]) -> MetaTensor:
        """Return some slices of the plane, ``(C, H, W, D)``."""
        return MetaTensor(self.plane.as_tensor()[..., list(chosen)], affine=self.plane.affine)

    def as_network_input(self, window: torch.Tensor) -> torch.Tensor:
        """Return the slices of a window ``(C, h, w, D)`` as the network sees them, ``BCHW``."""
        space = self._rest({"image": MetaTensor(window, affine=self.plane.affine)})["image"]
        slices: torch.Tensor = space.as_tensor().permute(3, 0, 1, 2).contiguous()
        return slices

    def spans(self, shift: Shift) -> tuple[slice, slice]:
        """Return the rows and columns of the plane that a window shows."""
        spans = []
        for step, size, window in zip(shift, self.plane.shape[1:3], self.window, strict=True):
            start = int(size) // 2 - window // 2 + step if size > window else 0
            spans.append(slice(start, min(int(size), start + window)))
        return spans[0], spans[1]

    def share(self, shift: Shift) -> float:
        """Return the share of the volume's own grid that a window covers."""
        covered = torch.zeros(1, *self.plane.shape[1:])
        rows, columns = self.spans(shift)
        covered[0, rows, columns] = 1
        native = undo(self._before, covered, self.plane)
        return float((native > 0.5).float().mean())

    def millimeters(self, shift: Shift) -> tuple[float, float, float]:
        """Return a shift in the space of the scan."""
        steps = np.asarray(self.plane.affine, dtype=np.float64)[:3, :2] @ np.asarray(shift, dtype=np.float64)
        return float(steps[0]), float(steps[1]), float(steps[2])


class PlacedVolume:
    """A volume in slice space.

    Attributes:
        native: the volume with its slices last, on its own grid, ``(C, H', W', D)``.
        slices: what the network sees, ``(D, C, H, W)``.
        found: labels as the network found them, before the last steps of the postprocessing; known after ``result``.

    Args:
        grid: the transforms.
        native: the volume with its slices last.
        space: the volume in slice space.
        plane: the transforms from one to the other.
    """

    def __init__(self, grid: SliceGrid, native: MetaTensor, space: MetaTensor, plane: Compose) -> None:
        self.grid, self.native, self.space, self.plane = grid, native, space, plane
        self.slices = space.as_tensor().permute(3, 0, 1, 2).contiguous()
        done = space.applied_operations[len(native.applied_operations) :]
        depth = int(native.shape[-1])
        kept = int(space.shape[-1]) == depth and all(int(op["orig_size"][-1]) == depth for op in done)
        self.by_slabs = kept and all(op["class"] in _IN_PLANE for op in done)
        self._scores: list[torch.Tensor] = []
        self._soft: list[torch.Tensor] = []
        self._labels: list[torch.Tensor] = []
        self.found = torch.empty(0, dtype=torch.uint8)

    def add(self, logits: torch.Tensor, keep: bool, temperature: float = 1.0) -> None:
        """Take the logits of the next slices, ``BNHW``.

        Args:
            logits: of the slices.
            keep: the scores too.
            temperature: by which logits are divided for the scores that are kept; labels do not depend on it.
        """
        scores = self._scored(logits)
        soft = self._scored(logits / temperature) if keep and temperature != 1 else scores
        if not self.by_slabs:
            self._scores.append(scores)
            self._soft += [soft] if keep else []
            return
        native = self._to_native(scores)
        self._labels.append(_argmax(native))
        if keep:
            self._soft.append(native if soft is scores else self._to_native(soft))

    def _scored(self, logits: torch.Tensor) -> torch.Tensor:
        scores = self.grid.scores({"pred": logits.permute(1, 2, 3, 0).contiguous()})["pred"]
        plain: torch.Tensor = scores.as_tensor() if isinstance(scores, MetaTensor) else scores
        return plain

    def result(self, keep: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the labels ``(H', W', D)`` uint8 and, if kept, the scores ``(N, H', W', D)`` on the native grid."""
        if self.by_slabs:
            labels = torch.cat(self._labels, dim=2)
            scores = torch.cat(self._soft, dim=3) if keep else None
        else:
            labels = _argmax(self._to_native(torch.cat(self._scores, dim=3)))
            scores = self._to_native(torch.cat(self._soft, dim=3)) if keep else None
        self.found = labels
        if self.grid.finish.transforms:
            whole = MetaTensor(labels[None], affine=self.native.affine)
            labels = self.grid.finish({"pred": whole})["pred"].as_tensor()[0].to(torch.uint8)
        return labels, scores

    def maps(self, maps: torch.Tensor) -> torch.Tensor:
        """Bring maps of all slices, ``DKHW``, to the native grid, ``(K, H', W', D)``."""
        if not self.by_slabs:
            return self._to_native(maps.permute(1, 2, 3, 0).contiguous())
        return torch.cat([self._to_native(part.permute(1, 2, 3, 0).contiguous()) for part in maps.split(8)], dim=3)

    def stored(self, maps: torch.Tensor) -> torch.Tensor:
        """Bring maps ``(K, H', W', D)`` to the order and direction in which the file stores its axes."""
        return undo(self.grid.reorder, maps, self.native).contiguous()

    def _to_native(self, volume: torch.Tensor) -> torch.Tensor:
        return undo(self.plane, volume, self.space)


def undo(chain: Compose, maps: torch.Tensor, like: MetaTensor) -> torch.Tensor:
    """Bring maps on the grid of ``like``, which went through ``chain``, to where it came from."""
    operations = copy.deepcopy(like.applied_operations)
    volume = MetaTensor(maps, affine=like.affine, applied_operations=operations)
    undone: Any = chain.inverse({"image": volume})["image"]
    plain: torch.Tensor = undone.as_tensor()
    return plain


def _argmax(scores: torch.Tensor) -> torch.Tensor:
    return scores.max(dim=0).indices.to(torch.uint8)  # argmax takes ten times as long


def normalized(scores: torch.Tensor) -> torch.Tensor:
    """Return scores that sum to one over the classes; where the network saw nothing, the background has it all."""
    total = scores.sum(dim=0, keepdim=True)
    chances = scores / total.clamp_min(1e-12)
    chances[:1] = torch.where(total > 0, chances[:1], torch.ones_like(total))
    return chances
