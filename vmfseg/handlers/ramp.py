# SPDX-License-Identifier: Apache-2.0
"""Tell a loss how far the training is."""

from __future__ import annotations

from typing import Any

from ignite.engine import Engine, Events

from vmfseg.losses import VMFLoss

__all__ = ["RampHandler"]


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
