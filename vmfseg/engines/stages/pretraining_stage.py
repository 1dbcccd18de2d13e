# SPDX-License-Identifier: Apache-2.0
"""Pre-training stage: the encoder learns to reconstruct images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from monai.engines.trainer import SupervisedTrainer

from vmfseg.engines.stepping import follow_epochs, run_to_end
from vmfseg.handlers.checkpoint import RunCheckpoint, load_tensors, save_tensors
from vmfseg.networks import BackboneEncoder, ReconstructionUNet, VMFEncoder
from vmfseg.networks.parts import bare_network
from vmfseg.networks.pretraining import load_encoder
from vmfseg.utils.seeds import seeded

__all__ = ["PretrainingStage", "image_to_image"]


def image_to_image(
    batch: Mapping[str, Any], device: torch.device, non_blocking: bool = False, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the image as input, and as target with the motion behind it if there is any (``prepare_batch``).

    A batch with ``target`` (:class:`vmfseg.transforms.PatchMask`) has another target than its image.
    """
    image, target, *motion = (
        batch[key].to(device=device, non_blocking=non_blocking, **kwargs)
        for key in ("image", "target" if "target" in batch else "image", "motion")
        if key in batch
    )
    return image, torch.cat([target, *motion], dim=1)


class PretrainingStage:
    r"""Train :class:`ReconstructionUNet` on unlabelled source images, :math:`\min |X - \hat X|_1`.

    Batches may hide patches of the input (:class:`vmfseg.transforms.PatchMask`) and, with ``motion``, hold a map of how
    much each pixel changes over the heart cycle, which is then predicted from the single image too,
    :math:`\min |X - \hat X|_1 + |V - \hat V|_1`: who knows what will move has found the heart.

    It works on the encoder of the network itself, so nothing has to be carried over when the stage ends. The further
    networks of vMFPseudo get the same encoder, as in the reference code. Zero iterations leave all of
    them as they are.

    Args:
        networks: the networks whose encoder is pre-trained; a single one or a list.
        loader: batches with ``image``.
        iterations: how many batches; rounded up so that all epochs have the same length.
        device: where.
        learning_rate: of Adam.
        decay: factor of the learning rate for each epoch (0.9 in the reference code).
        handlers: for the trainer (progress, clipping, finite checks).
        seed: of the decoder's initial weights.
        motion: predict ``motion`` of the batches too.
        fingerprint: what else decides the result.
    """

    name = "pretraining"

    def __init__(
        self,
        networks: torch.nn.Module | Sequence[torch.nn.Module],
        loader: Any,
        iterations: int,
        device: str | torch.device = "cpu",
        learning_rate: float = 1e-4,
        decay: float = 0.9,
        handlers: Sequence[Any] = (),
        seed: int = 0,
        motion: bool = False,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        self.motion = motion
        self.encoders = [_encoder(n) for n in ([networks] if isinstance(networks, torch.nn.Module) else networks)]
        self.loader, self.iterations, self.device = loader, iterations, torch.device(device)
        self.learning_rate, self.decay, self.handlers, self.seed = learning_rate, decay, handlers, seed
        self.fingerprint = {
            "iterations": iterations,
            "learning_rate": learning_rate,
            "decay": decay,
            "seed": seed,
            "motion": motion,
            **(fingerprint or {}),
        }

    def run(self, folder: Path, resume: bool) -> Sequence[str]:
        """Pre-train and write ``encoder.pt``."""
        if self.iterations:
            with seeded(self.seed, "pretraining"):
                unet = ReconstructionUNet(self.encoders[0], int(self.motion)).to(self.device)
            optimizer = torch.optim.Adam(unet.parameters(), self.learning_rate)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.decay)
            trainer = self._trainer(unet, optimizer, schedule)
            checkpoint = RunCheckpoint(folder, {"unet": unet, "optimizer": optimizer, "schedule": schedule})
            checkpoint.attach(trainer)
            if resume:
                checkpoint.restore(trainer)
            run_to_end(trainer)
        save_tensors(folder / "encoder.pt", {k: v.cpu() for k, v in self.encoders[0].state_dict().items()})
        self._share()
        return ["encoder.pt"]

    def load(self, folder: Path) -> None:
        """Take up ``encoder.pt``."""
        load_encoder(self.encoders[0], load_tensors(folder / "encoder.pt"))
        self._share()

    def _share(self) -> None:
        if not self.iterations:
            return
        for encoder in self.encoders[1:]:
            load_encoder(encoder, self.encoders[0].state_dict())

    def _trainer(self, unet: torch.nn.Module, optimizer: Any, schedule: Any) -> Any:
        from ignite.engine import Events

        epochs = -(-self.iterations // len(self.loader))
        length = -(-self.iterations // epochs)
        trainer = SupervisedTrainer(
            device=self.device,
            max_epochs=epochs,
            train_data_loader=self.loader,
            epoch_length=length,
            network=unet,
            optimizer=optimizer,
            loss_function=torch.nn.L1Loss(),
            prepare_batch=image_to_image,
            train_handlers=list(self.handlers),
            decollate=False,
        )
        follow_epochs(trainer, self.loader)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda _engine: schedule.step())
        return trainer


def _encoder(network: torch.nn.Module) -> Any:
    encoder = getattr(bare_network(network), "encoder", None)
    if not isinstance(encoder, VMFEncoder | BackboneEncoder):
        raise ValueError(
            f"networks must have an encoder to pre-train, got {type(bare_network(network)).__name__} without. "
            "Leave the pre-training stage out of stages for this network."
        )
    return encoder
