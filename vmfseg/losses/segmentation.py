# SPDX-License-Identifier: Apache-2.0
"""Dice and cross-entropy of MONAI and torch, told which classes each image was annotated for."""

from __future__ import annotations

import torch
from monai.losses import DiceLoss
from monai.networks import one_hot
from torch import nn
from torch.nn import functional as F

from vmfseg.utils.checks import check_choice

__all__ = ["MaskedCrossEntropyLoss", "MaskedDiceLoss", "check_label"]


class MaskedDiceLoss(nn.Module):
    r"""MONAI's soft Dice loss, pooled over the batch and *summed* over the classes, background included.

    .. math:: L_{Dice} = \sum_{n=1}^{N} 1 - \frac{2 \sum p_n y_n + \epsilon}{\sum p_n^2 + \sum y_n^2 + \epsilon}

    with :math:`p = \sigma(\text{logits})`, sums over batch and positions, :math:`\epsilon = 0.1`. The squares are the
    paper's (it cites V-Net); the reference code has none: ``squared_pred=False`` equals it to the digit. The sum, not
    the mean, over classes is the reference's and sets the weight against the other terms.

    A class that an image was not annotated for takes no part, and neither does the background of that image: a voxel
    labelled 0 may be the missing structure.

    Shape: logits ``BNHW[D]``, label ``B1HW[D]`` of class numbers, annotated ``BN``, region ``B1HW[D]`` -> scalar. Sums
    run over the positions of the region, by default over all.

    Args:
        squared_pred: squares in the denominator.
        softmax: classes exclude each other, instead of one sigmoid each.
        smooth: :math:`\epsilon`.
    """

    def __init__(self, squared_pred: bool = True, softmax: bool = False, smooth: float = 0.1) -> None:
        super().__init__()
        self.softmax = softmax
        self.dice = DiceLoss(squared_pred=squared_pred, batch=True, reduction="sum", smooth_nr=smooth, smooth_dr=smooth)

    def forward(
        self,
        logits: torch.Tensor,
        label: torch.Tensor,
        annotated: torch.Tensor | None = None,
        region: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the loss."""
        if region is None:
            check_label(logits, label, annotated)
        scores = _at_least_float32(logits)
        probabilities = scores.softmax(dim=1) if self.softmax else scores.sigmoid()
        target = one_hot(label.long(), logits.shape[1], dtype=probabilities.dtype)
        if region is not None:
            probabilities, target = probabilities * region, target * region
        return self.of_probabilities(probabilities, target, annotated)

    def of_probabilities(
        self, probabilities: torch.Tensor, target: torch.Tensor, annotated: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the loss of probabilities against masks of the same shape ``BNHW[D]``."""
        probabilities, target = _at_least_float32(probabilities), _at_least_float32(target)
        if annotated is not None:
            _check_annotated(annotated, probabilities)
            keep = _trusted(annotated).to(probabilities.dtype)
            keep = keep.view(*keep.shape, *[1] * (probabilities.ndim - 2))
            probabilities, target = probabilities * keep, target * keep
        loss: torch.Tensor = self.dice(probabilities, target)
        return loss


class MaskedCrossEntropyLoss(nn.Module):
    r"""Cross-entropy over classes, mean over positions.

    :math:`-\log \text{softmax}(\text{logits})_y`. For an image that lacks annotations a voxel labelled 0 is background
    *or* one of the missing classes, so their probabilities are added before the logarithm.

    ``on="probabilities"`` is what the reference code computes under the name of focal loss: it takes the sigmoid
    outputs as if they were logits, which leaves 0.7437 for a perfect prediction of four classes.

    Shape: logits ``BNHW[D]``, label ``B1HW[D]``, annotated ``BN``, region ``B1HW[D]`` -> scalar. The mean is over the
    positions of the region, by default over all; it is 0 for an empty one.

    Args:
        on: ``"logits"`` or ``"probabilities"``.
        class_weights: weight of each class, or ``None``.
    """

    class_weights: torch.Tensor | None

    def __init__(self, on: str = "logits", class_weights: list[float] | None = None) -> None:
        super().__init__()
        check_choice("on", on, ("logits", "probabilities"))
        self.on = on
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(
        self,
        logits: torch.Tensor,
        label: torch.Tensor,
        annotated: torch.Tensor | None = None,
        region: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the loss."""
        if region is None:
            check_label(logits, label, annotated)
        scores = _at_least_float32(logits)
        scores = scores.sigmoid() if self.on == "probabilities" else scores
        if annotated is not None and not bool(annotated.all()):
            missing = ~annotated.bool()
            missing[:, 0] = False
            rows = missing.any(dim=1)
            missing = missing.view(*missing.shape, *[1] * (scores.ndim - 2))
            pooled = torch.cat([scores[:, :1], scores[:, 1:].masked_fill(~missing[:, 1:], -torch.inf)], dim=1)
            background = pooled.logsumexp(dim=1, keepdim=True)
            others = scores[:, 1:].masked_fill(missing[:, 1:], -torch.inf)
            merged = torch.cat([background, others], dim=1)
            scores = torch.where(rows.view(-1, *[1] * (scores.ndim - 1)), merged, scores)
        weights = self.class_weights
        if weights is not None and len(weights) != scores.shape[1]:
            raise ValueError(
                f"class_weights must be one weight for each of the {scores.shape[1]} classes, got {len(weights)}. "
                "Background comes first."
            )
        weight = weights.to(scores.dtype) if weights is not None else None
        if region is None:
            return F.cross_entropy(scores, label[:, 0].long(), weight=weight)
        inside = region[:, 0].bool()
        target = torch.where(inside, label[:, 0].long(), -100)  # torch's word for "does not count"
        total = F.cross_entropy(scores, target, weight=weight, reduction="sum", ignore_index=-100)
        share = inside.to(scores.dtype) if weight is None else weight[label[:, 0].long()] * inside
        return total / share.sum().clamp_min(1.0)


def check_label(logits: torch.Tensor, label: torch.Tensor, annotated: torch.Tensor | None = None) -> None:
    """Refuse labels of another shape, with values that are no class, or of a class that was not annotated."""
    if label.shape != (logits.shape[0], 1, *logits.shape[2:]):
        raise ValueError(
            f"label must have shape {(logits.shape[0], 1, *logits.shape[2:])}, one class number a position, "
            f"got {tuple(label.shape)}. Pass class numbers, not one-hot masks, at the size of the image."
        )
    low, high = float(label.min()), float(label.max())
    fractional = label.is_floating_point() and bool((label != label.round()).any())
    if not (low >= 0 and high < logits.shape[1]) or fractional:
        found = "fractional values" if fractional else f"values from {low:g} to {high:g}"
        raise ValueError(
            f"label must hold class numbers from 0 to {logits.shape[1] - 1}, got {found}. Map the labels to them."
        )
    if annotated is not None:
        _check_annotated(annotated, logits)
        for b, n in torch.nonzero(~annotated.bool()).tolist():
            if n > 0 and bool((label[b] == n).any()):
                raise ValueError(
                    f"label must hold only annotated classes, got class {n} in image {b}, which is not annotated for "
                    "it. Correct annotated, or set those voxels to 0."
                )


def _check_annotated(annotated: torch.Tensor, scores: torch.Tensor) -> None:
    if annotated.shape != scores.shape[:2]:
        raise ValueError(
            f"annotated must have shape {tuple(scores.shape[:2])}, one flag for each image and class, background "
            f"included, got {tuple(annotated.shape)}. Pass None if every class is annotated."
        )


def _at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """A sum over the positions of a batch overflows float16 from 65 504 of them."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _trusted(annotated: torch.Tensor) -> torch.Tensor:
    """Background counts only where every class was annotated."""
    trusted = annotated.bool().clone()
    trusted[:, 0] = trusted.all(dim=1)
    return trusted
