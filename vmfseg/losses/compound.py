# SPDX-License-Identifier: Apache-2.0
"""Compound loss of the five settings: named, weighted terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from vmfseg.utils.checks import did_you_mean

from .clustering import VMFClusteringLoss
from .consistency import ActivationConsistencyLoss
from .cross_pseudo import CrossPseudoLoss
from .presence import PresenceLoss
from .segmentation import MaskedCrossEntropyLoss, MaskedDiceLoss

__all__ = ["VMFLoss"]

#: Weights of the terms in the five settings of the paper (Eq. 6, 8, 11, 13, 14).
PAPER_WEIGHTS: dict[str, dict[str, float]] = {
    "unsupervised": {"clustering": 1.0},
    "weak": {"presence": 1.0, "clustering": 1.0},
    "vmfnet": {"dice": 1.0, "reconstruction": 1.0, "clustering": 1.0},
    "vmfpseudo": {"dice": 1.0, "clustering": 1.0, "cross_pseudo": 0.1},
    "vmfweak": {"dice": 1.0, "presence": 0.5, "clustering": 1.0},
}


class VMFLoss(nn.Module):
    r"""Weighted sum of named terms, of which those that can be computed apply.

    ==================  ============================================  ===============================
    term                formula                                       needs
    ==================  ============================================  ===============================
    ``dice``            :class:`MaskedDiceLoss`                       a label
    ``cross_entropy``   :class:`MaskedCrossEntropyLoss`               a label
    ``reconstruction``  :math:`|X - \hat X|_1`, mean (Eq. 10)         parts.reconstruction
    ``clustering``      :class:`VMFClusteringLoss` (Eq. 6)            nothing more
    ``presence``        :class:`PresenceLoss` (Eq. 7)                 parts.presence, presence labels
    ``cross_pseudo``    :class:`CrossPseudoLoss` (Eq. 12)             the partner's logits
    ``copy_paste``      Dice + cross-entropy by region                mixed images, ``pasted``
    ``consistency``     :class:`ActivationConsistencyLoss`            further ``views``
    ==================  ============================================  ===============================

    A batch without a label simply has no ``dice``: so one loss serves labelled and unlabelled batches and the engine
    holds no weights. A label with fewer images than the batch belongs to the first ones (labelled and unlabelled images
    in one batch).

    Args:
        weights: weight of each term, or the name of a setting of the paper (``"unsupervised"``, ``"weak"``,
            ``"vmfnet"``, ``"vmfpseudo"``, ``"vmfweak"``). Terms without a weight are not computed.
        unlabeled_weights: other weights for batches without any label, for instance ``{"reconstruction": 0.1}``; by
            default the same.
        extra_weights: of further terms, added to ``weights``, whatever those are.
        squared_pred: Dice with squares (paper) or without (reference code).
        cross_entropy_on: ``"logits"`` or ``"probabilities"`` (reference code).
        class_weights: of the cross-entropy.
        clustering_reduction: ``"mean"`` (paper) or ``"sum"`` over the batch (reference code).
        presence_kind: ``"l1"`` (paper), ``"bce"`` or ``"balanced"``.
        presence_any: compare one output with "any structure is there" (the weakly supervised setting) instead of one
            output a structure.
        pseudo_target: ``"threshold"`` (paper) or ``"argmax"``.
        ramps: for some terms ``[start, end]``, fractions of the training: the weight is 0 before, full after, and rises
            linearly between. How far the training is says :attr:`progress`, which
            :class:`vmfseg.handlers.RampHandler` keeps; it is 1 where nobody does.

    Example:
        >>> from vmfseg.networks import VMFNet
        >>> net, x = VMFNet(channels=(4, 8, 8), num_kernels=3, hidden_channels=4), torch.rand(2, 1, 16, 16)
        >>> loss, parts = VMFLoss("vmfnet"), net(x, return_parts=True)
        >>> sorted(loss(parts, {"image": x})), sorted(loss(parts, {"image": x, "label": torch.zeros(2, 1, 16, 16)}))
        (['clustering', 'reconstruction'], ['clustering', 'dice', 'reconstruction'])
    """

    TERMS = (
        "dice", "cross_entropy", "reconstruction", "clustering", "presence", "cross_pseudo", "copy_paste",
        "consistency",
    )  # fmt: skip
    #: Which part of the network a term needs, and how to get it.
    NEEDS = {  # noqa: RUF012 - never changed
        "reconstruction": ("reconstruction", "Use VMFNet with reconstruct=True"),
        "clustering": ("kernels", "Use VMFNet"),
        "presence": ("presence", "Use VMFNet with presence='masks'"),
    }

    def __init__(
        self,
        weights: str | Mapping[str, float] = "vmfnet",
        unlabeled_weights: Mapping[str, float] | None = None,
        squared_pred: bool = True,
        cross_entropy_on: str = "logits",
        class_weights: list[float] | None = None,
        clustering_reduction: str = "mean",
        presence_kind: str = "l1",
        presence_any: bool = False,
        pseudo_target: str = "threshold",
        ramps: Mapping[str, Sequence[float]] | None = None,
        extra_weights: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.progress = 1.0
        self.ramps = self._checked_ramps(ramps or {})
        if isinstance(weights, str):
            if weights not in PAPER_WEIGHTS:
                raise ValueError(
                    f"weights must be a mapping or one of {', '.join(PAPER_WEIGHTS)}, got {weights!r}."
                    f"{did_you_mean(weights, PAPER_WEIGHTS)}"
                )
            weights = PAPER_WEIGHTS[weights]
        self.weights = self._checked("weights", weights) | self._checked("extra_weights", extra_weights or {})
        self.unlabeled_weights = {**self.weights, **self._checked("unlabeled_weights", unlabeled_weights or {})}
        self.dice = MaskedDiceLoss(squared_pred=squared_pred)
        self.cross_entropy = MaskedCrossEntropyLoss(cross_entropy_on, class_weights)
        self.clustering = VMFClusteringLoss(clustering_reduction, one_minus=clustering_reduction == "sum")
        self.presence = PresenceLoss(presence_kind)
        self.presence_any = presence_any
        self.cross_pseudo = CrossPseudoLoss(pseudo_target, squared_pred)
        self.consistency = ActivationConsistencyLoss()

    def forward(self, parts: Any, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the weighted terms that apply.

        Args:
            parts: of the network, see :func:`vmfseg.networks.network_parts`.
            batch: ``image`` ``BCHW[D]``, what the network saw, and where there are any: ``label``, class numbers
                ``B1HW[D]`` of all images or of the first ones; ``presence`` ``BK``, likewise; ``annotated`` ``BN``,
                which classes each labelled image was annotated for; ``partner``, logits of the other network; what the
                parts of :mod:`vmfseg.engines.levers` add: ``pasted``, ``views`` and ``valid``.

        Raises:
            ValueError: a term has a weight but the network lacks the part it needs; shapes that do not fit.
        """
        image, label, presence = batch["image"], batch.get("label"), batch.get("presence")
        weights = self.weights if label is not None else self.unlabeled_weights
        self.check_parts(parts)
        terms: dict[str, torch.Tensor] = {}
        if label is not None:
            if label.shape[0] > parts.logits.shape[0]:
                raise ValueError(
                    f"label must not have more images than the batch, got {label.shape[0]} for "
                    f"{parts.logits.shape[0]}. Pass the labels of the images that the network saw."
                )
            logits, annotated = parts.logits[: label.shape[0]], batch.get("annotated")
            annotated = None if annotated is None else annotated[: label.shape[0]]
            if weights.get("dice"):
                terms["dice"] = self.dice(logits, label, annotated)
            if weights.get("cross_entropy"):
                terms["cross_entropy"] = self.cross_entropy(logits, label, annotated)
        if weights.get("reconstruction"):
            if image.shape != parts.reconstruction.shape:  # torch would broadcast
                raise ValueError(
                    f"image must have the shape of the reconstruction {tuple(parts.reconstruction.shape)}, got "
                    f"{tuple(image.shape)}. Pass what the network saw."
                )
            terms["reconstruction"] = F.l1_loss(parts.reconstruction, image)
        if weights.get("clustering"):
            terms["clustering"] = self.clustering(parts.features, parts.kernels)
        if weights.get("presence") and presence is not None:
            known = batch.get("annotated")
            known = None if known is None else known[: presence.shape[0], 1:]
            if self.presence_any:
                presence = presence.any(dim=1, keepdim=True)
                if known is not None:  # what was seen is there, what was not looked for may be
                    whole = known.all(dim=1)
                    known = presence | whole.reshape(-1, *[1] * (presence.ndim - 1))
            terms["presence"] = self.presence(parts.presence[: presence.shape[0]], presence, known)
        if weights.get("cross_pseudo") and batch.get("partner") is not None:
            terms["cross_pseudo"] = self.cross_pseudo(parts.logits, batch["partner"])
        if weights.get("copy_paste") and batch.get("pasted") is not None:
            terms["copy_paste"] = self.copy_paste(parts.logits, batch["pasted"])
        if weights.get("consistency") and batch.get("views") is not None:
            terms["consistency"] = self.consistency(batch["views"], batch.get("valid"))
        # a term at the foot of its ramp is computed all the same, so that every parameter has a gradient (DDP)
        return {name: weights[name] * self.ramp(name) * value for name, value in terms.items()}

    def copy_paste(self, logits: torch.Tensor, pasted: Any) -> torch.Tensor:
        r"""Return :math:`\sum_r w_r (L_{Dice}^r + L_{CE}^r)` over the two regions of mixed images.

        The weight is 1 where the label is a person's and ``other_weight`` where it is a teacher's (BCP, see
        :class:`vmfseg.transforms.BidirectionalCopyPaste`).
        """
        terms = []
        for region, annotated, weight in (
            (pasted.own, pasted.own_annotated, 1.0),
            (pasted.other, pasted.other_annotated, pasted.other_weight),
        ):
            dice = self.dice(logits, pasted.label, annotated, region)
            terms.append(weight * (dice + self.cross_entropy(logits, pasted.label, annotated, region)))
        return torch.stack(terms).sum()

    def check_parts(self, parts: Any) -> None:
        """Refuse parts that lack what a term with a weight needs, by name.

        Raises:
            ValueError: the term, the part and the cure.
        """
        for term, (part, cure) in self.NEEDS.items():
            weight = self.weights.get(term) or self.unlabeled_weights.get(term)
            if weight and getattr(parts, part, None) is None:
                raise ValueError(
                    f"weights[{term!r}] must be 0 for a network without {part}, got {weight}. {cure}, or use "
                    "loss_weights of dice and cross_entropy alone."
                )

    def ramp(self, term: str) -> float:
        """Return the factor of a term's weight at :attr:`progress`."""
        start, end = self.ramps.get(term, (-1.0, 0.0))
        return min(1.0, max(0.0, (self.progress - start) / (end - start)))

    def _checked_ramps(self, ramps: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
        for term, ends in ramps.items():
            self._check_term("ramps", term)
            if len(ends) != 2 or not 0 <= ends[0] < ends[1] <= 1:
                raise ValueError(
                    f"ramps[{term!r}] must be two fractions of the training, start before end, got {list(ends)}. "
                    "For instance [0.0, 0.5]."
                )
        return {term: (float(ends[0]), float(ends[1])) for term, ends in ramps.items()}

    def _check_term(self, name: str, term: str) -> None:
        if term not in self.TERMS:
            hint = did_you_mean(term, self.TERMS)
            raise ValueError(f"{name} must name terms of {', '.join(self.TERMS)}, got {term!r}.{hint}")

    def _checked(self, name: str, weights: Mapping[str, float]) -> dict[str, float]:
        for term, weight in weights.items():
            self._check_term(name, term)
            if not (isinstance(weight, int | float) and 0 <= weight < float("inf")):
                raise ValueError(
                    f"{name}[{term!r}] must be a finite number of at least 0, got {weight}. 0 switches the term off."
                )
        return {term: float(weight) for term, weight in weights.items()}
