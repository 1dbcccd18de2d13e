# SPDX-License-Identifier: Apache-2.0
"""Learn from knowing only which structures are in an image."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from vmfseg.utils.checks import check_choice

__all__ = ["PresenceLoss"]


class PresenceLoss(nn.Module):
    r"""Compare predicted and true presence of structures.

    .. math:: L_{weak}(\hat c, c) = |\hat c - c|_1

    (Eq. 7 of Liu et al. 2023), averaged over batch and structures, on the raw outputs of the presence head.
    Its minimizer is the median: where most images show the structure, "always 1" is optimal. ``kind="bce"`` reads the
    outputs as logits instead, and ``"balanced"`` weighs present and absent ones so that each side of the batch counts
    one half, :math:`\frac12 \overline{\ell}_{c=1} + \frac12 \overline{\ell}_{c=0}` (one side alone: its mean). The
    reference code compares one output with three labels, which torch broadcasts silently; here shapes must agree.
    What is not ``known`` (nobody looked for that structure) is left out of all means.

    Shape: ``BK`` and ``BK`` -> scalar; likewise with tiles behind, ``BKHW``.

    Args:
        kind: ``"l1"`` (paper), ``"bce"`` or ``"balanced"``.

    Example:
        >>> PresenceLoss()(torch.tensor([[0.5, 1.0]]), torch.tensor([[1.0, 0.0]]))
        tensor(0.7500)
        >>> PresenceLoss()(torch.zeros(4, 1), torch.zeros(4, 3))
        Traceback (most recent call last):
        ValueError: presence must have the shape of the prediction (4, 1), got (4, 3). Use a head with 3 outputs.
    """

    def __init__(self, kind: str = "l1") -> None:
        super().__init__()
        check_choice("kind", kind, ("l1", "bce", "balanced"))
        self.kind = kind

    def forward(
        self, prediction: torch.Tensor, presence: torch.Tensor, known: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the loss.

        Args:
            prediction: of the presence head.
            presence: whether each structure is there.
            known: ``BK`` Boolean, of which structures that is known; default all.
        """
        if prediction.shape != presence.shape:
            raise ValueError(
                f"presence must have the shape of the prediction {tuple(prediction.shape)}, "
                f"got {tuple(presence.shape)}. Use a head with {presence.shape[-1] if presence.ndim else 1} outputs."
            )
        target = presence.to(prediction.dtype)
        if known is not None:
            chosen = known.reshape(known.shape + (1,) * (target.ndim - known.ndim)).expand_as(target)
            prediction, target = prediction[chosen], target[chosen]
            if not len(target):
                return prediction.sum()  # 0, with a gradient
        if self.kind == "l1":
            return F.l1_loss(prediction, target)
        if self.kind == "bce":
            return F.binary_cross_entropy_with_logits(prediction, target)
        losses = F.binary_cross_entropy_with_logits(prediction, target, reduction="none")
        sides = [losses[side].mean() for side in (target > 0.5, target <= 0.5) if bool(side.any())]
        return torch.stack(sides).mean()
