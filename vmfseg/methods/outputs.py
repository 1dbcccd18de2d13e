# SPDX-License-Identifier: Apache-2.0
"""Outputs of the compared networks beside the logits, and how their latent variables are sampled."""

# no `from __future__ import annotations` here: TorchScript reads the types of MethodParts at run time
from typing import NamedTuple, Optional

import torch

__all__ = ["MethodParts", "sample_gaussian"]


class MethodParts(NamedTuple):
    """Differentiable outputs of one forward pass: the fields of :class:`vmfseg.networks.VMFParts`, then further ones.

    Attributes:
        logits: ``BNHW``, class scores, background first.
        features: ``BFHW``, what the logits are computed from.
        activations: ``BJHW``, content maps that sum to one over ``J``, or ``None``.
        kernels: always ``None``; only vMF networks have kernels.
        reconstruction: ``BCHW``, or ``None``.
        presence: always ``None``.
        mean: mean of the Gaussian posterior, ``BS`` (style) or ``BSHW`` (features), or ``None``.
        log_variance: its log-variance, same shape.
        style: the sample that was decoded, ``BS``, or ``None``.
        style_again: the style encoded again from the reconstruction, ``BS``, or ``None``.
        domain_logits: ``BD``, one score for each source domain, or ``None``.
        embeddings: ``BRE``, one vector for each region that was asked for, or ``None``.
    """

    logits: torch.Tensor
    features: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    activations: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    kernels: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    reconstruction: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    presence: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    mean: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    log_variance: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    style: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    style_again: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    domain_logits: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    embeddings: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript


def sample_gaussian(
    mean: torch.Tensor,
    log_variance: torch.Tensor,
    noise: Optional[torch.Tensor],  # noqa: UP045 - TorchScript
) -> torch.Tensor:
    r"""Return :math:`\mu + \sigma\epsilon` for standard normal noise :math:`\epsilon`, or the mean without noise.

    Example:
        >>> sample_gaussian(torch.ones(1), torch.zeros(1), torch.full((1,), 2.0))
        tensor([3.])
    """
    return mean if noise is None else mean + torch.exp(0.5 * log_variance) * noise
