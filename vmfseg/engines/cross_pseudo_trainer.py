# SPDX-License-Identifier: Apache-2.0
"""Trainer for two networks that teach each other by pseudo masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from monai.utils.enums import CommonKeys as Keys

from vmfseg.networks import network_parts

from .semi_supervised import SemiSupervisedTrainer

__all__ = ["CrossPseudoTrainer"]


class CrossPseudoTrainer(SemiSupervisedTrainer):
    r"""Train two networks at once; each is taught by the other's masks (vMFPseudo, Eq. 13 of Liu et al. 2023).

    Both see the same batch; the pseudo masks come from the same forward pass, before either is updated; each has its
    own loss and optimizer. No weight is shared, so one backward pass of the sum gives each its own gradient.
    ``engine.network`` and ``engine.optimizer`` are the first ones, so MONAI's handlers work; ``engine.networks`` and
    ``engine.optimizers`` are all. The terms of the second network are named with a prime (``dice'``).

    Args:
        networks: the two networks, initialized differently.
        optimizers: one for each.
        **kwargs: as for :class:`SemiSupervisedTrainer`; the loss finds the other network's logits as
            ``batch["partner"]``.
    """

    def __init__(
        self, networks: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], **kwargs: Any
    ) -> None:
        if len(networks) != 2 or len(optimizers) != 2 or networks[0] is networks[1]:
            raise ValueError(
                f"networks and optimizers must be two different ones each, got {len(networks)} and {len(optimizers)}."
            )
        super().__init__(network=networks[0], optimizer=optimizers[0], **kwargs)
        self.networks, self.optimizers = list(networks), list(optimizers)

    def compute_terms(self, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the first network's logits and the terms of both networks."""
        first, second = (network_parts(network, batch[Keys.IMAGE], self.inferer) for network in self.networks)
        terms = dict(self.loss_function(first, {**batch, "partner": second.logits.detach()}))
        others = self.loss_function(second, {**batch, "partner": first.logits.detach()})
        return first.logits, {**terms, **{f"{name}'": term for name, term in others.items()}}
