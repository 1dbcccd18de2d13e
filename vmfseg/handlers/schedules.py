# SPDX-License-Identifier: Apache-2.0
"""Schedules of a training: polynomial decay of the learning rate, ramps of loss weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ignite.engine import Engine, Events

from vmfseg.losses import VMFLoss

__all__ = ["PolynomialDecayHandler", "RampHandler"]


class PolynomialDecayHandler:
    r"""Set the learning rate before every iteration: :math:`\eta_i = \eta_0 (1 - i / n)^p`.

    :math:`i` counts the iterations done and :math:`n` all of the run. The rate is a function of :math:`i` alone, so a
    resumed run needs no state of it.

    Args:
        optimizers: whose rates, as they are now, are the :math:`\eta_0`.
        power: :math:`p`; 0 leaves the rates to others.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], power: float = 0.9) -> None:
        if not power >= 0:
            raise ValueError(f"power must be at least 0, got {power}. 0 keeps the learning rate constant.")
        self.power = power
        self.rates = [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
        self.optimizers = list(optimizers)

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer."""
        if self.power:
            engine.add_event_handler(Events.ITERATION_STARTED, self)

    def __call__(self, engine: Any) -> None:
        """Set the rates of this iteration."""
        total = engine.state.max_epochs * engine.state.epoch_length
        factor = max(0.0, 1 - (engine.state.iteration - 1) / total) ** self.power
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, rate in zip(groups, self.rates, strict=True):  # restoring a state replaces the groups
            group["lr"] = rate * factor


class RampHandler:
    """Set ``loss.progress`` before every iteration, from 0 at the first to 1 after the last one.

    It is a function of the iteration alone, so a resumed run needs no state of it.

    Args:
        loss: whose ``ramps`` follow.
    """

    def __init__(self, loss: VMFLoss) -> None:
        self.loss = loss

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer."""
        engine.add_event_handler(Events.ITERATION_STARTED, self)

    def __call__(self, engine: Any) -> None:
        """Set the progress of this iteration."""
        self.loss.progress = (engine.state.iteration - 1) / (engine.state.max_epochs * engine.state.epoch_length)
