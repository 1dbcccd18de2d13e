# SPDX-License-Identifier: Apache-2.0
"""Blocks that several networks share: double convolution, upsampling decoder, initialization."""

import math

import torch
from monai.networks.layers.factories import Conv, Norm, Pool
from torch import nn

from vmfseg.utils.checks import check_choice

from .convolution import Conv3x3

__all__ = ["DoubleConv", "UpsamplingDecoder", "eager", "initialize_weights"]


def eager() -> bool:
    """Return whether Python really runs, so that values can be checked (not while scripting, tracing or exporting)."""
    return not (torch.jit.is_scripting() or torch.jit.is_tracing() or torch.compiler.is_compiling())


class DoubleConv(nn.Sequential):
    """Convolution 3 × 3 · batch norm · ReLU, twice, size kept: the block DC(i → m → o) of the U-Net.

    Shape: ``B i HW[D]`` -> ``B o HW[D]``.

    Args:
        spatial_dims: 2 or 3.
        in_channels: channels in.
        mid_channels: channels between the two convolutions.
        out_channels: channels out.
        linear: leave out batch norm and ReLU (the reconstruction decoder of the reference code).
        last_activation: ``"relu"``, or ``"none"`` to end with the second batch norm, so that values may be negative.
    """

    def __init__(
        self,
        spatial_dims: int,
        in_channels: int,
        mid_channels: int,
        out_channels: int,
        linear: bool = False,
        last_activation: str = "relu",
    ) -> None:
        check_choice("last_activation", last_activation, ("relu", "none"))
        conv, norm = Conv[Conv.CONV, spatial_dims], Norm[Norm.BATCH, spatial_dims]
        layers: list[nn.Module] = []
        for index, (i, o) in enumerate(((in_channels, mid_channels), (mid_channels, out_channels))):
            layers.append(Conv3x3(i, o) if spatial_dims == 2 else conv(i, o, kernel_size=3, padding=1))
            if not linear:
                layers.append(norm(o))
                if index == 0 or last_activation == "relu":
                    layers.append(nn.ReLU(inplace=True))
        super().__init__(*layers)


class UpsamplingDecoder(nn.Sequential):
    """From maps at feature resolution to maps at image resolution, the shape of both heads of the paper.

    Double convolution, then for every halving of the encoder a transposed convolution (2 × 2, stride 2) and a double
    convolution, then a 1 × 1 convolution. With ``stride=1`` only the transposed convolution is left out.

    Shape: ``B i hw[d]`` -> ``B o HW[D]`` with ``H = stride · h``.

    Args:
        spatial_dims: 2 or 3.
        in_channels: channels in.
        out_channels: channels out.
        hidden_channels: width of all layers between.
        stride: a power of two.
        linear: leave out batch norm and ReLU.
    """

    def __init__(
        self,
        spatial_dims: int,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 64,
        stride: int = 2,
        linear: bool = False,
    ) -> None:
        if stride < 1 or stride & (stride - 1):
            raise ValueError(f"stride must be a power of two, got {stride}. It is image size over feature size.")
        up, conv = Conv[Conv.CONVTRANS, spatial_dims], Conv[Conv.CONV, spatial_dims]
        width = hidden_channels
        layers: list[nn.Module] = [DoubleConv(spatial_dims, in_channels, width, width, linear)]
        for _ in range(int(math.log2(stride))):
            layers += [up(width, width, kernel_size=2, stride=2), DoubleConv(spatial_dims, width, width, width, linear)]
        if stride == 1:
            layers.append(DoubleConv(spatial_dims, width, width, width, linear))
        layers.append(conv(width, out_channels, kernel_size=1))
        super().__init__(*layers)


def max_pool(spatial_dims: int) -> nn.Module:
    """Return the pooling that halves a size."""
    pool: nn.Module = Pool[Pool.MAX, spatial_dims](kernel_size=2)
    return pool


def initialize_weights(module: nn.Module) -> None:
    """Initialize as the reference does: Xavier-normal convolutions and linear layers, zero bias.

    Batch norm starts at the identity, transposed convolutions keep torch's default. Use as
    ``network.apply(initialize_weights)``.
    """
    if isinstance(module, nn.Conv2d | nn.Conv3d | nn.Linear):
        nn.init.xavier_normal_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
