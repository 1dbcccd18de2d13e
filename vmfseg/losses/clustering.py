# SPDX-License-Identifier: Apache-2.0
"""Clustering loss: pull the kernels to the centers of the feature clusters."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from vmfseg.utils.checks import check_channels, check_choice

__all__ = ["VMFClusteringLoss"]


class VMFClusteringLoss(nn.Module):
    r"""Cosine of every feature to its nearest kernel.

    .. math:: L_{clu}(\mu, Z) = -\frac{1}{HW} \sum_p \max_j \mu_j^\top z_p

    (Eq. 6 of Liu et al. 2023), averaged over the batch. The features are fixed: no gradient reaches the encoder, in any
    setting. The reference code computes :math:`1 - \max` and *sums* over the batch, so that its weight grows with the
    batch size: ``reduction="sum", one_minus=True`` reproduces that.

    Shape: features ``BFHW[D]``, kernels ``JF`` -> scalar (``B`` with ``reduction="none"``).

    Args:
        reduction: over the batch, ``"mean"``, ``"sum"`` or ``"none"``.
        one_minus: add the constant 1, so that the loss is never negative.

    Example:
        >>> features = torch.tensor([2.0, 0.0]).view(1, 2, 1, 1)
        >>> VMFClusteringLoss()(features, torch.tensor([[0.0, 1.0], [3.0, 0.0]]))
        tensor(-1.)
    """

    def __init__(self, reduction: str = "mean", one_minus: bool = False) -> None:
        super().__init__()
        check_choice("reduction", reduction, ("mean", "sum", "none"))
        self.reduction, self.one_minus = reduction, one_minus

    def forward(self, features: torch.Tensor, kernels: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        if kernels.ndim != 2:
            raise ValueError(f"kernels must have shape (J, F), got {tuple(kernels.shape)}. Pass unit_kernels().")
        check_channels("features", features, kernels.shape[1])
        z = features.detach().flatten(2)
        z = z.float() if z.dtype in (torch.float16, torch.bfloat16) else z
        unit = F.normalize(kernels.to(z.dtype), dim=1)
        with torch.autocast(z.device.type, enabled=False):
            cosine = torch.matmul(unit, F.normalize(z, dim=1))
        loss = float(self.one_minus) - cosine.amax(dim=1).mean(dim=1)
        if self.reduction == "none":
            return loss
        return loss.mean() if self.reduction == "mean" else loss.sum()
