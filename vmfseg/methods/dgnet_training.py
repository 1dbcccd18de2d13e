# SPDX-License-Identifier: Apache-2.0
"""Loss and trainer of DGNet, see :mod:`vmfseg.methods.dgnet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from vmfseg.utils.checks import did_you_mean

from .domains import domains_of
from .meta import MetaTrainer
from .objective import MethodLoss
from .regularizers import hsic

__all__ = ["DGNetLoss", "DGNetTrainer"]

#: The terms of the meta-test.
META_TEST = ("dice", "cross_entropy", "reconstruction", "domain")


class DGNetLoss(MethodLoss):
    """The terms of DGNet for meta-train and meta-test images.

    ``style`` L1 of the style encoded again; ``kl`` the divergence of both codes, summed over them; ``hsic`` their
    dependence; ``domain`` the cross-entropy of the source domains; ``rank`` :func:`low_rank` of the softmax of the
    content maps beyond the number of classes. Meta-test images (``batch["meta_train"]`` is there) give only dice,
    cross_entropy, reconstruction and domain.

    Args:
        domains: names of the source domains, in the order of the classifier's outputs.
        weights: of the terms; by default the released code's.
        **kwargs: as for :class:`MethodLoss`.
    """

    OWN = ("style", "kl", "hsic", "domain", "rank")
    TERMS = (*MethodLoss.TERMS, *OWN)
    DEFAULTS = {  # noqa: RUF012 - never changed
        "dice": 5.0, "cross_entropy": 5.0, "reconstruction": 1.0, "style": 0.1, "kl": 0.1, "hsic": 0.1, "domain": 1.0,
        "rank": 0.1,
    }  # fmt: skip
    NEEDS = {  # noqa: RUF012 - never changed
        **MethodLoss.NEEDS, "style": ("style", "Use DGNet"), "kl": ("mean", "Use DGNet"),
        "hsic": ("style", "Use DGNet"), "domain": ("domain_logits", "Use DGNet"), "rank": ("activations", "Use DGNet"),
    }  # fmt: skip

    def __init__(
        self,
        domains: Sequence[str] = (),
        weights: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(weights, **kwargs)
        self.domains = tuple(str(domain) for domain in domains)
        if self.weights.get("domain") and len(self.domains) < 2:
            raise ValueError(
                f"domains must name the source domains, at least two, got {list(self.domains)}. Or weigh domain 0."
            )

    def forward(self, parts: Any, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the weighted terms that apply."""
        terms = super().forward(parts, batch)
        return {k: v for k, v in terms.items() if k in META_TEST} if "meta_train" in batch else terms

    def own_terms(self, parts: Any, batch: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the terms of the codes and of the content's rank."""
        wanted = [name for name in wanted if name in META_TEST] if "meta_train" in batch else wanted
        terms = super().own_terms(parts, batch, wanted)
        if "hsic" in wanted:
            terms["hsic"] = hsic(*parts.style.chunk(2, dim=1))
        if "domain" in wanted:
            terms["domain"] = F.cross_entropy(parts.domain_logits, self._numbers(parts.domain_logits, batch))
        return terms

    def _numbers(self, scores: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
        names = domains_of(batch)
        for name in names:
            if name not in self.domains:
                raise ValueError(
                    f"domain of an image must be one of {', '.join(self.domains)}, got {name!r}."
                    f"{did_you_mean(name, self.domains)} Give DGNetLoss all source domains."
                )
        if scores.shape[1] < len(self.domains):
            raise ValueError(f"num_domains of DGNet must be at least {len(self.domains)}, got {scores.shape[1]}.")
        return torch.tensor([self.domains.index(name) for name in names], device=scores.device)


class DGNetTrainer(MetaTrainer):
    """Meta-learning of DGNet: :class:`MetaTrainer` with its step size and the layers that its inner step moves.

    Args:
        step_size, second_order, inner: see :class:`MetaTrainer`.
        **kwargs: as for :class:`MetaTrainer`.
    """

    def __init__(
        self,
        step_size: float = 1e-3,
        second_order: bool = True,
        inner: Sequence[str] = ("content.last", "style", "domain", "decoder"),
        **kwargs: Any,
    ) -> None:
        super().__init__(step_size=step_size, second_order=second_order, inner=inner, **kwargs)
