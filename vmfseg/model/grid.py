# SPDX-License-Identifier: Apache-2.0
"""From a volume to the network's slices and back to the volume's own grid, by the transforms of a model."""

from __future__ import annotations

import copy
from typing import Any

import torch
from monai.data import MetaTensor
from monai.transforms import AsDiscreted, Compose, InvertibleTransform

from vmfseg.transforms.spatial import ToSliceStackd

__all__ = ["PlacedVolume", "SliceGrid"]

#: Operations that treat every slice alike, so that they can be undone for some slices at a time.
_IN_PLANE = frozenset(
    {"InPlaneSpacing", "ResizeWithPadOrCrop", "Pad", "SpatialPad", "DivisiblePad", "Crop", "SpatialCrop",
     "CenterSpatialCrop"}
)  # fmt: skip


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

    def place(self, image: MetaTensor) -> PlacedVolume:
        """Return the slices of a volume, with the way back."""
        native = self.reorder({"image": image})["image"]
        return PlacedVolume(self, native, self.plane({"image": native})["image"])


class PlacedVolume:
    """A volume in slice space.

    Attributes:
        native: the volume with its slices last, on its own grid, ``(C, H', W', D)``.
        slices: what the network sees, ``(D, C, H, W)``.

    Args:
        grid: the transforms.
        native: the volume with its slices last.
        space: the volume in slice space.
    """

    def __init__(self, grid: SliceGrid, native: MetaTensor, space: MetaTensor) -> None:
        self.grid, self.native, self.space = grid, native, space
        self.slices = space.as_tensor().permute(3, 0, 1, 2).contiguous()
        done = space.applied_operations[len(native.applied_operations) :]
        depth = int(native.shape[-1])
        kept = int(space.shape[-1]) == depth and all(int(op["orig_size"][-1]) == depth for op in done)
        self.by_slabs = kept and all(op["class"] in _IN_PLANE for op in done)
        self._scores: list[torch.Tensor] = []
        self._labels: list[torch.Tensor] = []

    def add(self, logits: torch.Tensor, keep: bool) -> None:
        """Take the logits of the next slices, ``BNHW``; ``keep`` their scores too."""
        volume = logits.permute(1, 2, 3, 0).contiguous()
        scores = self.grid.scores({"pred": volume})["pred"]
        scores = scores.as_tensor() if isinstance(scores, MetaTensor) else scores
        if not self.by_slabs:
            self._scores.append(scores)
            return
        native = self._to_native(scores)
        self._labels.append(_argmax(native))
        if keep:
            self._scores.append(native)

    def result(self, keep: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the labels ``(H', W', D)`` uint8 and, if kept, the scores ``(N, H', W', D)`` on the native grid."""
        if self.by_slabs:
            labels = torch.cat(self._labels, dim=2)
            scores = torch.cat(self._scores, dim=3) if keep else None
        else:
            scores = self._to_native(torch.cat(self._scores, dim=3))
            labels = _argmax(scores)
        if self.grid.finish.transforms:
            whole = MetaTensor(labels[None], affine=self.native.affine)
            labels = self.grid.finish({"pred": whole})["pred"].as_tensor()[0].to(torch.uint8)
        return labels, scores if keep else None

    def maps(self, maps: torch.Tensor) -> torch.Tensor:
        """Bring maps of all slices, ``DKHW``, to the native grid, ``(K, H', W', D)``."""
        if not self.by_slabs:
            return self._to_native(maps.permute(1, 2, 3, 0).contiguous())
        return torch.cat([self._to_native(part.permute(1, 2, 3, 0).contiguous()) for part in maps.split(8)], dim=3)

    def stored(self, maps: torch.Tensor) -> torch.Tensor:
        """Bring maps ``(K, H', W', D)`` to the order and direction in which the file stores its axes."""
        return self._undo(self.grid.reorder, maps, self.native).contiguous()

    def _to_native(self, volume: torch.Tensor) -> torch.Tensor:
        return self._undo(self.grid.plane, volume, self.space)

    @staticmethod
    def _undo(chain: Compose, maps: torch.Tensor, like: MetaTensor) -> torch.Tensor:
        operations = copy.deepcopy(like.applied_operations)
        volume = MetaTensor(maps, affine=like.affine, applied_operations=operations)
        undone: Any = chain.inverse({"image": volume})["image"]
        plain: torch.Tensor = undone.as_tensor()
        return plain


def _argmax(scores: torch.Tensor) -> torch.Tensor:
    return scores.max(dim=0).indices.to(torch.uint8)  # argmax takes ten times as long
