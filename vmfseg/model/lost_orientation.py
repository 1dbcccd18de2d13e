# SPDX-License-Identifier: Apache-2.0
r"""Orientation of scans whose header has lost it: eight ways to turn and mirror a slice, judged by the network.

A file whose axes run exactly along the axes of the world knows its spacing only: an identity affine, a screenshot that
became NIfTI. With the class probabilities :math:`p_c(x)` of a way to turn, its score is the foreground that the network
is sure of,

.. math:: s = \sum_x \mathbb{1}\bigl[\operatorname*{arg\,max}_c p_c(x) \neq 0\bigr] \max_c p_c(x) ,

summed over slices spread over the stack. The way with the highest score is taken, that of the header unless another one
is above it by :data:`MARGIN`. The likelihood of the kernels is no judge: slices without a find are as likely. The
order of the slices is not searched: each is segmented on its own, so that a stack in reverse gives labels in reverse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from vmfseg.model.deploy import Explained

__all__ = ["MARGIN", "Turn", "choose_turn", "is_orientation_lost"]

#: How much more foreground another orientation than the header's must show.
MARGIN = 1.05
_LOOKED_AT = 8  # slices


@dataclass(frozen=True)
class Turn:
    """A way to turn maps ``(..., H, W)``: mirrored along H first, then turned by quarters.

    Example:
        >>> maps = torch.arange(6).reshape(1, 2, 3)
        >>> turn = Turn(1, mirrored=True)
        >>> turn(maps).shape, bool((turn.undo(turn(maps)) == maps).all()), str(turn)
        (torch.Size([1, 3, 2]), True, 'mirrored, turned by 90 degrees')
    """

    quarters: int = 0
    mirrored: bool = False

    def __call__(self, maps: torch.Tensor) -> torch.Tensor:
        """Turn ``maps``."""
        return torch.rot90(maps.flip(-2) if self.mirrored else maps, self.quarters, (-2, -1)).contiguous()

    def undo(self, maps: torch.Tensor) -> torch.Tensor:
        """Turn ``maps`` back."""
        back = torch.rot90(maps, -self.quarters, (-2, -1))
        return (back.flip(-2) if self.mirrored else back).contiguous()

    def undo_parts(self, parts: Explained) -> Explained:
        """Turn all maps of a backend's output back."""
        return Explained(*(None if maps is None else self.undo(maps) for maps in parts))  # type: ignore[arg-type]

    def __str__(self) -> str:
        """Say it in words."""
        words = ["mirrored"] * self.mirrored + [f"turned by {90 * self.quarters} degrees"] * bool(self.quarters)
        return ", ".join(words) or "as the header says"


def is_orientation_lost(affine: npt.ArrayLike) -> bool:
    """Tell whether an affine knows the spacing only: all axes run along the axes of the world.

    Example:
        >>> is_orientation_lost(np.diag([1.2, 1.2, 8.0, 1.0]))
        True
        >>> is_orientation_lost([[1, 0.1, 0], [-0.1, 1, 0], [0, 0, 8]])
        False
    """
    matrix = np.abs(np.asarray(affine, dtype=np.float64)[:3, :3])
    sizes = np.linalg.norm(matrix, axis=0)
    return bool(np.all(matrix.max(axis=0) > 0.99999 * sizes))


def choose_turn(slices: torch.Tensor, run: Callable[[torch.Tensor], torch.Tensor], batch_size: int = 8) -> Turn:
    """Return the way to turn slices in which the network finds most.

    Args:
        slices: ``BCHW``; not square, only half turns keep their shape.
        run: from slices to logits ``BNHW``.
        batch_size: slices at once.
    """
    chosen = torch.linspace(0, len(slices) - 1, min(_LOOKED_AT, len(slices))).round().long()
    some = slices[chosen]
    quarters = range(4) if slices.shape[-2] == slices.shape[-1] else (0, 2)
    turns = [Turn(number, mirrored) for mirrored in (False, True) for number in quarters]
    scores = [sum(_found(run(turn(part))) for part in some.split(batch_size)) for turn in turns]
    best = max(range(len(turns)), key=scores.__getitem__)
    return turns[best] if scores[best] > MARGIN * scores[0] else turns[0]


def _found(logits: torch.Tensor) -> float:
    sure, classes = torch.softmax(logits, dim=1).max(dim=1)
    return float(sure[classes > 0].sum())
