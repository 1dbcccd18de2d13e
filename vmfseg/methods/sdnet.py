# SPDX-License-Identifier: Apache-2.0
r"""SDNet with factor augmentation: anatomy maps and a style vector, recombined across domains.

Chartsias et al. Disentangled representation learning in cardiac image analysis. Medical Image Analysis 2019 (SDNet).
Liu, Thermos, Chartsias, O'Neil, Tsaftaris. Disentangled representations for domain-generalized cardiac segmentation.
STACOM 2020 (resolution and factor augmentation).

An image is taken apart into anatomy :math:`a = \operatorname{round}(\operatorname{softmax}(F(X)))`, eight binary maps,
and style :math:`z \sim \mathcal N(\mu(a, X), \sigma^2(a, X))`, eight numbers, and put together again,
:math:`\hat X = D(a, z)`; masks come from the anatomy alone, :math:`\hat Y = T(a)`:

.. math:: L = L_{Dice} + L_{CE} + |X - \hat X|_1 + |z - z(\hat X)|_1 + 0.01 \, KL(q(z|X) \,\|\, \mathcal N(0, I))

Factor augmentation decodes the anatomy of a labelled image in the style of an image of *another* domain; the result has
the label of the first and is trained on with the same terms, less the divergence. (Resolution augmentation is the
random scaling of the data's transforms.)

The sum is that of 2019 (:math:`L_{KL}, L_{segm}, L_{adv}, L_{rec}, L_{z_{rec}}`) with the weights of 2020 and
without :math:`L_{adv}`. The print, with its equation numbers, was not at hand.

Departures: (1) the decoder really uses the style; the one of the released code for STACOM 2020 has no modulation, so
its output is the same for any style, and its loop over augmented batches runs zero times. (2) The augmented images are
made by the network in training itself, without gradient, after a warm-up, unless a trained ``generator`` is given; the
paper trains one first and freezes it. (3) No adversarial loss on the masks, as in all later code of the authors.
(4) The map before the dense layer of the style encoder is averaged to a fixed grid, so that any image size works. (5)
The style that is encoded again is that of the image's own reconstruction, as in the code of 2020; in 2019 it is drawn
from the prior.
"""

# no `from __future__ import annotations` here: TorchScript reads the types of forward at run time
from typing import Optional, Sequence, Tuple, Union  # noqa: UP035 - TorchScript

import torch
from torch import nn

from vmfseg.networks.blocks import DoubleConv, initialize_weights
from vmfseg.networks.encoder import VMFEncoder
from vmfseg.utils.seeds import seeded

from .outputs import MethodParts, sample_gaussian
from .style_decoders import style_decoder

__all__ = ["SDNet"]


