# SPDX-License-Identifier: Apache-2.0
"""Outputs of one forward pass beside the logits, and how to ask any network for them."""

# no `from __future__ import annotations` here: TorchScript reads the types of VMFParts at run time
import inspect
from typing import Any, NamedTuple, Optional, Protocol, runtime_checkable

import torch

__all__ = ["FeatureEncoder", "VMFParts", "bare_network", "network_parts"]


class VMFParts(NamedTuple):
    """Differentiable outputs of one forward pass. They all pass through ``forward``, so DDP synchronizes them.

    Attributes:
        logits: ``BNHW[D]``, class scores before the sigmoid or softmax, background first.
        features: ``BFhw[d]``, output of the encoder, or ``None``.
        activations: ``BJhw[d]``, how much each kernel explains each position; they sum to one over ``J``; or ``None``.
        kernels: ``JF``, unit directions, or ``None``.
        reconstruction: ``BCHW[D]``, the image recomposed from activations and kernels, or ``None``.
        presence: ``BK``, one value for each structure that may be present, or ``None``.
    """

    logits: torch.Tensor
    features: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    activations: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    kernels: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
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


def bare_network(network: Any) -> Any:
    """Return the network itself where it is wrapped for several processes (DDP)."""
    return getattr(network, "module", network)


def network_parts(network: Any, x: torch.Tensor, inferer: Any = None) -> Any:
    """Run any segmentation network and return its parts, ``None`` for those that it does not have.

    A network whose ``forward`` takes ``return_parts`` is asked for its parts: a :class:`VMFParts`, or another structure
    with a field ``logits``. Any other network returns logits alone.

    Shape: ``BCHW[D]`` -> parts with logits ``BNHW[D]``.

    Args:
        network: any ``torch.nn.Module`` from images to logits.
        x: images.
        inferer: a MONAI inferer that calls the network; ``None`` calls it directly.

    Raises:
        ValueError: if the network returns something else than logits of the images' size.

    Example:
        >>> network_parts(torch.nn.Conv2d(1, 3, 1), torch.zeros(2, 1, 8, 8)).activations is None
        True
    """
    asks = "return_parts" in inspect.signature(bare_network(network).forward).parameters
    options = {"return_parts": True} if asks else {}
    out = network(x, **options) if inferer is None else inferer(x, network, **options)
    parts: Any = out if hasattr(out, "logits") else VMFParts(out)
    logits = parts.logits
    if not isinstance(logits, torch.Tensor) or logits.ndim != x.ndim or logits.shape[2:] != x.shape[2:]:
        found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ValueError(
            f"network must return logits BN with the images' size {tuple(x.shape[2:])}, got {found} of "
            f"{type(bare_network(network)).__name__}. Switch deep supervision and further outputs off."
        )
    return parts
