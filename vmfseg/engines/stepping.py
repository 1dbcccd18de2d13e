# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps of the trainers: mixed precision by device, gradient accumulation, batches in the order of epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from ignite.engine import Engine, Events

__all__ = ["Stepper", "follow_epochs", "run_to_end", "total"]


class Stepper:
    """Turns losses into optimizer steps, with mixed precision by device type and gradient accumulation.

    MONAI's trainers know mixed precision on CUDA only; here it follows the device. On CUDA it is float16 with a
    gradient scaler. On a CPU it would be bfloat16, which some machines advertise and cannot execute, so it must be
    asked for by ``amp_kwargs={"dtype": torch.bfloat16}``.

    Args:
        device: where the network is.
        amp: use mixed precision.
        amp_kwargs: passed to ``torch.autocast``.
        accumulation_steps: batches whose gradients are averaged for a step.
    """

    def __init__(
        self, device: torch.device, amp: bool, amp_kwargs: Mapping[str, Any] | None, accumulation_steps: int
    ) -> None:
        if accumulation_steps < 1:
            raise ValueError(f"accumulation_steps must be at least 1, got {accumulation_steps}.")
        self.device, self.accumulation_steps = device, accumulation_steps
        self.amp_kwargs = dict(amp_kwargs or {})
        self.amp = amp and (device.type != "cpu" or "dtype" in self.amp_kwargs)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.amp and device.type == "cuda")

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context for the forward pass."""
        return torch.autocast(self.device.type, enabled=self.amp, **self.amp_kwargs)

    def position(self, engine: Engine) -> tuple[bool, bool]:
        """Return whether this iteration opens and whether it closes an accumulation; an epoch's end always closes."""
        length = engine.state.epoch_length
        index = (engine.state.iteration - 1) % length if length else engine.state.iteration - 1
        opens = index % self.accumulation_steps == 0
        closes = (index + 1) % self.accumulation_steps == 0 or (length is not None and index + 1 == length)
        return opens, closes

    def backward(self, loss: torch.Tensor, optimizers: Iterable[torch.optim.Optimizer], closes: bool) -> None:
        """Add the gradients of ``loss``, unscaled before a step, so that handlers see and clip the true ones."""
        self.scaler.scale(loss / self.accumulation_steps).backward()
        if closes and self.scaler.is_enabled():
            for optimizer in optimizers:
                self.scaler.unscale_(optimizer)

    def step(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Step all optimizers."""
        for optimizer in optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()


def total(terms: Mapping[str, torch.Tensor], network: torch.nn.Module) -> torch.Tensor:
    """Return the sum of the loss terms."""
    if not terms:
        raise ValueError(
            "loss_function must return at least one term for every batch, got none. "
            f"Give {type(network).__name__} a loss with a term that needs no label, or leave out unlabelled data."
        )
    return torch.stack([term.float() for term in terms.values()]).sum()


def follow_epochs(engine: Engine, loader: Any) -> None:
    """Tell a loader with ``set_epoch`` the epoch and read it anew, so that its order depends on nothing else.

    Ignite goes on in the old pass where an epoch is shorter than one; a resumed run could not know how far that was.
    """
    if hasattr(loader, "set_epoch"):

        def start(trainer: Any) -> None:
            loader.set_epoch(trainer.state.epoch)
            trainer.set_data(loader)

        engine.add_event_handler(Events.EPOCH_STARTED, start)


def run_to_end(engine: Any) -> None:
    """Run a trainer that may have been restored after its last epoch, where ignite would start all over again."""
    if engine.state.epoch < engine.state.max_epochs:
        engine.run()
