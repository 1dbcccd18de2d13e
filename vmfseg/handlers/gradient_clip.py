# SPDX-License-Identifier: Apache-2.0
"""Clip gradients by value."""

from __future__ import annotations

from typing import Any

import torch
from ignite.engine import Engine
from monai.engines.utils import IterationEvents

from vmfseg.utils.checks import check_positive

__all__ = ["GradientClipHandler"]


class GradientClipHandler:
    r"""Clip every entry of the gradients to :math:`[-v, v]` before the optimizer steps (0.1 in the reference code).

    With gradient accumulation the mean is clipped, once, before the step.

    Args:
        value: :math:`v`.
    """

    def __init__(self, value: float = 0.1) -> None:
        check_positive("value", value)
        self.value = value

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer of MONAI or vmfseg."""
        engine.add_event_handler(IterationEvents.BACKWARD_COMPLETED, self)

    def __call__(self, engine: Any) -> None:
        """Clip, unless the gradients are still being added up."""
        stepper = getattr(engine, "stepper", None)
        if stepper is not None and not stepper.position(engine)[1]:
            return
        for network in getattr(engine, "networks", [engine.network]):
            torch.nn.utils.clip_grad_value_(network.parameters(), self.value)
