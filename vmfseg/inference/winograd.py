# SPDX-License-Identifier: Apache-2.0
r"""Convolutions of 3 × 3 with a quarter of the multiplications, for processors whose arithmetic is the limit.

Winograd's minimal filtering :math:`F(4 \times 4, 3 \times 3)` (Lavin and Gray, CVPR 2016, https://arxiv.org/abs/1509.09308):
an output tile :math:`Y` of 4 × 4 pixels comes from the 6 × 6 pixels :math:`d` under it by

.. math:: Y = A^\top \Big[ \sum_c (G g_c G^\top) \odot (B^\top d_c B) \Big] A ,

with :math:`G g_c G^\top` known in advance. Over all tiles the sum is 36 products of matrices, tiles × channels in ×
channels out: 36 multiplications for 16 outputs instead of 144. It is the same function in exact arithmetic. Rounding
depends on the six points at which the polynomials behind :math:`A, B, G` are evaluated; with
:math:`0, \pm\frac58, \pm\frac32, \infty` it is a quarter of what the textbook's :math:`0, \pm1, \pm2, \infty` give.

The transforms cost time that grows with the channels, not with their product, so few channels do not gain; nor do
images of a few tiles, for which the transformed filters, four times as many numbers, are too much to fetch.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn

__all__ = [
    "MIN_CHANNELS",
    "MIN_TILES",
    "SPAN",
    "TILE",
    "WinogradConv2d",
    "filter_transform",
    "tile_transforms",
    "use_winograd",
]

#: Pixels of an output tile along an axis, and of the input tile under it.
TILE, SPAN = 4, 6
#: Fewest channels, in and out, at which the transforms cost less than they save.
MIN_CHANNELS = 128
#: Fewest tiles of an image for which it pays to fetch the transformed filters.
MIN_TILES = 16
_POINTS = (0.0, 0.625, -0.625, 1.5, -1.5)
#: Tiles at once, so that memory is bounded and what they need stays near.
_BLOCK = 324


@lru_cache(maxsize=1)
def _matrices() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    r"""Return :math:`A^\top` (4 × 6), :math:`B^\top` (6 × 6) and :math:`G` (6 × 3), double precision.

    Row :math:`i` of :math:`A` and :math:`G` holds the powers of point :math:`i` (infinity: the highest one alone), and
    :math:`B` is the inverse of the square matrix of powers. A factor can be moved from a row of :math:`B^\top` to that
    of :math:`G`; the last entry of each row of :math:`B^\top` is one.
    """
    points = torch.tensor(_POINTS, dtype=torch.float64)

    def powers(count: int) -> torch.Tensor:
        infinity = torch.zeros(1, count, dtype=torch.float64)
        infinity[0, -1] = 1.0
        return torch.cat([points[:, None] ** torch.arange(count), infinity])

    b = torch.linalg.inv(powers(SPAN)).T
    b[b.abs() < 1e-12] = 0.0
    last = torch.stack([row[row.nonzero()[-1, 0]] for row in b])
    return powers(TILE).T.contiguous(), b / last[:, None], powers(3) * last[:, None]


def tile_transforms() -> tuple[torch.Tensor, torch.Tensor]:
    r"""Return the transforms of flattened tiles.

    Shape: :math:`B^\top \otimes B^\top` ``(36, 36)`` and :math:`A^\top \otimes A^\top` ``(16, 36)``.
    """
    a, b, _ = _matrices()
    return torch.kron(b, b).float(), torch.kron(a, a).float()


def filter_transform(weight: torch.Tensor) -> torch.Tensor:
    r"""Return :math:`G g G^\top` of all filters.

    Shape: ``(out, in, 3, 3)`` -> ``(36, in, out)``.
    """
    g = _matrices()[2].to(weight.device)
    spread = torch.einsum("ik,ockl,jl->ijco", g, weight.double(), g)
    return spread.reshape(SPAN * SPAN, weight.shape[1], weight.shape[0]).float().contiguous()


class WinogradConv2d(nn.Module):
    """A convolution of 3 × 3, stride 1, padding 1, by Winograd's way; for inference on a CPU.

    Slices are taken one by one, so that what comes out for one does not depend on the others. Images of less than
    :data:`MIN_TILES` tiles go the plain way.

    The transformed filters take four times the memory of the plain ones, which are kept beside them.

    Shape: ``B i HW`` -> ``B o HW``, the channels next to each other in memory.

    Args:
        conv: the convolution, 3 × 3, stride 1, padding 1 with zeros, one group.

    Raises:
        ValueError: another convolution.

    Example:
        >>> conv = nn.Conv2d(128, 128, 3, padding=1)
        >>> image = torch.rand(2, 128, 18, 15)
        >>> with torch.no_grad():
        ...     bool((WinogradConv2d(conv)(image) - conv(image)).abs().max() < 1e-5)
        True
    """

    spectra: torch.Tensor
    bias: torch.Tensor
    to_spectrum: torch.Tensor
    to_pixels: torch.Tensor

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        if not _is_plain(conv):
            raise ValueError(
                f"conv must be 3 x 3 with stride 1, padding 1 with zeros and one group, got {conv}. Keep it as it is."
            )
        self.conv, self.out_channels = conv, conv.out_channels
        to_spectrum, to_pixels = tile_transforms()
        bias = torch.zeros(conv.out_channels) if conv.bias is None else conv.bias.detach().clone()
        for name, value in (
            ("spectra", filter_transform(conv.weight.detach())),
            ("bias", bias),
            ("to_spectrum", to_spectrum),
            ("to_pixels", to_pixels),
        ):
            self.register_buffer(name, value, persistent=False)

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Return whether a module is a convolution that this one can stand for, and gains by it."""
        return (
            type(module) is nn.Conv2d
            and _is_plain(module)
            and min(module.in_channels, module.out_channels) >= MIN_CHANNELS
            and (module.weight.device.type, module.weight.dtype) == ("cpu", torch.float32)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the convolution of ``x``, in float32 whatever autocast says."""
        with torch.autocast("cpu", enabled=False):
            return self._convolve(x.float())

    def _convolve(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        down, across = -(-height // TILE), -(-width // TILE)
        if down * across < MIN_TILES:
            return self.conv(x)  # type: ignore[no-any-return]
        padded = x.new_zeros((TILE * down + 2, TILE * across + 2, channels))  # the frame stays zero
        out = x.new_empty((batch, down, TILE, across, TILE, self.out_channels))
        rows = max(1, _BLOCK // across)
        row, column = padded.stride()[:2]
        for slice_, result in zip(x, out, strict=True):
            padded[1 : height + 1, 1 : width + 1] = slice_.permute(1, 2, 0)
            for top in range(0, down, rows):
                count = min(rows, down - top)
                tiles = padded[TILE * top :].as_strided(
                    (SPAN, SPAN, count, across, channels), (row, column, TILE * row, TILE * column, 1)
                )
                spectra = (self.to_spectrum @ tiles.reshape(SPAN * SPAN, -1)).view(SPAN * SPAN, -1, channels)
                products = torch.bmm(spectra, self.spectra)
                pixels = (self.to_pixels @ products.view(SPAN * SPAN, -1)).view(TILE, TILE, count, across, -1)
                torch.add(pixels.permute(2, 0, 3, 1, 4), self.bias, out=result[top : top + count])
        whole = out.view(batch, TILE * down, TILE * across, self.out_channels)
        return whole[:, :height, :width].permute(0, 3, 1, 2)


def _is_plain(conv: nn.Conv2d) -> bool:
    return (conv.kernel_size, conv.stride, conv.dilation) == ((3, 3), (1, 1), (1, 1)) and (
        (conv.padding, conv.padding_mode, conv.groups) == ((1, 1), "zeros", 1)
    )


def use_winograd(network: nn.Module) -> None:
    """Replace, in place, every convolution that gains by it; the result is for inference only."""
    for parent in [module for module in network.modules() if not isinstance(module, WinogradConv2d)]:
        for name, child in list(parent.named_children()):
            if WinogradConv2d.fits(child):
                setattr(parent, name, WinogradConv2d(child))  # type: ignore[arg-type]
