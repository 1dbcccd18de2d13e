# SPDX-License-Identifier: Apache-2.0
r"""A convolution of 3 × 3 that trains faster on a CPU where it has many channels.

On a CPU nearly all of a training step is convolutions: forward, gradient of the image, gradient of the filters. The
layout with the channels next to each other (``torch.channels_last``) is the faster one for the first two; for the third
it is up to four times as *slow* where the processor has no AVX-512. :class:`Conv3x3` with filters in that layout takes
the gradient of the filters :mod:`Winograd's way <vmfseg.networks.winograd>`, from :data:`MIN_CHANNELS` on, and from
:data:`MIN_CHANNELS_IMAGE` on the other two as well. On large images its rounding errors are also smaller than torch's.

In any other case it *is* ``nn.Conv2d``: on another device, in another precision or layout, without a gradient,
exported, scripted, compiled, or with fewer channels or tiles than pay for the transforms. Its parameters have the same
names. Gradients of gradients and ``torch.func.vmap`` are not offered; where they are wanted, keep the filters
contiguous.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from monai.data.meta_tensor import MetaTensor
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function_unary

from .winograd import convolve, filter_gradient, filter_transform, tile_count

__all__ = ["MIN_CHANNELS", "MIN_CHANNELS_IMAGE", "MIN_TILES", "Conv3x3", "is_plain"]

#: Fewest channels, in and out, at which the gradient of the filters costs less Winograd's way.
MIN_CHANNELS = 64
#: Fewest channels, in and out, at which the convolution itself and the gradient of the image cost less, too.
MIN_CHANNELS_IMAGE = 128
#: Fewest tiles of 4 × 4 pixels in a batch that pay for the transformed filters.
MIN_TILES = 144


class Conv3x3(nn.Conv2d):
    """A convolution of 3 × 3 with stride 1 that keeps the size.

    Shape: ``B i HW`` -> ``B o HW``.

    Args:
        in_channels: channels in.
        out_channels: channels out.

    Example:
        >>> conv = Conv3x3(64, 64).to(memory_format=torch.channels_last)
        >>> conv(torch.rand(1, 64, 48, 48)).mean().backward()
        >>> conv.weight.grad.shape
        torch.Size([64, 64, 3, 3])
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size=3, padding=1)

    def _conv_forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if torch.jit.is_scripting():
            return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        if is_plain(self) and _gains(x, weight):
            return _convolution(x, weight, bias)
        out: torch.Tensor = super()._conv_forward(x, weight, bias)
        return out


def is_plain(conv: nn.Conv2d) -> bool:
    """Return whether a convolution is one of 3 × 3 with stride 1, a frame of one zero and one group."""
    return (conv.kernel_size, conv.stride, conv.dilation) == ((3, 3), (1, 1), (1, 1)) and (
        (conv.padding, conv.padding_mode, conv.groups) == ((1, 1), "zeros", 1)
    )


def _gains(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        (type(x) is torch.Tensor or isinstance(x, MetaTensor))  # not what stands for a tensor while a graph is traced
        and min(weight.shape[:2]) >= MIN_CHANNELS
        and torch.is_grad_enabled()
        and (x.requires_grad or weight.requires_grad)
        and (x.device.type, x.dtype, weight.dtype) == ("cpu", torch.float32, torch.float32)
        and not torch.is_autocast_enabled("cpu")
        and not (torch.jit.is_tracing() or torch.compiler.is_compiling())
        and x.ndim == 4
        and weight.is_contiguous(memory_format=torch.channels_last)
        and x.shape[0] * math.prod(tile_count(*x.shape[2:])) >= MIN_TILES
    )


def _convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if has_torch_function_unary(x):  # an image of MONAI, whose metadata goes on to the result
        out: torch.Tensor = handle_torch_function(_convolution, (x,), x, weight, bias)
        return out
    return _Convolution.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if min(weight.shape[:2]) < MIN_CHANNELS_IMAGE:
            return F.conv2d(x, weight, bias, padding=1)
        return convolve(x, filter_transform(weight), bias).detach()  # no view, so that what follows may work in place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_image = of_weight = of_bias = None
        with torch.autocast("cpu", enabled=False):
            if ctx.needs_input_grad[0]:
                turned = weight.flip(2, 3).transpose(0, 1)
                if min(weight.shape[:2]) < MIN_CHANNELS_IMAGE:
                    of_image = F.conv2d(gradient, turned, padding=1)
                else:
                    of_image = convolve(gradient, filter_transform(turned))
            if ctx.needs_input_grad[1]:
                of_weight = filter_gradient(x, gradient).contiguous(memory_format=torch.channels_last)
            if ctx.needs_input_grad[2]:
                of_bias = gradient.sum((0, 2, 3))
        return of_image, of_weight, of_bias
