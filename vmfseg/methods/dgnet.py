# SPDX-License-Identifier: Apache-2.0
r"""DGNet: meta-learning over domains with disentangled content, style and domain codes.

Liu, Thermos, O'Neil, Tsaftaris. Semi-supervised Meta-learning with Disentanglement for Domain-generalised Medical Image
Segmentation. MICCAI 2021.

Content maps :math:`C = F(X)`, of which the first are the logits of the classes; a style code :math:`s` and a domain
code :math:`d`, Gaussian, from the image; :math:`\hat X = D(C, [s, d])` by adaptive instance norm:

.. math:: L_{train} = |X - \hat X|_1 + 0.1 \, |z - z(\hat X)|_1 + 0.1 \, (KL_s + KL_d + HSIC(s, d)) +
          5 \, (L_{Dice} + L_{CE}) + L_{domain} + 0.1 \, \sigma_{K+1}(\operatorname{softmax} C)

.. math:: L_{test} = |X - \hat X|_1 + 5 \, (L_{Dice} + L_{CE}) + L_{domain}

without Dice and cross-entropy for images without a label, in the scheme of :class:`vmfseg.methods.MetaTrainer` with
step size :math:`10^{-3}` and second order. Weights and terms are those of the released code; the
print, with its equation numbers, was not at hand.

Departures from the released code: (1) the domain classifier has a cross-entropy, in place of a logit loss on a softmax.
(2) The rank of unlabelled images is that of the softmax, too (there of the raw maps). (3) Leaky ReLUs between the
convolutions of the style network (``linear_style=True``: none, as released), and its last map is averaged to a fixed
grid, which changes nothing at 288 × 288. (4) Labelled and unlabelled batches take turns or share a batch as the data
loader says; released: one step of each. The inner step moves the last layer of the content network, the style network
and the decoder, as the released code does; the trainer's ``inner=[]`` moves all.
"""

# no `from __future__ import annotations` here: TorchScript reads the types of forward at run time
from typing import Optional, Sequence, Tuple, Union  # noqa: UP035 - TorchScript

import torch
from torch import nn
from torch.nn import functional as F

from vmfseg.networks.blocks import eager, initialize_weights
from vmfseg.utils.checks import check_channels, check_divisible
from vmfseg.utils.seeds import seeded

from .outputs import MethodParts, sample_gaussian
from .regularizers import check_rank
from .style_decoders import AdaINDecoder

__all__ = ["ContentUNet", "DGNet"]


def _layer(in_channels: int, out_channels: int, kernel: int = 3, activate: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2), nn.InstanceNorm2d(out_channels),
    ]  # fmt: skip
    return nn.Sequential(*layers, *([nn.LeakyReLU(0.01)] if activate else []))


class _Up(nn.Module):
    """Convolution (but at the bottom), double size, 1 × 1 to the skip's width, concatenate, convolution."""

    def __init__(self, in_channels: int, channels: int, skip_channels: int, bottom: bool) -> None:
        super().__init__()
        self.before = nn.Identity() if bottom else _layer(in_channels, channels)
        self.narrow = _layer(channels, skip_channels, kernel=1)
        self.after = _layer(2 * skip_channels, channels)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        up = F.interpolate(self.before(x), scale_factor=2.0, mode="bilinear", align_corners=False)
        merged: torch.Tensor = self.after(torch.cat([self.narrow(up), skip], dim=1))
        return merged


