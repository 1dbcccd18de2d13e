# SPDX-License-Identifier: Apache-2.0
r"""Winograd's 3 × 3 convolutions: a quarter of the multiplications, for processors whose arithmetic is the limit.

Winograd's minimal filtering :math:`F(4 \times 4, 3 \times 3)` (Lavin and Gray, CVPR 2016,
https://arxiv.org/abs/1509.09308): an output tile :math:`Y` of 4 × 4 pixels comes from the 6 × 6 pixels :math:`d` under
it by

.. math:: Y = A^\top \Big[ \sum_c (G g_c G^\top) \odot (B^\top d_c B) \Big] A .

Over all tiles the sum is 36 products of matrices, tiles × channels in × channels out: 36 multiplications for 16 outputs
instead of 144. Both gradients of a loss :math:`L` are had in the same way. That of the image is a convolution with the
filters turned by half a turn, channels in and out exchanged; that of a filter is, summed over all tiles,

.. math:: \frac{\partial L}{\partial g_c}
    = G^\top \Big[ \sum (B^\top d_c B) \odot \Big(A \frac{\partial L}{\partial Y} A^\top\Big) \Big] G .

It is the same function in exact arithmetic. Rounding depends on the six points at which the polynomials behind
:math:`A, B, G` are evaluated; with :math:`0, \pm\frac58, \pm\frac32, \infty` it is a quarter of what the textbook's
:math:`0, \pm1, \pm2, \infty` give.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch

__all__ = ["SPAN", "TILE", "convolve", "filter_gradient", "filter_transform", "tile_count", "tile_transforms"]

#: Pixels of an output tile along an axis, and of the input tile under it.
TILE, SPAN = 4, 6
_POINTS = (0.0, 0.625, -0.625, 1.5, -1.5)
#: Tiles at once, at least: few, so that what they need stays near.
_BLOCK = 72


def _matrices() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    r"""Return :math:`A^\top` (4 × 6), :math:`B^\top` (6 × 6) and :math:`G` (6 × 3), double precision.

    Row :math:`i` of :math:`A` and :math:`G` holds the powers of point :math:`i` (infinity: the highest one alone), and
    :math:`B` is the inverse of the square matrix of powers. A factor can be moved from a row of :math:`B^\top` to that
    of :math:`G`; the last entry of each row of :math:`B^\top` is one.
    """
    points = torch.tensor(_POINTS, dtype=torch.float64, device="cpu")

    def powers(count: int) -> torch.Tensor:
        infinity = torch.zeros(1, count, dtype=torch.float64, device="cpu")
        infinity[0, -1] = 1.0
        return torch.cat([points[:, None] ** torch.arange(count, device="cpu"), infinity])

    b = torch.linalg.inv(powers(SPAN)).T
    b[b.abs() < 1e-12] = 0.0
    last = torch.stack([row[row.nonzero()[-1, 0]] for row in b])
    return powers(TILE).T.contiguous(), b / last[:, None], powers(3) * last[:, None]


@lru_cache(maxsize=1)
def tile_transforms() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    r"""Return the transforms of flattened tiles and filters.

    Shape: :math:`B^\top \otimes B^\top` ``(36, 36)``, :math:`A^\top \otimes A^\top` ``(16, 36)`` and
    :math:`G \otimes G` ``(36, 9)``.
    """
    with torch.inference_mode(False):  # kept, so it must serve training whoever asks first
        a, b, g = _matrices()
        return torch.kron(b, b).float(), torch.kron(a, a).float(), torch.kron(g, g).float()


def filter_transform(weight: torch.Tensor) -> torch.Tensor:
    r"""Return :math:`G g G^\top` of all filters.

    Shape: ``(out, in, 3, 3)`` -> ``(36, in, out)``.
    """
    out, channels = weight.shape[:2]
    flat = weight.permute(2, 3, 1, 0).reshape(9, channels * out)
    return (tile_transforms()[2] @ flat).view(SPAN * SPAN, channels, out)


def tile_count(height: int, width: int) -> tuple[int, int]:
    """Return how many tiles cover an image, down and across."""
    return -(-height // TILE), -(-width // TILE)


@torch.no_grad()
def convolve(
    x: torch.Tensor, spectra: torch.Tensor, bias: torch.Tensor | None = None, one_by_one: bool = False
) -> torch.Tensor:
    """Return a convolution of 3 × 3 with stride 1 and a frame of one zero; no gradient is kept.

    Shape: ``B i HW`` -> ``B o HW``, the channels next to each other in memory.

    Args:
        x: images.
        spectra: transformed filters ``(36, i, o)``, see :func:`filter_transform`.
        bias: added to each channel ``(o,)``.
        one_by_one: no tiles of two slices in one product, so that what comes out for one does not depend on the others.
    """
    batch, _, height, width = x.shape
    (down, across), channels = tile_count(height, width), spectra.shape[2]
    to_spectrum, to_pixels, _ = tile_transforms()
    out = x.new_empty((batch, down, TILE, across, TILE, channels))
    for where, tiles in _tiles(x, SPAN, _block(spectra.shape[1], channels), one_by_one):
        products = torch.bmm(_transformed(to_spectrum, tiles), spectra)
        pixels = (to_pixels @ products.view(SPAN * SPAN, -1)).view(TILE, TILE, *tiles.shape[2:5], channels)
        into = pixels.permute(2, 3, 0, 4, 1, 5)
        if bias is None:
            out[where] = into
        else:
            torch.add(into, bias, out=out[where])
    whole = out.view(batch, TILE * down, TILE * across, channels)
    return whole[:, :height, :width].permute(0, 3, 1, 2)


@torch.no_grad()
def filter_gradient(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a loss in the filters of a convolution.

    Shape: images ``B i HW`` and gradient of the convolved ``B o HW`` -> ``(o, i, 3, 3)``.
    """
    to_spectrum, to_pixels, of_filters = tile_transforms()
    channels, out = x.shape[1], gradient.shape[1]
    found = x.new_zeros((SPAN * SPAN, channels, out))
    block = _block(channels, out)
    for (_, above), (_, below) in zip(_tiles(gradient, TILE, block), _tiles(x, SPAN, block), strict=True):
        found.baddbmm_(_transformed(to_spectrum, below).transpose(1, 2), _transformed(to_pixels.T, above))
    return (of_filters.T @ found.view(SPAN * SPAN, -1)).view(3, 3, channels, out).permute(3, 2, 0, 1)


