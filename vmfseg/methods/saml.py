# SPDX-License-Identifier: Apache-2.0
r"""SAML: meta-learning over domains with compact and smooth shapes.

Liu, Dou, Heng. Shape-aware Meta-learning for Generalizing Prostate MRI Segmentation to Unseen Domains. MICCAI 2020.

In the scheme of :class:`vmfseg.methods.MetaTrainer` (section 2.1 of the paper) with step size :math:`10^{-4}`, the
meta-train loss is Dice and the meta-test loss

.. math:: L_{test} = L_{Dice} + 1.0 \, L_{compact} + 0.005 \, L_{smooth}

:math:`L_{compact}` (section 2.2) is the inverse isoperimetric quotient of the predicted masks, summed over the images;
:math:`L_{smooth}` (section 2.3) the triplet loss of embeddings of contours and of rings around them, over both sets of
domains. Sections are named because the print, with its equation numbers, was not at hand.

Departures from the released code (TensorFlow 1): (1) the U-Net of the other methods, with skip connections (released:
each up-stage is concatenated with itself), single slices, augmentation of the data's transforms. (2) One optimizer for
the sum of both losses (released: three updates at 1e-4, 1e-3 and 1e-3). (3) Contour and ring of *every* image are
samples of the triplet loss, for each class (released: five samples of one class). (4) Compactness is a prior of discs:
``compact`` says for which unions of classes it holds. Test time uses batch norm's running statistics.
"""

# no `from __future__ import annotations` here: TorchScript reads the types of forward at run time
from collections.abc import Mapping
from typing import Any, Optional, Sequence, Union  # noqa: UP035 - TorchScript

import torch
from torch import nn
from torch.nn import functional as F

from vmfseg.networks.blocks import initialize_weights
from vmfseg.utils.seeds import seeded

from .meta import MetaTrainer
from .objective import MethodLoss
from .outputs import MethodParts
from .shape_terms import compactness, contours_and_rings, semi_hard_triplets
from .unet import SegmentationUNet

__all__ = ["SAMLLoss", "SAMLTrainer", "SAMLUNet"]


class SAMLUNet(SegmentationUNet):
    """:class:`SegmentationUNet` with embeddings of regions: mean features of a region, then a small perceptron.

    The features are those of the last two levels of the way up, the coarser one enlarged; the perceptron has 24 and 16
    outputs. In prediction it is a plain U-Net.

    Shape: ``BCHW`` -> logits ``BNHW``; with ``return_parts=True`` a :class:`MethodParts`, with embeddings ``B R 16`` if
    ``regions`` ``BRHW`` (masks) are given.

    Args:
        in_channels, out_channels, channels, seed: as for :class:`SegmentationUNet`.

    Example:
        >>> net, x = SAMLUNet(channels=(4, 8, 8)), torch.rand(2, 1, 16, 16)
        >>> net(x, return_parts=True, regions=torch.ones(2, 3, 16, 16)).embeddings.shape
        torch.Size([2, 3, 16])
    """

    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 4,
        channels: Sequence[int] = (64, 128, 256, 512, 512),
        seed: Optional[int] = None,  # noqa: UP045 - TorchScript
    ) -> None:
        super().__init__(in_channels, out_channels, channels, seed)
        width = self.encoder.feature_channels + channels[0]
        with seeded(seed, "embedding"):
            self.embedding = nn.Sequential(
                nn.Linear(width, 24), nn.LeakyReLU(0.2), nn.Linear(24, 16), nn.LeakyReLU(0.2)
            )
            self.embedding.apply(initialize_weights)

    def forward(
        self,
        x: torch.Tensor,
        return_parts: bool = False,
        regions: Optional[torch.Tensor] = None,  # noqa: UP045 - TorchScript
    ) -> Union[torch.Tensor, MethodParts]:  # noqa: UP007 - TorchScript
        """Return the logits of ``x``, or all parts."""
        maps = self.encoder.pyramid(x)
        features = self.up(maps[0], maps[1])
        logits: torch.Tensor = self.out(features)
        if not return_parts:
            return logits
        embeddings: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
        if regions is not None:
            coarse = F.interpolate(maps[0], scale_factor=2.0, mode="bilinear", align_corners=False)
            both = torch.cat([coarse, features], dim=1).flatten(2)
            flat = regions.flatten(2)
            sums = torch.matmul(flat, both.transpose(1, 2))
            embeddings = self.embedding(sums / flat.sum(dim=2, keepdim=True).clamp_min(1.0))
        return MethodParts(logits, features, embeddings=embeddings)


