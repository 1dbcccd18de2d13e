# SPDX-License-Identifier: Apache-2.0
"""Activations that stay the same under another style and move with the image: equivariance as a loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["ActivationConsistencyLoss"]


class ActivationConsistencyLoss(nn.Module):
    r"""Divergence of the views of an image from their mean.

    .. math:: L = \frac1V \sum_v KL(A_v \,\|\, \mathrm{sg}(\bar A)), \qquad \bar A = \frac1V \sum_v A_v,

    mean over positions, where :math:`A_v` are the kernel activations of view :math:`v`, brought to one frame, and sg
    stops the gradient. A view is the image in another style, or moved by :math:`g`: this is the compositional
    equivariance of Eq. 3 and 4 of Liu et al. 2023, :math:`A(g x) = g A(x)`, which the paper measures, as a training
    term; the form is that of SLAug and the GIN paper, which put it on the outputs. Any distribution over channels
    serves, so a network without kernels uses its class probabilities.

    Shape: views ``BJhw`` each, summing to one over ``J``; valid ``B1hw`` -> scalar.

    Example:
        >>> a, b = torch.tensor([0.9, 0.1]).view(1, 2, 1, 1), torch.tensor([0.1, 0.9]).view(1, 2, 1, 1)
        >>> loss = ActivationConsistencyLoss()
        >>> float(loss([a, a])), round(float(loss([a, b])), 4)
        (0.0, 0.3681)
    """

    def forward(self, views: Sequence[torch.Tensor], valid: torch.Tensor | None = None) -> torch.Tensor:
        """Return the loss; positions where ``valid`` is 0 do not count."""
        if len(views) < 2 or any(view.shape != views[0].shape for view in views):
            raise ValueError(
                f"views must be two or more tensors of one shape, got {[tuple(view.shape) for view in views]}."
            )
        stacked = torch.stack(list(views))
        stacked = stacked.float() if stacked.dtype in (torch.float16, torch.bfloat16) else stacked
        stacked = stacked.clamp_min(1e-8)
        center = stacked.detach().mean(dim=0)
        divergence = (stacked * (stacked.log() - center.log())).sum(dim=2)  # VBhw
        if valid is None:
            return divergence.mean()
        weight = valid[:, 0].to(divergence)
        return (divergence.mean(dim=0) * weight).sum() / weight.sum().clamp_min(1.0)
