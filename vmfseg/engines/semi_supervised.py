# SPDX-License-Identifier: Apache-2.0
"""Training on a stream that mixes labelled and unlabelled batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from monai.engines.trainer import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.utils.enums import CommonKeys as Keys

from .stepping import Stepper, follow_epochs, targets_of, total

__all__ = ["SemiSupervisedTrainer"]


class SemiSupervisedTrainer(SupervisedTrainer):  # type: ignore[misc]
    """Train a vMF network on labelled batches, unlabelled ones, or both in one.

    A batch with a label feeds every term of the loss, one without feeds only the terms that need no label: the loss
    decides, so this engine holds no weights and no second data loader (see :class:`vmfseg.data.InterleavedLoader`). A
    stream without any unlabelled batch is plain supervised training.

    All of MONAI's and ignite's handlers plug in: the events of ``SupervisedTrainer`` fire in its order (FORWARD, LOSS,
    BACKWARD, MODEL completed). ``engine.state.output`` has image, label (if any), pred (logits), loss and the single
    terms by name.

    Args:
        device, max_epochs, train_data_loader, network, optimizer: as in MONAI's ``SupervisedTrainer``.
        loss_function: called as ``loss_function(parts, image, label_or_none, **targets)``, returns named scalar terms,
            for instance :class:`vmfseg.losses.VMFLoss`.
        target_keys: further entries of the batch that the loss takes by name.
        amp: mixed precision by device type, see :class:`Stepper`.
        accumulation_steps: batches whose gradients are averaged for a step.
        decollate: split the output into a list of images after each iteration, for MONAI's post-processing; off by
            default, since nothing here needs it and it costs time.
        **kwargs: everything else that ``SupervisedTrainer`` takes.
    """

    def __init__(
        self,
        device: str | torch.device,
        max_epochs: int,
        train_data_loader: Any,
        network: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_function: Any,
        target_keys: Sequence[str] = ("presence", "annotated"),
        amp: bool = False,
        amp_kwargs: dict[str, Any] | None = None,
        accumulation_steps: int = 1,
        decollate: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            device=device,
            max_epochs=max_epochs,
            train_data_loader=train_data_loader,
            network=network,
            optimizer=optimizer,
            loss_function=loss_function,
            decollate=decollate,
            **kwargs,
        )
        self.target_keys = tuple(target_keys)
        self.stepper = Stepper(self.state.device, amp, amp_kwargs, accumulation_steps)
        follow_epochs(self, train_data_loader)

    def set_mode(self, network: torch.nn.Module) -> None:
        """Put the network in the mode of this training."""
        network.train()

    def _iteration(self, engine: SemiSupervisedTrainer, batchdata: dict[str, Any]) -> dict[str, Any]:
        image, label = engine.prepare_batch(batchdata, engine.state.device, engine.non_blocking, **engine.to_kwargs)[:2]
        targets = targets_of(batchdata, engine.target_keys, engine.state.device, engine.non_blocking)
        output: dict[str, Any] = {Keys.IMAGE: image} if label is None else {Keys.IMAGE: image, Keys.LABEL: label}
        engine.state.output = output
        opens, closes = engine.stepper.position(engine)
        engine.set_mode(engine.network)
        if opens:
            engine.optimizer.zero_grad(set_to_none=engine.optim_set_to_none)
        with engine.stepper.autocast():
            parts = engine.inferer(image, engine.network, return_parts=True)
            output[Keys.PRED] = parts.logits
            engine.fire_event(IterationEvents.FORWARD_COMPLETED)
            terms = engine.loss_function(parts, image, label, **targets)
        output[Keys.LOSS] = total(terms, engine.network)
        output.update({name: term.detach() for name, term in terms.items()})
        engine.fire_event(IterationEvents.LOSS_COMPLETED)
        engine.stepper.backward(output[Keys.LOSS], engine.optimizer, closes)
        engine.fire_event(IterationEvents.BACKWARD_COMPLETED)  # clipping and finite checks hook in here
        if closes:
            engine.stepper.step([engine.optimizer])
        output[Keys.LOSS] = output[Keys.LOSS].detach()
        engine.fire_event(IterationEvents.MODEL_COMPLETED)
        return engine.state.output  # type: ignore[no-any-return]
