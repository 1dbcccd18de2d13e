# SPDX-License-Identifier: Apache-2.0
"""Stop at the first NaN, before it reaches the weights."""

from __future__ import annotations

from typing import Any

import torch
from ignite.engine import Engine
from monai.engines.utils import IterationEvents
from monai.utils.enums import CommonKeys as Keys

from vmfseg.utils import VmfError

__all__ = ["FiniteHandler"]


class FiniteHandler:
    """Refuse NaN and infinity in the loss and in the gradients, and name the images of the batch.

    The optimizer has not stepped yet, so the weights and the last checkpoint are good.

    Raises:
        VmfError: VMF240 with the term or layer and the images.
    """

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer of MONAI or vmfseg. Attach it before the gradient clip, which hides infinity."""
        engine.add_event_handler(IterationEvents.LOSS_COMPLETED, self._check_loss)
        engine.add_event_handler(IterationEvents.BACKWARD_COMPLETED, self._check_gradients)

    def _check_loss(self, engine: Any) -> None:
        output = engine.state.output
        if bool(torch.isfinite(output[Keys.LOSS]).all()):
            return
        names = [k for k, v in output.items() if isinstance(v, torch.Tensor) and v.ndim == 0 and not torch.isfinite(v)]
        self._refuse(engine, f"the loss is not finite in iteration {engine.state.iteration}", ", ".join(names))

    def _check_gradients(self, engine: Any) -> None:
        for network in getattr(engine, "networks", [engine.network]):
            gradients = [(n, p.grad) for n, p in network.named_parameters() if p.grad is not None]
            largest = torch.stack([g.abs().amax() for _, g in gradients])
            if not bool(torch.isfinite(largest).all()):
                layer = gradients[int(torch.nonzero(~torch.isfinite(largest))[0])][0]
                self._refuse(
                    engine, f"a gradient is not finite in iteration {engine.state.iteration}", f"layer {layer}"
                )

    @staticmethod
    def _refuse(engine: Any, rule: str, found: str) -> None:
        batch = engine.state.batch
        samples = batch.get("sample") if isinstance(batch, dict) else None
        raise VmfError(
            "VMF240",
            subject=", ".join(str(s) for s in samples) if samples else "the current batch",
            rule=f"{rule}; the last checkpoint is good",
            found=found,
            fix="look at these images (vmfseg verify), then lower the learning rate and pass --resume True",
        )
