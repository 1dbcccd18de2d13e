# SPDX-License-Identifier: Apache-2.0
"""Training of two networks that teach each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from monai.engines.trainer import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.utils.enums import CommonKeys as Keys

from .stepping import Stepper, follow_epochs, targets_of, total

__all__ = ["CrossPseudoTrainer"]


class CrossPseudoTrainer(SupervisedTrainer):  # type: ignore[misc]
    r"""Train two vMF networks at once; each is taught by the other's masks (vMFPseudo, Eq. 13 of Liu et al. 2023).

    Both see the same batch; the pseudo masks come from the same forward pass, before either is updated; each has its
    own loss, backward pass and optimizer. ``engine.network`` and ``engine.optimizer`` are the first ones, so MONAI's
    handlers work; ``engine.networks`` and ``engine.optimizers`` are all. The terms of the second network are named with
    a prime (``dice'``), ``loss`` is the sum of both.

    Args:
        device, max_epochs, train_data_loader: as in MONAI's ``SupervisedTrainer``.
        networks: the two networks, initialized differently.
        optimizers: one for each.
        loss_function: called as ``loss_function(parts, image, label_or_none, partner=logits, **targets)``.
        target_keys, amp, amp_kwargs, accumulation_steps, decollate: see :class:`SemiSupervisedTrainer`.
        **kwargs: everything else that ``SupervisedTrainer`` takes.
    """

    def __init__(
        self,
        device: str | torch.device,
        max_epochs: int,
        train_data_loader: Any,
        networks: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        loss_function: Any,
        target_keys: Sequence[str] = ("presence", "annotated"),
        amp: bool = False,
        amp_kwargs: dict[str, Any] | None = None,
        accumulation_steps: int = 1,
        decollate: bool = False,
        **kwargs: Any,
    ) -> None:
        if len(networks) != 2 or len(optimizers) != 2 or networks[0] is networks[1]:
            raise ValueError(
                f"networks and optimizers must be two different ones each, got {len(networks)} and {len(optimizers)}."
            )
        super().__init__(
            device=device,
            max_epochs=max_epochs,
            train_data_loader=train_data_loader,
            network=networks[0],
            optimizer=optimizers[0],
            loss_function=loss_function,
            decollate=decollate,
            **kwargs,
        )
        self.networks, self.optimizers = list(networks), list(optimizers)
        self.target_keys = tuple(target_keys)
        self.stepper = Stepper(self.state.device, amp, amp_kwargs, accumulation_steps)
        follow_epochs(self, train_data_loader)

    def _iteration(self, engine: CrossPseudoTrainer, batchdata: dict[str, Any]) -> dict[str, Any]:
        image, label = engine.prepare_batch(batchdata, engine.state.device, engine.non_blocking, **engine.to_kwargs)[:2]
        targets = targets_of(batchdata, engine.target_keys, engine.state.device, engine.non_blocking)
        output: dict[str, Any] = {Keys.IMAGE: image} if label is None else {Keys.IMAGE: image, Keys.LABEL: label}
        engine.state.output = output
        opens, closes = engine.stepper.position(engine)
        for network, optimizer in zip(engine.networks, engine.optimizers, strict=True):
            network.train()
            if opens:
                optimizer.zero_grad(set_to_none=engine.optim_set_to_none)
        with engine.stepper.autocast():
            both = [engine.inferer(image, network, return_parts=True) for network in engine.networks]
            output[Keys.PRED] = both[0].logits
            engine.fire_event(IterationEvents.FORWARD_COMPLETED)
            terms = [
                engine.loss_function(parts, image, label, partner=partner.logits.detach(), **targets)
                for parts, partner in ((both[0], both[1]), (both[1], both[0]))
            ]
        losses = [total(t, network) for t, network in zip(terms, engine.networks, strict=True)]
        output[Keys.LOSS] = torch.stack(losses).sum()
        output.update({name: term.detach() for name, term in terms[0].items()})
        output.update({f"{name}'": term.detach() for name, term in terms[1].items()})
        engine.fire_event(IterationEvents.LOSS_COMPLETED)
        for loss, optimizer in zip(losses, engine.optimizers, strict=True):
            engine.stepper.backward(loss, optimizer, closes)
        engine.fire_event(IterationEvents.BACKWARD_COMPLETED)
        if closes:
            engine.stepper.step(engine.optimizers)
        output[Keys.LOSS] = output[Keys.LOSS].detach()
        engine.fire_event(IterationEvents.MODEL_COMPLETED)
        return engine.state.output  # type: ignore[no-any-return]
