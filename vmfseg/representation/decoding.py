# SPDX-License-Identifier: Apache-2.0
r"""Information over bias: how much of an image can be read off a representation (Liu et al., BMVC 2021).

.. math:: \mathrm{IoB}(I, R) = \frac{\mathrm{MSE}(\text{decoder fed ones})}{\mathrm{MSE}(\text{decoder fed } R)}

with the same decoder, both trained to reconstruct the images and measured on held-out ones: 1 means no information,
larger means more. The decoder learns, so the figure depends on seeds: the mean and all values are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from vmfseg.utils import seeded, torch_rng

__all__ = ["RepresentationDecoder", "information_over_bias"]


class RepresentationDecoder(nn.Module):
    """Decode maps ``BJhw`` or vectors ``BS`` to images ``BCHW``.

    Convolutions with instance norm and leaky ReLU at the resolution of the map, then bilinear enlargement and a last
    convolution; a vector first becomes a map of 8 x 8 positions.

    Args:
        shape: shape of one representation, ``(J, h, w)`` or ``(S,)``.
        image_shape: ``(C, H, W)``.
        channels: width.

    Example:
        >>> RepresentationDecoder((12, 8, 8), (1, 16, 16), channels=4)(torch.rand(2, 12, 8, 8)).shape
        torch.Size([2, 1, 16, 16])
    """

    def __init__(self, shape: Sequence[int], image_shape: Sequence[int], channels: int = 32) -> None:
        super().__init__()
        self.image_shape = tuple(image_shape)
        self.lift = nn.Linear(shape[0], channels * 64) if len(shape) == 1 else None
        first = channels if self.lift is not None else shape[0]
        self.body = nn.Sequential(
            nn.Conv2d(first, channels, 3, padding=1),
            nn.InstanceNorm2d(channels, affine=True),
            nn.LeakyReLU(0.2),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.InstanceNorm2d(channels, affine=True),
            nn.LeakyReLU(0.2),
        )
        self.last = nn.Conv2d(channels, image_shape[0], 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the reconstruction of the images."""
        if self.lift is not None:
            x = self.lift(x).unflatten(1, (-1, 8, 8))
        x = F.interpolate(self.body(x), size=self.image_shape[1:], mode="bilinear", align_corners=False)
        result: torch.Tensor = self.last(x)
        return result


def information_over_bias(
    images: torch.Tensor,
    representation: torch.Tensor,
    held_out: torch.Tensor,
    *,
    epochs: int = 40,
    batch_size: int = 10,
    learning_rate: float = 1e-4,
    channels: int = 32,
    seeds: Sequence[int] = (0, 1, 2),
) -> dict[str, Any]:
    """Train the decoder on the representation and on ones, and compare the errors on held-out images.

    Shape: images ``BCHW``, representation ``BJhw`` or ``BS``, held_out ``B`` Boolean.

    Args:
        images: what to reconstruct.
        representation: what to reconstruct it from.
        held_out: which images are for measuring; let no subject be on both sides.
        epochs: of training.
        batch_size: of training.
        learning_rate: of Adam with betas 0.5 and 0.999.
        channels: width of the decoder.
        seeds: one decoder pair each.

    Returns:
        ``iob`` (mean over seeds), ``values`` (each seed), ``n_parameters``.

    Raises:
        ValueError: if a side is empty or sizes differ.
    """
    chosen = held_out.bool()
    if len(images) != len(representation) or chosen.shape != (len(images),) or chosen.all() or not chosen.any():
        raise ValueError(
            f"held_out must split the {len(images)} images into two parts, got {int(chosen.sum())} of {chosen.numel()} "
            f"for {len(representation)} representations. Hold out some subjects."
        )
    values, count = [], 0
    for seed in seeds:
        errors = []
        for data in (torch.ones_like(representation), representation):
            with seeded("information over bias", seed):
                decoder = RepresentationDecoder(data.shape[1:], images.shape[1:], channels).to(images.device)
            count = sum(parameter.numel() for parameter in decoder.parameters())
            _train(decoder, data[~chosen], images[~chosen], epochs, batch_size, learning_rate, seed)
            with torch.no_grad():
                errors.append(float(F.mse_loss(decoder.eval()(data[chosen]), images[chosen])))
        values.append(errors[0] / max(errors[1], 1e-12))
    return {"iob": sum(values) / len(values), "values": values, "n_parameters": count}


def _train(
    decoder: nn.Module, data: torch.Tensor, images: torch.Tensor, epochs: int, batch_size: int, rate: float, seed: int
) -> None:
    optimizer = torch.optim.Adam(decoder.parameters(), lr=rate, betas=(0.5, 0.999))
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch_rng(seed, "order", epoch)).to(data.device)
        for batch in order.split(batch_size):
            optimizer.zero_grad()
            F.mse_loss(decoder(data[batch].detach()), images[batch]).backward()
            optimizer.step()
