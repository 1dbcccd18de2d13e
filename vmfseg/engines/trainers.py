# SPDX-License-Identifier: Apache-2.0
"""Trainers for streams of labelled and unlabelled batches: one network, two that teach each other, kernels alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from monai.engines.trainer import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.utils.enums import CommonKeys as Keys

from vmfseg.networks import network_parts

from .levers import Lever
from .stepping import Stepper, follow_epochs, total

__all__ = ["CrossPseudoTrainer", "KernelClusteringTrainer", "SemiSupervisedTrainer"]


class SemiSupervisedTrainer(SupervisedTrainer):  # type: ignore[misc]
    """Train a network on labelled batches, unlabelled ones, or both in one.

    A batch with a label feeds every term of the loss, one without feeds only the terms that need no label: the loss
    decides, so this engine holds no weights and no second data loader (see :class:`vmfseg.data.InterleavedLoader`). A
    stream without any unlabelled batch is plain supervised training, of any network.

    All of MONAI's and ignite's handlers plug in: the events of ``SupervisedTrainer`` fire in its order (FORWARD, LOSS,
    BACKWARD, MODEL completed). ``engine.state.output`` has image, label (if any), pred (logits), loss and the single
    terms by name. A method with another objective overrides :meth:`compute_terms`.

    Args:
        device, max_epochs, train_data_loader, network, optimizer: as in MONAI's ``SupervisedTrainer``.
        loss_function: called as ``loss_function(parts, batch)``, returns named scalar terms, for instance
            :class:`vmfseg.losses.VMFLoss`; ``parts`` as :func:`vmfseg.networks.network_parts` gives them.
        amp: mixed precision by device type, see :class:`Stepper`.
        amp_kwargs: passed to ``torch.autocast``.
        accumulation_steps: batches whose gradients are averaged for a step.
        levers: further parts of the objective, see :mod:`.levers`; ``None`` among them stands for one that is off.
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
        amp: bool = False,
        amp_kwargs: dict[str, Any] | None = None,
        accumulation_steps: int = 1,
        decollate: bool = False,
        levers: Sequence[Lever | None] = (),
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
        self.networks, self.optimizers = [network], [optimizer]
        self.stepper = Stepper(self.state.device, amp, amp_kwargs, accumulation_steps)
        self.levers = [lever for lever in levers if lever is not None]
        for lever in self.levers:
            lever.attach(self)
        follow_epochs(self, train_data_loader)

    def set_mode(self, network: torch.nn.Module) -> None:
        """Put a network in the mode of this training."""
        network.train()

    def compute_terms(self, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the logits and the weighted terms of the objective for a batch that is on the device."""
        batch = self.prepare(batch)
        parts = network_parts(self.network, batch[Keys.IMAGE], self.inferer)
        return parts.logits, self.loss_function(parts, self.complete(self.network, parts, batch))

    def prepare(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch that the network is to see: what the levers make of it."""
        for lever in self.levers:
            batch = lever.before(self, batch)
        return batch

    def complete(self, network: torch.nn.Module, parts: Any, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with what the levers add for the loss, now that the network has seen it."""
        for lever in self.levers:
            batch = lever.after(self, network, parts, batch)
        return batch

    def _iteration(self, engine: SemiSupervisedTrainer, batchdata: dict[str, Any]) -> dict[str, Any]:
        device, non_blocking = engine.state.device, engine.non_blocking
        image, label = engine.prepare_batch(batchdata, device, non_blocking, **engine.to_kwargs)[:2]
        output: dict[str, Any] = {Keys.IMAGE: image} if label is None else {Keys.IMAGE: image, Keys.LABEL: label}
        others = {k: v for k, v in batchdata.items() if k not in (Keys.IMAGE, Keys.LABEL)}
        batch = {k: v.to(device, non_blocking=non_blocking) if hasattr(v, "to") else v for k, v in others.items()}
        batch.update(output)
        engine.state.output = output
        opens, closes = engine.stepper.position(engine)
        for network, optimizer in zip(engine.networks, engine.optimizers, strict=True):
            engine.set_mode(network)
            if opens:
                optimizer.zero_grad(set_to_none=engine.optim_set_to_none)
        with engine.stepper.autocast():
            output[Keys.PRED], terms = engine.compute_terms(batch)
        engine.fire_event(IterationEvents.FORWARD_COMPLETED)
        output[Keys.LOSS] = total(terms, engine.network)
        output.update({name: term.detach() for name, term in terms.items()})
        engine.fire_event(IterationEvents.LOSS_COMPLETED)
        engine.stepper.backward(output[Keys.LOSS], engine.optimizers, closes)
        engine.fire_event(IterationEvents.BACKWARD_COMPLETED)  # clipping and finite checks hook in here
        if closes:
            engine.stepper.step(engine.optimizers)
        output[Keys.LOSS] = output[Keys.LOSS].detach()
        engine.fire_event(IterationEvents.MODEL_COMPLETED)
        return engine.state.output  # type: ignore[no-any-return]


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
        batch = self.prepare(batch)
        first, second = (network_parts(network, batch[Keys.IMAGE], self.inferer) for network in self.networks)
        own, other = (
            self.complete(network, parts, batch) for network, parts in zip(self.networks, (first, second), strict=True)
        )
        terms = dict(self.loss_function(first, {**own, "partner": second.logits.detach()}))
        others = self.loss_function(second, {**other, "partner": first.logits.detach()})
        return first.logits, {**terms, **{f"{name}'": term for name, term in others.items()}}


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
