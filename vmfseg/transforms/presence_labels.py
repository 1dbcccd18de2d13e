# SPDX-License-Identifier: Apache-2.0
"""Presence labels: which classes a slice, or a tile of it, shows."""

from __future__ import annotations

import torch
from monai.data import MetaTensor

__all__ = ["presence_labels", "tile_presence"]


def presence_labels(label: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Tell for every foreground class whether at least one pixel has it.

    The weak label of the paper (vMFWeak): *is there LV, myocardium, RV in this slice?* Compute it after cropping and
    augmentation, so that it says what the network can see.

    Shape: ``(1, H, W)`` -> ``(N - 1,)``; batched ``(B, 1, H, W)`` -> ``(B, N - 1)``; bool, background left out.

    Args:
        label: class indices in ``0 ... num_classes - 1``.
        num_classes: N, background included.

    Raises:
        ValueError: if the shape or ``num_classes`` is wrong, or a label is outside the classes.

    Example:
        >>> presence_labels(torch.tensor([[[0, 1], [3, 1]]]), num_classes=4).tolist()
        [True, False, True]
    """
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}. Count the background too.")
    if label.ndim not in (3, 4) or label.shape[-3] != 1:
        raise ValueError(
            f"label must have shape (1, H, W) or (B, 1, H, W), got {tuple(label.shape)}. Use class indices."
        )
    plain = label.as_tensor() if isinstance(label, MetaTensor) else label
    flat = plain.reshape(-1, label.shape[-2] * label.shape[-1])
    found = [set(sample.unique().tolist()) for sample in flat] if plain.is_floating_point() else _values(flat)
    outside = sorted(set().union(*found) - set(range(num_classes)))
    if outside:
        raise ValueError(
            f"label must be in 0 ... {num_classes - 1}, got {outside}. Map the labels or raise num_classes."
        )
    present = torch.tensor([[c in values for c in range(1, num_classes)] for values in found], device=plain.device)
    return present[0] if label.ndim == 3 else present


def tile_presence(label: torch.Tensor, num_classes: int, tile: int) -> torch.Tensor:
    """Tell for every foreground class and every square tile whether at least one pixel of the tile has it.

    A stronger weak label than the paper's: not only what is in the slice, but roughly where.

    Shape: ``(B, 1, H, W)`` -> ``(B, N - 1, H // tile, W // tile)`` bool.

    Args:
        label: class indices.
        num_classes: N, background included.
        tile: side in pixels.

    Example:
        >>> tile_presence(torch.tensor([[[[0, 0, 2, 0], [0, 0, 0, 0]]]]), num_classes=3, tile=2).tolist()
        [[[[False, False]], [[False, True]]]]
    """
    if not 1 <= tile <= min(label.shape[-2:]):
        raise ValueError(f"tile must be from 1 to the size of the image {tuple(label.shape[-2:])}, got {tile}.")
    plain = label.as_tensor() if isinstance(label, MetaTensor) else label
    masks = torch.cat([plain == n for n in range(1, num_classes)], dim=1)
    return torch.nn.functional.max_pool2d(masks.float(), tile) > 0


def _values(flat: torch.Tensor) -> list[set[int]]:
    """Return the integers in each row; counting is many times faster than ``unique`` or one comparison a class."""
    if flat.dtype != torch.uint8 and flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < 256:
        return [set(row.unique().tolist()) for row in flat]
    return [set(torch.bincount(row).nonzero()[:, 0].tolist()) for row in flat]