class SDNet(nn.Module):
    r"""Anatomy encoder, segmentor, variational style encoder and decoder of SDNet.

    The anatomy encoder is the U-Net of the vMF networks with a 1 × 1 convolution to the maps (17 266 696 parameters
    with the paper's widths); the segmentor a double convolution and a 1 × 1 convolution; the style encoder four
    convolutions of stride 2 and width 16 with batch norm on anatomy and image together, a dense layer of 32, mean and
    log-variance; the decoder one of :mod:`vmfseg.methods.style_decoders`. Rounding passes gradients straight through.

    Shape: ``BCHW`` -> logits ``BNHW``; with ``return_parts=True`` a :class:`MethodParts` with features (binary anatomy
    ``BJHW``), activations (before rounding), reconstruction, mean, log-variance, style and style_again ``BS``.

    Args:
        in_channels: ``C``.
        out_channels: ``N``, background first.
        channels: widths of the anatomy encoder.
        anatomy_channels: ``J``.
        style_channels: ``S``.
        hidden_channels: width of the segmentor.
        decoder: ``"film"`` (paper), ``"adain"`` or ``"spade"``.
        binary: round the anatomy; without, it is the softmax.
        style_grid: size of the map before the dense layer; 14 is the paper's for images of 224.
        seed: of the initial weights; ``None`` uses torch's global generator.

    Example:
        >>> net, x = SDNet(channels=(4, 8, 8), hidden_channels=4, style_grid=2), torch.rand(2, 1, 32, 32)
        >>> parts = net(x, return_parts=True)
        >>> net(x).shape, parts.reconstruction.shape, parts.style.shape, sorted(parts.features.unique().tolist())
        (torch.Size([2, 4, 32, 32]), torch.Size([2, 1, 32, 32]), torch.Size([2, 8]), [0.0, 1.0])
    """

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 4,
        channels: Sequence[int] = (64, 128, 256, 512, 512),
        anatomy_channels: int = 8,
        style_channels: int = 8,
        hidden_channels: int = 64,
        decoder: str = "film",
        binary: bool = True,
        style_grid: int = 14,
        seed: Optional[int] = None,  # noqa: UP045 - TorchScript
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.style_channels = in_channels, out_channels, style_channels
        self.binary = binary
        with seeded(seed, "network"):
            self.encoder = VMFEncoder(2, in_channels, channels, level=0)
            self.maps = nn.Conv2d(self.encoder.feature_channels, anatomy_channels, kernel_size=1)
            self.segmentor = nn.Sequential(
                DoubleConv(2, anatomy_channels, hidden_channels, hidden_channels),
                nn.Conv2d(hidden_channels, out_channels, kernel_size=1),
            )
            layers: list[nn.Module] = []
            for k in range(4):
                width = 16 if k else anatomy_channels + in_channels
                layers += [nn.Conv2d(width, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.LeakyReLU(0.2)]
            self.style = nn.Sequential(
                *layers, nn.AdaptiveAvgPool2d(style_grid), nn.Flatten(), nn.Linear(16 * style_grid**2, 32),
                nn.LeakyReLU(0.2), nn.Linear(32, 2 * style_channels),
            )  # fmt: skip
            self.decoder = style_decoder(decoder, anatomy_channels, style_channels, in_channels)
            for module in (self.maps, self.segmentor, self.style, self.decoder):
                module.apply(initialize_weights)

    def forward(
        self,
        x: torch.Tensor,
        return_parts: bool = False,
        noise: Optional[torch.Tensor] = None,  # noqa: UP045 - TorchScript
    ) -> Union[torch.Tensor, MethodParts]:  # noqa: UP007 - TorchScript
        """Return the logits of ``x``, or all parts; ``noise`` standard normal ``BS``, or ``None`` for the mean."""
        anatomy, soft = self.encode_anatomy(x)
        logits: torch.Tensor = self.segmentor(anatomy)
        if not return_parts:
            return logits
        mean, log_variance = self.encode_style(anatomy, x)
        style = sample_gaussian(mean, log_variance, noise)
        image = self.decode(anatomy, style)
        again = self.encode_style(anatomy, image)[0]
        return MethodParts(
            logits, anatomy, soft, reconstruction=image, mean=mean, log_variance=log_variance, style=style,
            style_again=again,
        )  # fmt: skip

    def encode_anatomy(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006 - TorchScript
        """Return the anatomy of ``x``, and what it was before rounding, both ``BJHW``."""
        soft = torch.softmax(self.maps(self.encoder(x)), dim=1)
        return (soft + (soft.round() - soft).detach()) if self.binary else soft, soft

    def encode_style(self, anatomy: torch.Tensor, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
        """Return mean and log-variance of the style of ``x``, both ``BS``."""
        mean, log_variance = self.style(torch.cat([anatomy, x], dim=1)).chunk(2, dim=1)
        return mean, log_variance

    def decode(self, anatomy: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        """Return the image of this anatomy in this style."""
        image: torch.Tensor = self.decoder(anatomy, style)
        return image

    def noise_shape(self, x: torch.Tensor) -> torch.Size:
        """Return the shape of the noise for images ``x``."""
        return torch.Size([x.shape[0], self.style_channels])
