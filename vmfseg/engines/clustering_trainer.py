# SPDX-License-Identifier: Apache-2.0
"""Trainer of the vMF kernels alone."""

from __future__ import annotations

from typing import Any

import torch

from .semi_supervised import SemiSupervisedTrainer

__all__ = ["KernelClusteringTrainer"]


class KernelClusteringTrainer(SemiSupervisedTrainer):
    """Train the kernels, with everything else frozen: unsupervised setting (Eq. 6).

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

    def set_mode(self, network: torch.nn.Module) -> None:
        """Keep the network in eval mode."""
        network.eval()

    def run(self) -> None:
        """Train with everything but the kernels frozen, and thaw it however the training ends."""
        frozen = [p for n, p in self.network.named_parameters() if "kernels." not in n and p.requires_grad]
        try:
            for parameter in frozen:
                parameter.requires_grad_(False)
            super().run()
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)
