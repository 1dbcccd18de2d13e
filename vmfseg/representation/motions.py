# SPDX-License-Identifier: Apache-2.0
"""The transformations M of the equivariance test: they act on images and, alike, on the lattice of activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

__all__ = ["Motion", "default_motions", "flip", "rotate", "scale", "shift", "turn"]

Action = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Motion:
    """A transformation of the plane that acts on images and on activations.

    Args:
        name: for tables.
        family: ``"exact"`` (a permutation of pixels), ``"aliasing"`` (shift by less than the network's stride) or
            ``"interpolated"`` (small rotations and scalings).
        action: called as ``action(tensor, stride)``; ``stride`` is 1 for images, image size / lattice size otherwise.
        inverse: the way back, for the interpolation floor; ``None`` for exact motions, whose floor is 0.
        margin: pixels to pad by, so that nothing enters or leaves the frame.
    """

    name: str
    family: str
    action: Callable[[torch.Tensor, int], torch.Tensor]
    inverse: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    margin: int = 0


def flip(axis: int) -> Motion:
    """Mirror along rows (``axis=0``) or columns (``axis=1``)."""
    return Motion("flip vertical" if axis == 0 else "flip horizontal", "exact", lambda x, stride: x.flip(axis + 2))


def turn(quarters: int) -> Motion:
    """Turn by a multiple of 90 degrees; the image must be square.

    Example:
        >>> turn(1).action(torch.tensor([[[[0.0, 1.0], [2.0, 3.0]]]]), 1)
        tensor([[[[1., 3.],
                  [0., 2.]]]])
    """
    return Motion(f"turn {90 * quarters}", "exact", lambda x, stride: torch.rot90(x, quarters, (2, 3)))


def shift(pixels: int, period: int = 16) -> Motion:
    """Shift down and right by ``pixels``; a shift of the lattice by half a position is interpolated.

    Args:
        pixels: how far.
        period: the product of the network's poolings; shifts that are no multiple of it are "aliasing".
    """
    family = "exact" if pixels % period == 0 else "aliasing"
    inverse = None if family == "exact" else _roll(-pixels)
    return Motion(f"shift {pixels}", family, _roll(pixels), inverse, margin=math.ceil(pixels / period) * period)


def rotate(degrees: float) -> Motion:
    """Rotate about the center by a small angle, bilinear."""
    angle = math.radians(degrees)
    matrix = ((math.cos(angle), -math.sin(angle)), (math.sin(angle), math.cos(angle)))
    back = ((matrix[0][0], matrix[1][0]), (matrix[0][1], matrix[1][1]))
    return Motion(f"rotate {degrees:g}", "interpolated", _warp(matrix), _warp(back))


def scale(factor: float) -> Motion:
    """Scale about the center, bilinear; ``factor`` above 1 enlarges."""
    there, back = ((1 / factor, 0.0), (0.0, 1 / factor)), ((factor, 0.0), (0.0, factor))
    return Motion(f"scale {factor:g}", "interpolated", _warp(there), _warp(back))


def default_motions(period: int = 16) -> list[Motion]:
    """Return flips, quarter turns, shifts by ``period`` and by less, small rotations and scalings.

    Args:
        period: the product of the network's poolings, 16 for the paper's U-Net.
    """
    shifts = [period, *(pixels for pixels in (1, 2, 8) if pixels % period)]
    return [
        flip(1),
        flip(0),
        *(turn(quarters) for quarters in (1, 2, 3)),
        *(shift(pixels, period) for pixels in shifts),
        *(rotate(degrees) for degrees in (-10, 10)),
        *(scale(factor) for factor in (0.9, 0.95, 1.05, 1.1)),
    ]


def _roll(pixels: int) -> Callable[[torch.Tensor, int], torch.Tensor]:
    def action(x: torch.Tensor, stride: int) -> torch.Tensor:
        step, rest = divmod(pixels / stride, 1)
        for axis in (2, 3):
            rolled = torch.roll(x, int(step), dims=axis)
            x = rolled if rest == 0 else (1 - rest) * rolled + rest * torch.roll(x, int(step) + 1, dims=axis)
        return x

    return action


def _warp(matrix: tuple[tuple[float, float], tuple[float, float]]) -> Callable[[torch.Tensor, int], torch.Tensor]:
    def action(x: torch.Tensor, stride: int) -> torch.Tensor:
        height, width = x.shape[2:]
        (a, b), (c, d) = matrix
        # normalized coordinates are relative to each side, so rotations of oblong images need the ratio
        theta = x.new_tensor([[a, b * height / width, 0.0], [c * width / height, d, 0.0]])
        grid = F.affine_grid(theta.expand(len(x), 2, 3), list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)

    return action
