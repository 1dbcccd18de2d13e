# SPDX-License-Identifier: Apache-2.0
r"""LDDG: variational features that are linearly dependent across domains.

Li, Wang, Wan, Wang, Li, Kot. Domain Generalization for Medical Imaging Classification with Linear-Dependency
Regularization. NeurIPS 2020.

Every pixel has a Gaussian posterior :math:`q(z|x) = \mathcal N(\mu(x), \sigma^2(x))`, pulled to
:math:`\mathcal N(0, I)` so that all domains share one prior, and the features of all domains together are kept in a
space of as many dimensions as there are classes:

.. math:: L = L_{seg} + 0.01 \, KL(q(z|x) \,\|\, \mathcal N(0, I)) + 0.001 \, \sigma_{K+1}(M)

with :math:`M` the features of 2000 random pixels and :math:`K` the number of classes, background included. In the
paper's sections: the last term is the rank loss of "Linear-Dependency Modeling", the divergence that of "Distribution
Alignment", the sum the objective of "Model Training". Weights and number of pixels are those of the released code.
Sections are named because the print, with its equation numbers, was not at hand.

Departures from the released code: (1) :math:`z = \mu + \sigma\epsilon`; the code samples twice, which gives mean
:math:`\mu(1+\sigma)` and deviation :math:`\sigma^2`. (2) One network with all classes in place of a cascade (cord
first, then gray matter inside it), hence Dice and cross-entropy in place of a weighted binary cross-entropy.
"""

# no `from __future__ import annotations` here: TorchScript reads the types of forward at run time
from typing import Any, Optional, Sequence, Union  # noqa: UP035 - TorchScript

import torch
from torch import nn

from vmfseg.networks.blocks import DoubleConv, initialize_weights
from vmfseg.networks.encoder import VMFEncoder
from vmfseg.utils.seeds import seeded

from .objective import MethodLoss
from .outputs import MethodParts, sample_gaussian
from .regularizers import check_rank

__all__ = ["LDDGLoss", "LDDGNet"]


class LDDGNet(nn.Module):
    r"""U-Net with a Gaussian posterior at every pixel and a linear classifier of its samples.

    .. math:: Z = F_\psi(X), \quad \mu = h_\mu(Z), \quad \log\sigma^2 = h_\sigma(Z), \quad
              \hat Y = W(\mu + \sigma\epsilon) + b

    13 403 508 parameters with the published widths and four classes: the middle width of each up-stage is its output
    width there. ``shared_unet=True`` takes the U-Net of the other methods instead (half the input width). Without
    noise, as at test time, the mean is classified.

    Shape: ``BCHW`` -> logits ``BNHW``; with ``return_parts=True`` a :class:`MethodParts` with features (the samples),
    mean and log-variance ``BSHW``.

    Args:
        in_channels: ``C``.
        out_channels: ``N``, background first.
        channels: widths of the U-Net.
        latent_channels: ``S``; more than ``N``.
        hidden_channels: width between the layers of the two heads.
        shared_unet: the U-Net of the other methods.
        seed: of the initial weights; ``None`` uses torch's global generator.

    Example:
        >>> net, x = LDDGNet(channels=(4, 8, 8), hidden_channels=4), torch.rand(2, 1, 16, 16)
        >>> net(x).shape, net(x, return_parts=True).mean.shape
        (torch.Size([2, 4, 16, 16]), torch.Size([2, 8, 16, 16]))
    """

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 4,
        channels: Sequence[int] = (64, 128, 256, 512, 512),
        latent_channels: int = 8,
        hidden_channels: int = 64,
        shared_unet: bool = False,
        seed: Optional[int] = None,  # noqa: UP045 - TorchScript
    ) -> None:
        super().__init__()
        check_rank("latent_channels", latent_channels, out_channels)
        self.in_channels, self.out_channels, self.latent_channels = in_channels, out_channels, latent_channels
        with seeded(seed, "network"):
            self.encoder = VMFEncoder(2, in_channels, channels, level=0)
            if not shared_unet:
                ups: Any = self.encoder.ups
                for up in ups:
                    width = int(up.conv[3].out_channels)
                    up.conv = DoubleConv(2, int(up.conv[0].in_channels), width, width)
            self.mean = _head(self.encoder.feature_channels, hidden_channels, latent_channels)
            self.log_variance = _head(self.encoder.feature_channels, hidden_channels, latent_channels)
            self.classifier = nn.Conv2d(latent_channels, out_channels, kernel_size=1)
            self.apply(initialize_weights)

    def forward(
        self,
        x: torch.Tensor,
        return_parts: bool = False,
        noise: Optional[torch.Tensor] = None,  # noqa: UP045 - TorchScript
    ) -> Union[torch.Tensor, MethodParts]:  # noqa: UP007 - TorchScript
        """Return the logits of ``x``, or all parts; ``noise`` standard normal ``BSHW``, or ``None`` for the mean."""
        features = self.encoder(x)
        mean = self.mean(features)
        if not return_parts and noise is None:
            at_mean: torch.Tensor = self.classifier(mean)
            return at_mean
        log_variance = self.log_variance(features)
        sample = sample_gaussian(mean, log_variance, noise)
        logits: torch.Tensor = self.classifier(sample)
        if not return_parts:
            return logits
        return MethodParts(logits, sample, mean=mean, log_variance=log_variance)

    def noise_shape(self, x: torch.Tensor) -> torch.Size:
        """Return the shape of the noise for images ``x``."""
        return torch.Size([x.shape[0], self.latent_channels, *x.shape[2:]])


def _head(width: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(width, hidden, kernel_size=1), nn.ReLU(), nn.Conv2d(hidden, out, kernel_size=1))


class LDDGLoss(MethodLoss):
    r"""Segmentation, Kullback-Leibler divergence and low rank of LDDG.

    ``kl`` is :func:`gaussian_kl`, mean over all elements; ``rank`` is :func:`low_rank` of the sampled features beyond
    the number of classes. Use with :class:`MethodTrainer` and batches of all domains.

    Args:
        weights: of the terms ``dice``, ``cross_entropy``, ``kl``, ``rank``; by default the paper's 1, 1, 0.01, 0.001.
        **kwargs: as for :class:`MethodLoss`.
    """

    OWN = ("kl", "rank")
    TERMS = (*MethodLoss.TERMS, *OWN)
    DEFAULTS = {"dice": 1.0, "cross_entropy": 1.0, "kl": 0.01, "rank": 0.001}  # noqa: RUF012 - never changed
    NEEDS = {"kl": ("mean", "Use LDDGNet"), "rank": ("features", "Use LDDGNet")}  # noqa: RUF012 - never changed
    KL = "mean"