class SAMLLoss(MethodLoss):
    """Dice of SAML and, for meta-test images, compactness and smoothness.

    Args:
        weights: of the terms ``dice``, ``cross_entropy``, ``compactness``, ``smoothness``; by default the paper's 1, 0,
            1 and 0.005.
        compact: unions of classes that are discs, for instance ``[[1], [3], [1, 2]]`` for hearts (LV, RV, LV with
            myocardium); ``None`` for the union of all foreground classes.
        length_factor: see :func:`compactness`.
        margin: of the triplet loss.
        class_mean: mean of Dice over the classes as in the paper, in place of the sum.
        **kwargs: as for :class:`MethodLoss`.
    """

    OWN = ("compactness", "smoothness")
    TERMS = (*MethodLoss.TERMS, *OWN)
    DEFAULTS = {"dice": 1.0, "compactness": 1.0, "smoothness": 0.005}  # noqa: RUF012 - never changed

    def __init__(
        self,
        weights: Optional[Mapping[str, float]] = None,  # noqa: UP045
        compact: Optional[Sequence[Sequence[int]]] = None,  # noqa: UP045
        length_factor: float = 0.01,
        margin: float = 10.0,
        class_mean: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(weights, **kwargs)
        self.compact = None if compact is None else [[int(n) for n in union] for union in compact]
        self.length_factor, self.margin, self.class_mean = length_factor, margin, class_mean

    def forward(self, parts: Any, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the weighted terms that apply."""
        terms = super().forward(parts, batch)
        if self.class_mean and "dice" in terms:
            terms["dice"] = terms["dice"] / parts.logits.shape[1]
        return terms

    def own_terms(self, parts: Any, batch: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return compactness and smoothness of meta-test images."""
        terms: dict[str, torch.Tensor] = {}
        if "meta_train" not in batch or batch.get("label") is None:
            return terms
        classes = parts.logits.shape[1]
        if "compactness" in wanted:
            probabilities = parts.logits.softmax(dim=1)
            unions = [list(range(1, classes))] if self.compact is None else self.compact
            if not all(0 < n < classes for union in unions for n in union):
                raise ValueError(f"compact must name classes from 1 to {classes - 1}, got {unions}.")
            masks = [probabilities[:, union].sum(dim=1) for union in unions]
            terms["compactness"] = torch.stack([compactness(mask, self.length_factor).sum() for mask in masks]).mean()
        if "smoothness" in wanted:
            terms["smoothness"] = self._smoothness([batch["meta_train"], (parts, batch)], classes)
        return terms

    def _smoothness(self, passes: Sequence[Any], classes: int) -> torch.Tensor:
        embeddings = torch.cat([parts.embeddings for parts, _ in passes])
        present = torch.cat([batch["regions"].flatten(2).any(dim=2) for _, batch in passes])
        losses = []
        for n in range(classes - 1):
            both = [(0, n), (1, n + classes - 1)]  # contour, ring
            samples = torch.cat([embeddings[present[:, r], r] for _, r in both])
            kinds = torch.cat([torch.full((int(present[:, r].sum()),), kind) for kind, r in both])
            losses.append(semi_hard_triplets(samples, kinds.to(samples.device), self.margin))
        return torch.stack(losses).mean()


class SAMLTrainer(MetaTrainer):
    """Meta-learning of SAML: :class:`MetaTrainer` with first-order gradients, clipped, and regions along contours.

    Args:
        step_size, second_order, max_norm: see :class:`MetaTrainer`.
        ring: width of the ring around a contour in pixels.
        **kwargs: as for :class:`MetaTrainer`.
    """

    def __init__(
        self,
        step_size: float = 1e-4,
        second_order: bool = False,
        max_norm: Optional[float] = 10.0,  # noqa: UP045
        ring: int = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(step_size=step_size, second_order=second_order, max_norm=max_norm, **kwargs)
        self.ring = ring

    def compute_terms(self, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the logits and the weighted terms for a labelled batch that is on the device."""
        if batch.get("label") is None:
            raise ValueError("SAML must have labelled batches only, got one without label. Leave out unlabelled data.")
        regions = contours_and_rings(batch["label"], self.network.out_channels, self.ring)
        return super().compute_terms({**batch, "regions": regions})

    def network_options(self, batch: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return the regions whose embeddings the network is to make."""
        return {"regions": batch["regions"]}
