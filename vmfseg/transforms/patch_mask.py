# SPDX-License-Identifier: Apache-2.0
"""Hide patches of a batch of images, for reconstruction from context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vmfseg.utils import derive_seed

__all__ = ["PatchMask"]

Augment = Callable[[Mapping[str, Any], Sequence[int]], dict[str, Any]]


class PatchMask:
    r"""Augment a batch, keep the images as ``target`` and hide square patches of ``image`` by zeros.

    Every image draws its own share :math:`r \sim U(0, \text{ratio})` and hides each patch with probability :math:`r`.
    What is hidden must be inferred from what is around it, so features have to know context; images with nothing hidden
    are among them, since that is what the encoder sees later. A sample's randomness depends on its seed alone.

    Shape: image ``(B, C, H, W)``; ``target`` likewise.

    Args:
        augment: called first, for instance :class:`BatchAugment`; ``None`` for nothing.
        ratio: largest share of hidden patches.
        size: side of a patch in pixels.

    Example:
        >>> out = PatchMask(ratio=0.8, size=4)({"image": torch.ones(1, 1, 8, 8)}, seeds=[5])
        >>> out["image"].shape, bool((out["target"] == 1).all()), sorted(set(out["image"].flatten().tolist()))
        (torch.Size([1, 1, 8, 8]), True, [0.0, 1.0])
    """

    def __init__(self, augment: Augment | None = None, ratio: float = 0.7, size: int = 8) -> None:
        if not 0.0 <= ratio <= 1.0:
            raise ValueError(f"ratio must be a share from 0 to 1, got {ratio}. 0 hides nothing.")
        if size < 1:
            raise ValueError(f"size must be at least 1 pixel, got {size}. 8 is usual.")
        self.augment, self.ratio, self.size = augment, ratio, size

    def __call__(self, batch: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
        """Return the batch with hidden patches; ``seeds`` as for :class:`BatchAugment`."""
        out = dict(batch) if self.augment is None else self.augment(batch, seeds)
        image = out["image"]
        rows, columns = (-(-side // self.size) for side in image.shape[-2:])
        hidden = []
        for seed in seeds:
            draws = torch.rand(
                rows * columns + 1, generator=torch.Generator().manual_seed(derive_seed(seed, "patches"))
            )
            hidden.append((draws[1:] < self.ratio * draws[0]).view(1, rows, columns))
        mask = torch.stack(hidden).repeat_interleave(self.size, 2).repeat_interleave(self.size, 3)
        mask = mask[..., : image.shape[-2], : image.shape[-1]].to(image.device)
        return {**out, "target": image, "image": image.masked_fill(mask, 0.0)}
