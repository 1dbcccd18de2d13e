# SPDX-License-Identifier: Apache-2.0
"""Losses of the compared methods: Dice, cross-entropy and reconstruction as in every method here, and further terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from vmfseg.losses import MaskedDiceLoss, VMFLoss
from vmfseg.utils.seeds import torch_rng

from .regularizers import gaussian_kl, low_rank

__all__ = ["MethodLoss"]


class MethodLoss(VMFLoss):
    r"""Weighted sum of named terms: those of :class:`vmfseg.losses.VMFLoss` that need no kernels, and a method's own.

    Dice and cross-entropy are the ones of all methods here, so that a comparison is one of methods, not of losses: Dice
    of one sigmoid a class, summed over the classes, and the cross-entropy of their softmax. ``softmax=True`` takes the
    softmax for Dice, too, as most of the released codes do; then probabilities are to be read off by a softmax.

    Args:
        weights: weight of each term; ``None`` takes :attr:`DEFAULTS`.
        unlabeled_weights: other weights for batches without any label.
        squared_pred: squares in the denominator of Dice.
        softmax: Dice of the softmax.
        class_weights: of the cross-entropy.
        ramps: see :class:`vmfseg.losses.VMFLoss`.
        pixels: of the matrix whose rank is penalized.
    """

    TERMS: tuple[str, ...] = ("dice", "cross_entropy", "reconstruction")  # type: ignore[assignment]
    #: The terms of the method alone; they stand in TERMS, too.
    OWN: ClassVar[tuple[str, ...]] = ()
    #: What ``kl`` does with the elements of a latent variable, see :func:`gaussian_kl`.
    KL: ClassVar[str] = "sum"
    #: The weights of the paper.
    DEFAULTS: ClassVar[dict[str, float]] = {"dice": 1.0, "cross_entropy": 1.0}
    NEEDS = {"reconstruction": ("reconstruction", "Use SDNet or DGNet")}  # noqa: RUF012 - never changed

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        unlabeled_weights: Mapping[str, float] | None = None,
        squared_pred: bool = False,
        softmax: bool = False,
        class_weights: list[float] | None = None,
        ramps: Mapping[str, Sequence[float]] | None = None,
        pixels: int = 2000,
    ) -> None:
        super().__init__(
            self.DEFAULTS if weights is None else weights, unlabeled_weights, squared_pred,
            class_weights=class_weights, ramps=ramps,
        )  # fmt: skip
        self.dice = MaskedDiceLoss(squared_pred=squared_pred, softmax=softmax)
        self.pixels = pixels

    def forward(self, parts: Any, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the weighted terms that apply, see :meth:`vmfseg.losses.VMFLoss.forward`."""
        terms = super().forward(parts, batch)
        weights = self.weights if batch.get("label") is not None else self.unlabeled_weights
        wanted = [name for name in self.OWN if weights.get(name)]
        own = self.own_terms(parts, batch, wanted)
        return {**terms, **{name: weights[name] * self.ramp(name) * own[name] for name in self.OWN if name in own}}

    def own_terms(self, parts: Any, batch: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the method's own terms without their weights, of those that are ``wanted``.

        Here those that several methods have: ``style``, L1 of the style and the style encoded again; ``kl``,
        :func:`gaussian_kl` of the latent variable; ``rank``, :func:`low_rank` beyond the number of classes of the part
        that :attr:`NEEDS` names.
        """
        terms: dict[str, torch.Tensor] = {}
        if "style" in wanted:
            terms["style"] = F.l1_loss(parts.style_again, parts.style)
        if "kl" in wanted:
            terms["kl"] = gaussian_kl(parts.mean, parts.log_variance, self.KL)
        if "rank" in wanted:
            features = getattr(parts, self.NEEDS["rank"][0])
            generator = torch_rng(*batch.get("draw", (0,)), "pixels")
            terms["rank"] = low_rank(features, parts.logits.shape[1], self.pixels, generator)
        return terms
