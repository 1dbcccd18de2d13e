# SPDX-License-Identifier: Apache-2.0
"""Training of the kernels alone."""

from __future__ import annotations

from typing import Any

import torch
from ignite.engine import Events

from .semi_supervised import SemiSupervisedTrainer

__all__ = ["KernelClusteringTrainer"]


class KernelClusteringTrainer(SemiSupervisedTrainer):
    """Move the kernels to the centers of the feature clusters; everything else is fixed (the unsupervised setting).

    The whole network stays in eval mode and, while this trainer runs, only the kernels require a gradient. The
    reference code leaves the encoder in train mode, so that the batch-norm statistics of the "frozen" encoder drift.

    Args:
        network: a :class:`vmfseg.networks.VMFNet`.
        **kwargs: as for :class:`SemiSupervisedTrainer`; the optimizer must hold the kernels.
    """

    def __init__(self, network: torch.nn.Module, **kwargs: Any) -> None:
        super().__init__(network=network, **kwargs)
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        if not any(id(p) in held for name, p in network.named_parameters() if "kernels." in name):
            raise ValueError("optimizer must hold network.kernels.parameters(), got an optimizer without them.")
        self._frozen: list[torch.nn.Parameter] = []
        self.add_event_handler(Events.STARTED, self._freeze)
        for event in (Events.COMPLETED, Events.TERMINATE, Events.EXCEPTION_RAISED):
            self.add_event_handler(event, self._thaw)

    def set_mode(self, network: torch.nn.Module) -> None:
        """Keep the network in eval mode."""
        network.eval()

    def _freeze(self, _engine: Any) -> None:
        self._frozen = [p for n, p in self.network.named_parameters() if "kernels." not in n and p.requires_grad]
        for parameter in self._frozen:
            parameter.requires_grad_(False)

    def _thaw(self, _engine: Any, error: BaseException | None = None) -> None:
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        self._frozen = []
        if error is not None:
            raise error
