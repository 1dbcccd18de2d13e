# SPDX-License-Identifier: Apache-2.0
"""Cross pseudo supervision: each of two networks is trained on the hard masks of the other."""

from __future__ import annotations

import torch
from monai.networks import one_hot
from torch import nn

from vmfseg.utils.checks import check_choice

from .segmentation import MaskedDiceLoss

__all__ = ["CrossPseudoLoss"]


class CrossPseudoLoss(nn.Module):
    r"""Dice of a student against the hard mask of its teacher.

    .. math:: L_{CPS} = L_{Dice}(\mathbb 1[\sigma(\text{teacher}) > \tfrac12], \sigma(\text{student}))

    (Eq. 12 of Liu et al. 2023.) Channel c teaches channel c and no gradient reaches the teacher. In the reference code
    the channels of right ventricle and background are taught by the partner's myocardium; that is not reproduced.

    Shape: ``BNHW[D]`` and ``BNHW[D]`` -> scalar.

    Args:
        target: ``"threshold"`` (each channel above one half, paper) or ``"argmax"`` (the winning class only).
        squared_pred: see :class:`MaskedDiceLoss`.

    Example:
        >>> sure = torch.tensor([9.0, -9.0]).view(1, 2, 1, 1)
        >>> bool(CrossPseudoLoss()(sure, sure) < 1e-3 < CrossPseudoLoss()(sure, -sure))
        True
    """

    def __init__(self, target: str = "threshold", squared_pred: bool = True) -> None:
        super().__init__()
        check_choice("target", target, ("threshold", "argmax"))
        self.target = target
        self.dice = MaskedDiceLoss(squared_pred=squared_pred)

    def forward(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        """Return the loss of the logits ``student`` taught by the logits ``teacher``."""
        if student.shape != teacher.shape:
            raise ValueError(
                f"teacher must have the shape of the student {tuple(student.shape)}, got {tuple(teacher.shape)}. "
                "Use two networks with the same classes on the same images."
            )
        with torch.no_grad():
            if self.target == "threshold":
                mask = (teacher.detach() > 0).to(student.dtype)
            else:
                winner = teacher.detach().argmax(dim=1, keepdim=True)
                mask = one_hot(winner, teacher.shape[1], dtype=student.dtype)
        return self.dice.of_probabilities(student.sigmoid(), mask)
