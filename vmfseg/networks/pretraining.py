# SPDX-License-Identifier: Apache-2.0
"""Pre-training of an encoder by reconstruction of its input."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from monai.networks.layers.factories import Conv
from torch import nn

from vmfseg.utils.checks import did_you_mean

from .blocks import UpsamplingDecoder, initialize_weights
from .encoder import BackboneEncoder, UpBlock, VMFEncoder

__all__ = ["ReconstructionUNet", "load_encoder"]


class ReconstructionUNet(nn.Module):
    r"""An encoder completed to a network that reconstructs its input, :math:`\min |X - \hat X|_1`.

    For a :class:`VMFEncoder` these are the up-stages that it left out, with their skips, and a 1 × 1 convolution, no
    activation at the end: 17 266 241 parameters for the paper's encoder. Any other encoder (:class:`BackboneEncoder`)
    gets an :class:`UpsamplingDecoder` of its features alone.

    Shape: ``BCHW[D]`` -> ``BCHW[D]``, with the extra channels behind.

    Args:
        encoder: the encoder to pre-train; it is used, not copied.
        extra_channels: further maps to predict beside the image, for instance its motion.

    Example:
        >>> unet = ReconstructionUNet(VMFEncoder(channels=(4, 8, 8)))
        >>> unet(torch.rand(1, 1, 16, 16)).shape
        torch.Size([1, 1, 16, 16])
    """

    __constants__ = ("has_skips",)  # TorchScript leaves the other way out

    def __init__(self, encoder: VMFEncoder | BackboneEncoder | None = None, extra_channels: int = 0) -> None:
        super().__init__()
        self.encoder = VMFEncoder() if encoder is None else encoder
        self.has_skips = isinstance(self.encoder, VMFEncoder)
        dims, width = self.encoder.spatial_dims, self.encoder.feature_channels
        width = getattr(self.encoder, "map_channels", width)  # position is no part of a reconstruction
        out_channels = self.encoder.in_channels + extra_channels
        self.ups = nn.ModuleList()
        if not isinstance(self.encoder, VMFEncoder):
            self.out = UpsamplingDecoder(dims, width, out_channels, min(width, 64), self.encoder.stride)
            self.out.apply(initialize_weights)
            return
        channels = self.encoder.channels
        for k in range(self.encoder.level - 1, -1, -1):
            out = channels[max(k - 1, 0)]
            self.ups.append(UpBlock(dims, width, channels[k], out))
            width = out
        self.out = Conv[Conv.CONV, dims](width, out_channels, kernel_size=1)
        for module in (*self.ups, self.out):
            module.apply(initialize_weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the reconstruction of ``x``."""
        if not self.has_skips:
            decoded: torch.Tensor = self.out(self.encoder(x))
            return decoded
        maps: list[torch.Tensor] = self.encoder.pyramid(x)  # type: ignore[operator]
        y = maps[0]
        for k, up in enumerate(self.ups):  # TorchScript cannot zip modules with tensors
            y = up(y, maps[k + 1])
        image: torch.Tensor = self.out(y)
        return image


def load_encoder(target: nn.Module, source: ReconstructionUNet | Mapping[str, torch.Tensor]) -> None:
    """Copy the encoder of a pre-trained U-Net into ``target`` by parameter name.

    Args:
        target: encoder that receives the weights.
        source: the U-Net, its state dict, or the state dict of an encoder.

    Raises:
        ValueError: a layer that is missing, left over or of another shape; it is named, and nothing is copied.

    Example:
        >>> unet, encoder = ReconstructionUNet(VMFEncoder(channels=(4, 8, 8))), VMFEncoder(channels=(4, 8, 8))
        >>> load_encoder(encoder, unet)
        >>> load_encoder(VMFEncoder(channels=(4, 8, 16)), unet)
        Traceback (most recent call last):
        ValueError: layer downs.2.0.weight must have shape (16, 8, 3, 3), got (8, 8, 3, 3). Build both networks ...
    """
    state = source.state_dict() if isinstance(source, nn.Module) else source
    prefix = "encoder."
    if any(name.startswith(prefix) for name in state):
        state = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
    wanted = target.state_dict()
    cure = "Build both networks with the same channels, level and spatial_dims."
    for name, value in wanted.items():
        if name not in state:
            raise ValueError(f"layer {name} must be in the source, got none.{did_you_mean(name, state)} {cure}")
        if state[name].shape != value.shape:
            raise ValueError(
                f"layer {name} must have shape {tuple(value.shape)}, got {tuple(state[name].shape)}. {cure}"
            )
    extra = [name for name in state if name not in wanted]
    if extra:
        raise ValueError(f"layer {extra[0]} of the source must be in the target encoder, got none. {cure}")
    target.load_state_dict(dict(state))
