# SPDX-License-Identifier: Apache-2.0
"""What a vMF network returns when asked for everything, and what it expects from an encoder."""

# no `from __future__ import annotations` here: TorchScript reads the types of VMFParts at run time
from typing import NamedTuple, Optional, Protocol, runtime_checkable

import torch

__all__ = ["FeatureEncoder", "VMFParts"]


class VMFParts(NamedTuple):
    """All differentiable outputs of one forward pass. They all pass through ``forward``, so DDP synchronizes them.

    Attributes:
        logits: ``BNHW[D]``, scores before the sigmoid, background first.
        features: ``BFhw[d]``, what the encoder saw.
        activations: ``BJhw[d]``, how much each kernel explains each position; they sum to one over ``J``.
        kernels: ``JF``, unit directions.
        reconstruction: ``BCHW[D]``, the image recomposed from activations and kernels, or ``None``.
        presence: ``BK``, one value for each structure that may be present, or ``None``.
    """

    logits: torch.Tensor
    features: torch.Tensor
    activations: torch.Tensor
    kernels: torch.Tensor
    reconstruction: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    presence: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript


@runtime_checkable
class FeatureEncoder(Protocol):
    """Any module that maps ``BCHW[D]`` to features ``BFhw[d]`` and says how wide and how coarse they are.

    Attributes:
        feature_channels: ``F``.
        stride: image size divided by feature size, a power of two.
    """

    feature_channels: int
    stride: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features of ``x``."""
        ...
