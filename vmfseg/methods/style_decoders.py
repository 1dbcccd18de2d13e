# SPDX-License-Identifier: Apache-2.0
r"""Decoders that render content maps in a given style: FiLM, AdaIN and SPADE.

All three map content ``BJHW`` and a style vector ``BS`` to an image ``BCHW`` in [0, 1], :math:`(\tanh(\cdot) + 1) / 2`:
the originals have images in [-1, 1] and a plain tanh.
"""

# no `from __future__ import annotations` here: TorchScript reads the types of forward at run time
import torch
from monai.networks.blocks.spade_norm import SPADE
from torch import nn
from torch.nn import functional as F

from vmfseg.utils.checks import check_choice

__all__ = ["AdaINDecoder", "FiLMDecoder", "SPADEDecoder", "style_decoder"]


class _FiLMBlock(nn.Module):
    """Convolution, convolution modulated by the style, residual sum."""

    def __init__(self, in_channels: int, style_channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_channels, width, kernel_size=3, padding=1)
        self.second = nn.Conv2d(width, width, kernel_size=3, padding=1)
        self.film = nn.Sequential(
            nn.Linear(style_channels, 2 * width), nn.LeakyReLU(0.2), nn.Linear(2 * width, 2 * width)
        )

    def forward(self, x: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        first = F.leaky_relu(self.first(x), 0.2)
        scale, shift = self.film(style)[:, :, None, None].chunk(2, dim=1)
        second: torch.Tensor = first + F.leaky_relu((1 + scale) * self.second(first) + shift, 0.2)
        return second


class FiLMDecoder(nn.Module):
    r"""Decoder of SDNet: blocks whose maps are scaled and shifted by the style (feature-wise linear modulation).

    .. math:: h \leftarrow h' + \phi((1 + \gamma_k(s)) \, W_k h' + \beta_k(s)), \quad h' = \phi(V_k h)

    four times, then a convolution to the image; :math:`(\gamma_k, \beta_k)` from a perceptron of two layers.

    Args:
        content_channels: ``J``.
        style_channels: ``S``.
        out_channels: ``C``.
        width: of all layers between.
    """

    def __init__(
        self, content_channels: int = 8, style_channels: int = 8, out_channels: int = 1, width: int = 8
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            _FiLMBlock(width if k else content_channels, style_channels, width) for k in range(4)
        )
        self.out = nn.Conv2d(width, out_channels, kernel_size=3, padding=1)

    def forward(self, content: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        """Return the image."""
        for block in self.blocks:
            content = block(content, style)
        return _to_image(self.out(content))


class AdaINDecoder(nn.Module):
    r"""Decoder of DGNet: instance-normalized maps get the deviation and mean that the style says.

    Convolutions 8, 8, 4, C of 3 × 3 with :math:`h \leftarrow (1 + \gamma(s)) \, \text{IN}(h) + \beta(s)` after the
    first two; :math:`(\gamma, \beta)` from a perceptron S-256-256-32. 79 865 parameters for 8 maps, 16 numbers of style
    and one image channel. ``positive=True`` ends the perceptron in a ReLU as the released code does, which makes all
    scales :math:`\gamma` (without the 1) and shifts non-negative.

    Args:
        content_channels: ``J``.
        style_channels: ``S``.
        out_channels: ``C``.
        width: of the two modulated layers.
        positive: non-negative scales and shifts.
    """

    def __init__(
        self,
        content_channels: int = 8,
        style_channels: int = 16,
        out_channels: int = 1,
        width: int = 8,
        positive: bool = False,
    ) -> None:
        super().__init__()
        self.positive = positive
        self.first = nn.Conv2d(content_channels, width, kernel_size=3, padding=1)
        self.second = nn.Conv2d(width, width, kernel_size=3, padding=1)
        self.third = nn.Conv2d(width, width // 2, kernel_size=3, padding=1)
        self.out = nn.Conv2d(width // 2, out_channels, kernel_size=3, padding=1)
        self.adain = nn.Sequential(
            nn.Linear(style_channels, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4 * width)
        )

    def forward(self, content: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        """Return the image."""
        numbers = self.adain(style)[:, :, None, None]
        numbers = F.relu(numbers) if self.positive else numbers
        scale1, shift1, scale2, shift2 = numbers.chunk(4, dim=1)
        base = 0.0 if self.positive else 1.0
        x = F.leaky_relu((base + scale1) * F.instance_norm(self.first(content)) + shift1, 0.2)
        x = F.leaky_relu((base + scale2) * F.instance_norm(self.second(x)) + shift2, 0.2)
        return _to_image(self.out(F.leaky_relu(self.third(x), 0.2)))


class SPADEDecoder(nn.Module):
    r"""Decoder that starts from the style and is modulated by the content at every scale (MONAI's SPADE layer).

    A constant map of the style at 1/16 of the size, then four times: double the size, :math:`(1 + \gamma(C)) \,
    \text{IN}(h) + \beta(C)` with maps :math:`\gamma, \beta` computed from the content, leaky ReLU, convolution.

    Args:
        content_channels: ``J``.
        style_channels: ``S``.
        out_channels: ``C``.
        width: of all layers between.
    """

    def __init__(
        self, content_channels: int = 8, style_channels: int = 8, out_channels: int = 1, width: int = 8
    ) -> None:
        super().__init__()
        self.start = nn.Linear(style_channels, width)
        self.spades = nn.ModuleList(SPADE(content_channels, width, hidden_channels=width) for _ in range(4))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, kernel_size=3, padding=1) for _ in range(4))
        self.out = nn.Conv2d(width, out_channels, kernel_size=3, padding=1)

    def forward(self, content: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        """Return the image."""
        height, width = content.shape[2], content.shape[3]
        # a constant map, which instance norm makes zero: the sums below carry the style on
        x = self.start(style)[:, :, None, None].expand(-1, -1, max(2, height // 16), max(2, width // 16))
        for k, (spade, conv) in enumerate(zip(self.spades, self.convs)):  # noqa: B905 - TorchScript
            factor = 8 >> k
            x = F.interpolate(x, size=[max(2, height // factor), max(2, width // factor)], mode="nearest")
            x = x + conv(F.leaky_relu(spade(x, content), 0.2))
        return _to_image(self.out(x))


def style_decoder(name: str, content_channels: int, style_channels: int, out_channels: int) -> nn.Module:
    """Return the decoder of this name: ``"film"``, ``"adain"`` or ``"spade"``."""
    check_choice("decoder", name, ("film", "adain", "spade"))
    kinds = {"film": FiLMDecoder, "adain": AdaINDecoder, "spade": SPADEDecoder}
    decoder: nn.Module = kinds[name](content_channels, style_channels, out_channels)
    return decoder


def _to_image(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (torch.tanh(x) + 1)