class ContentUNet(nn.Module):
    """Content network of DGNet: three convolutions a level with instance norm, 12 713 512 parameters as published.

    Shape: ``BCHW`` -> content maps ``BJHW``.

    Args:
        in_channels: ``C``.
        out_channels: ``J``.
        channels: widths from the finest resolution to the bottleneck.
    """

    def __init__(
        self, in_channels: int = 1, out_channels: int = 8, channels: Sequence[int] = (32, 64, 128, 256, 512)
    ) -> None:
        super().__init__()
        if len(channels) < 2 or any(c < 1 for c in channels):
            raise ValueError(f"channels must be at least two positive widths, got {tuple(channels)}. The paper has 5.")
        self.in_channels, self.divisor = in_channels, 2 ** (len(channels) - 1)
        self.downs = nn.ModuleList()
        for width, c in zip((in_channels, *channels[:-1]), channels, strict=True):
            self.downs.append(nn.Sequential(_layer(width, c, activate=False), _layer(c, c), _layer(c, c)))
        self.ups = nn.ModuleList()
        for k in range(len(channels) - 1, 0, -1):
            bottom = k == len(channels) - 1
            self.ups.append(_Up(channels[min(k + 1, len(channels) - 1)], channels[k], channels[k - 1], bottom))
        self.last = nn.Conv2d(channels[1], out_channels, kernel_size=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the content maps of ``x``."""
        if not torch.jit.is_scripting():
            self._check(x)
        skips: list[torch.Tensor] = []
        for k, down in enumerate(self.downs):
            x = down(x if k == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up in self.ups:
            x = up(x, skips.pop())
        content: torch.Tensor = self.last(x)
        return content

    @torch.jit.unused
    def _check(self, x: torch.Tensor) -> None:
        if eager():
            check_channels("image", x, self.in_channels, 2)
            check_divisible("image", x.shape[2:], self.divisor, "ContentUNet halves it at every level")


class DGNet(nn.Module):
    r"""Content network, style network with a domain classifier, and decoder of DGNet.

    20 222 912 parameters as published, for one channel, four classes and three domains: content 12 713 512, style
    7 429 535 with the domain classifier, decoder 79 865.

    Shape: ``BCHW`` -> logits ``BNHW``; with ``return_parts=True`` a :class:`MethodParts` with features (content maps
    ``BJHW``), activations (their softmax), reconstruction, mean, log-variance, style and style_again ``B 2S`` (style
    code, then domain code) and domain_logits.

    Args:
        in_channels: ``C``.
        out_channels: ``N``, background first; the first ``N`` content maps are the logits.
        channels: widths of the content network.
        content_channels: ``J``; more than ``N``.
        code_channels: ``S``, of the style code and of the domain code.
        num_domains: source domains that the domain code tells apart.
        style_channels: width of the first layer of the style network; doubles five times.
        style_layers: halvings of the style network.
        style_grid: size of the map before its dense layers; 9 is the paper's for images of 288.
        linear_style: no activations between the convolutions of the style network (released code).
        positive_adain: see :class:`vmfseg.methods.style_decoders.AdaINDecoder` (released code).
        seed: of the initial weights; ``None`` uses torch's global generator.

    Example:
        >>> net = DGNet(channels=(4, 8, 16), style_channels=2, style_layers=3, style_grid=2)
        >>> parts = net(torch.rand(2, 1, 16, 16), return_parts=True)
        >>> parts.logits.shape, parts.style.shape, parts.domain_logits.shape
        (torch.Size([2, 4, 16, 16]), torch.Size([2, 16]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 4,
        channels: Sequence[int] = (32, 64, 128, 256, 512),
        content_channels: int = 8,
        code_channels: int = 8,
        num_domains: int = 3,
        style_channels: int = 8,
        style_layers: int = 5,
        style_grid: int = 9,
        linear_style: bool = False,
        positive_adain: bool = False,
        seed: Optional[int] = None,  # noqa: UP045 - TorchScript
    ) -> None:
        super().__init__()
        check_rank("content_channels", content_channels, out_channels)
        self.in_channels, self.out_channels, self.code_channels = in_channels, out_channels, code_channels
        with seeded(seed, "network"):
            self.content = ContentUNet(in_channels, content_channels, channels)
            layers: list[nn.Module] = [nn.Conv2d(in_channels, style_channels, 7, padding=3)]
            width = style_channels
            for _ in range(style_layers):
                layers += [] if linear_style else [nn.LeakyReLU(0.01)]
                layers.append(nn.Conv2d(width, 2 * width, 4, stride=2, padding=1))
                width *= 2
            self.style = nn.Sequential(
                *layers, nn.AdaptiveAvgPool2d(style_grid), nn.Flatten(), nn.Linear(width * style_grid**2, 324),
                nn.LeakyReLU(0.01), nn.Linear(324, 32), nn.LeakyReLU(0.01), nn.Linear(32, 4 * code_channels),
            )  # fmt: skip
            self.domain = nn.Linear(code_channels, num_domains)
            self.decoder = AdaINDecoder(content_channels, 2 * code_channels, in_channels, positive=positive_adain)
            self.apply(initialize_weights)

    def forward(
        self,
        x: torch.Tensor,
        return_parts: bool = False,
        noise: Optional[torch.Tensor] = None,  # noqa: UP045 - TorchScript
    ) -> Union[torch.Tensor, MethodParts]:  # noqa: UP007 - TorchScript
        """Return the logits of ``x``, or all parts; ``noise`` standard normal ``B 2S``, or ``None`` for the mean."""
        content = self.content(x)
        logits: torch.Tensor = content[:, : self.out_channels]
        if not return_parts:
            return logits
        mean, log_variance = self.encode_style(x)
        style = sample_gaussian(mean, log_variance, noise)
        image = self.decoder(content, style)
        return MethodParts(
            logits, content, torch.softmax(content, dim=1), reconstruction=image, mean=mean, log_variance=log_variance,
            style=style, style_again=self.encode_style(image)[0],
            domain_logits=self.domain(style[:, self.code_channels :]),
        )  # fmt: skip

    def encode_style(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006 - TorchScript
        """Return mean and log-variance of style code and domain code of ``x``, both ``B 2S``."""
        mean, log_variance = self.style(x).chunk(2, dim=1)
        return mean, log_variance

    def noise_shape(self, x: torch.Tensor) -> torch.Size:
        """Return the shape of the noise for images ``x``."""
        return torch.Size([x.shape[0], 2 * self.code_channels])
