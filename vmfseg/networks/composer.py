# SPDX-License-Identifier: Apache-2.0
"""The composing module: from activations and kernels back to features, and from those to the image."""

import torch
from torch import nn
from torch.nn import functional as F

from vmfseg.utils.checks import check_channels

from .blocks import UpsamplingDecoder, eager, initialize_weights

__all__ = ["VMFComposer"]


class VMFComposer(nn.Module):
    r"""Recompose the features from activations and kernels, then reconstruct the image from them.

    .. math:: \tilde z_p = \sum_{j=1}^{J} a_{jp} \, \mu_j, \qquad \hat X = R_\omega(\tilde Z)

    (Eq. 9 of the paper, and the text before Eq. 10.) :math:`R_\omega` is a double convolution, a transposed convolution
    for every halving, a double convolution and a 1 × 1 convolution: 164 737 parameters with batch norm and ReLU as in
    the paper, 164 225 with ``linear=True`` as in the reference code. The reference also recomposes with the raw kernel
    weights, whose norms drift; ``raw_kernels`` of :class:`VMFNet` does that.

    Shape: activations ``BJhw[d]``, kernels ``JF`` -> image ``BCHW[D]``.

    Args:
        spatial_dims: 2 or 3.
        feature_channels: ``F``.
        out_channels: ``C``, channels of the image.
        hidden_channels: width of the decoder.
        stride: image size over feature size.
        linear: no batch norm, no ReLU.

    Example:
        >>> composer = VMFComposer(feature_channels=8, hidden_channels=4)
        >>> composer(torch.rand(1, 3, 6, 6), torch.randn(3, 8)).shape
        torch.Size([1, 1, 12, 12])
    """

    def __init__(
        self,
        spatial_dims: int = 2,
        feature_channels: int = 64,
        out_channels: int = 1,
        hidden_channels: int = 64,
        stride: int = 2,
        linear: bool = False,
    ) -> None:
        super().__init__()
        self.decoder = UpsamplingDecoder(spatial_dims, feature_channels, out_channels, hidden_channels, stride, linear)
        self.apply(initialize_weights)

    def compose(self, activations: torch.Tensor, kernels: torch.Tensor) -> torch.Tensor:
        """Return the recomposed features, ``BFhw[d]`` (Eq. 9)."""
        if not torch.jit.is_scripting():
            self._check(activations, kernels)
        weight = kernels.t().to(activations.dtype)
        if activations.dim() == 4:
            return F.conv2d(activations, weight[:, :, None, None])
        return F.conv3d(activations, weight[:, :, None, None, None])

    def forward(self, activations: torch.Tensor, kernels: torch.Tensor) -> torch.Tensor:
        """Return the reconstructed image."""
        image: torch.Tensor = self.decoder(self.compose(activations, kernels))
        return image

    @torch.jit.unused
    def _check(self, activations: torch.Tensor, kernels: torch.Tensor) -> None:
        if eager():
            if kernels.ndim != 2:
                raise ValueError(f"kernels must have shape (J, F), got {tuple(kernels.shape)}. Pass unit_kernels().")
            check_channels("activations", activations, kernels.shape[0])
