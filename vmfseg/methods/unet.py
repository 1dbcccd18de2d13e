# SPDX-License-Identifier: Apache-2.0
"""U-Net with the encoder of the vMF networks: the supervised baseline."""

# no `from __future__ import annotations` here: TorchScript reads the types of forward at run time
from typing import Optional, Sequence, Union  # noqa: UP035 - TorchScript

import torch
from torch import nn

from vmfseg.networks.blocks import initialize_weights
from vmfseg.networks.encoder import UpBlock, VMFEncoder
from vmfseg.utils.seeds import seeded

from .outputs import MethodParts

__all__ = ["SegmentationUNet"]


class SegmentationUNet(nn.Module):
    r"""A :class:`vmfseg.networks.VMFEncoder` completed to a full U-Net with a 1 × 1 convolution to the classes.

    .. math:: Y_1 = F_\psi(X), \quad Y_0 = DC([x_0, \text{up}(Y_1)]), \quad \hat Y = W Y_0 + b

    The encoder is the one of vMFNet, weight for weight, so that a comparison with it tells the kernels from the
    backbone; 17 266 436 parameters for the paper's widths and four classes. Train it with
    :class:`vmfseg.losses.VMFLoss` of Dice and cross-entropy and the plain
    :class:`vmfseg.engines.SemiSupervisedTrainer`, without unlabelled data.

    Shape: ``BCHW`` -> logits ``BNHW``; with ``return_parts=True`` a :class:`MethodParts` with the features :math:`Y_0`.

    Args:
        in_channels: ``C``.
        out_channels: ``N``, background first.
        channels: widths of the encoder.
        seed: of the initial weights, independent of torch's global generator; ``None`` uses that one.
        mix_style: probability of :class:`vmfseg.networks.mix_style.MixStyle` in the encoder.

    Example:
        >>> SegmentationUNet(channels=(4, 8, 8))(torch.rand(2, 1, 16, 16)).shape
        torch.Size([2, 4, 16, 16])
    """

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 4,
        channels: Sequence[int] = (64, 128, 256, 512, 512),
        seed: Optional[int] = None,  # noqa: UP045 - TorchScript
        mix_style: float = 0.0,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        with seeded(seed, "network"):
            self.encoder = VMFEncoder(2, in_channels, channels, level=1, mix_style=mix_style)
            self.up = UpBlock(2, self.encoder.feature_channels, channels[0], channels[0])
            self.out = nn.Conv2d(channels[0], out_channels, kernel_size=1)
            self.up.apply(initialize_weights)
            self.out.apply(initialize_weights)

    def forward(self, x: torch.Tensor, return_parts: bool = False) -> Union[torch.Tensor, MethodParts]:  # noqa: UP007
        """Return the logits of ``x``, or all parts."""
        maps = self.encoder.pyramid(x)
        features = self.up(maps[0], maps[1])
        logits: torch.Tensor = self.out(features)
        if return_parts:
            return MethodParts(logits, features)
        return logits
