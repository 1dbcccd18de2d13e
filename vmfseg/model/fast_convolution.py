# SPDX-License-Identifier: Apache-2.0
"""Winograd's convolutions in a network that only infers: the filters are transformed once, when it is made ready.

The maths is that of :mod:`vmfseg.networks.winograd`. The transforms cost time that grows with the channels, not with
their product, so few channels do not gain; nor do images of a few tiles, for which the transformed filters, four times
as many numbers, are too much to fetch.
"""

from __future__ import annotations

import torch
from torch import nn

from vmfseg.networks.convolution import Conv3x3, is_plain
from vmfseg.networks.winograd import convolve, filter_transform, tile_count

__all__ = ["MIN_CHANNELS", "MIN_TILES", "WinogradConv2d", "use_winograd"]

#: Fewest channels, in and out, at which the transforms cost less than they save.
MIN_CHANNELS = 128
#: Fewest tiles of an image for which it pays to fetch the transformed filters.
MIN_TILES = 16


class WinogradConv2d(nn.Module):
    """A convolution of 3 × 3, stride 1, padding 1, by Winograd's way; for inference on a CPU.

    Slices are taken one by one, so that what comes out for one does not depend on the others. Images of less than
    :data:`MIN_TILES` tiles, and those whose gradient is wanted, go the plain way.

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

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        if not is_plain(conv):
            raise ValueError(
                f"conv must be 3 x 3 with stride 1, padding 1 with zeros and one group, got {conv}. Keep it as it is."
            )
        self.conv = conv
        self.register_buffer("spectra", filter_transform(conv.weight.detach()), persistent=False)

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Return whether a module is a convolution that this one can stand for, and gains by it."""
        return (
            isinstance(module, nn.Conv2d)
            and type(module) in (nn.Conv2d, Conv3x3)
            and is_plain(module)
            and min(module.in_channels, module.out_channels) >= MIN_CHANNELS
            and (module.weight.device.type, module.weight.dtype) == ("cpu", torch.float32)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the convolution of ``x``, in float32 whatever autocast says."""
        down, across = tile_count(*x.shape[2:])
        with torch.autocast("cpu", enabled=False):
            if down * across < MIN_TILES or (x.requires_grad and torch.is_grad_enabled()):
                return self.conv(x.float())  # type: ignore[no-any-return]
            return convolve(x.float(), self.spectra, self.conv.bias, one_by_one=True)


def use_winograd(network: nn.Module) -> None:
    """Replace, in place, every convolution that gains by it; the result is for inference only."""
    for parent in [module for module in network.modules() if not isinstance(module, WinogradConv2d)]:
        for name, child in list(parent.named_children()):
            if WinogradConv2d.fits(child):
                setattr(parent, name, WinogradConv2d(child))  # type: ignore[arg-type]