def _transformed(transform: torch.Tensor, tiles: torch.Tensor) -> torch.Tensor:
    """Shape: ``(height, width, slices, rows, across, C)`` -> ``(36, tiles, C)``."""
    return (transform @ tiles.reshape(transform.shape[1], -1)).view(SPAN * SPAN, -1, tiles.shape[-1])


def _block(channels: int, out: int) -> int:
    """Return how many tiles to take at once: the more channels, the more, since each block fetches all filters."""
    return max(_BLOCK, min(channels, out) // 2)


def _tiles(
    x: torch.Tensor, span: int, block: int, one_by_one: bool = False
) -> Iterator[tuple[tuple[slice, slice], torch.Tensor]]:
    """Yield slices and rows of tiles, and the tiles of ``span`` × ``span`` pixels there, with a frame of zeros around.

    A tile is a view of a buffer that the next one uses again. Shape: ``(span, span, slices, rows, across, C)``.
    """
    batch, channels, height, width = x.shape
    down, across = tile_count(height, width)
    frame = (span - TILE) // 2
    slices = 1 if one_by_one else min(batch, max(1, block // (down * across)))
    rows = min(down, max(1, block // across))
    padded = x.new_zeros((slices, TILE * down + 2 * frame, TILE * across + 2 * frame, channels))
    image, row, column = padded.stride()[:3]
    for first in range(0, batch, slices):
        count = min(slices, batch - first)
        inner = padded[:count, frame : frame + height, frame : frame + width]
        inner.copy_(x[first : first + count].permute(0, 2, 3, 1))
        for top in range(0, down, rows):
            here = min(rows, down - top)
            size = (span, span, count, here, across, channels)
            stride = (row, column, image, TILE * row, TILE * column, 1)
            where = slice(first, first + count), slice(top, top + here)
            yield where, padded.as_strided(size, stride, TILE * top * row)
