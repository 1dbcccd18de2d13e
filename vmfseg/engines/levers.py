# SPDX-License-Identifier: Apache-2.0
"""Further parts of a training's objective that plug into :class:`SemiSupervisedTrainer`: copy-paste, and more views."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from ignite.engine import Engine
from torch.nn import functional as F

from vmfseg.handlers import EMATeacher
from vmfseg.losses.pseudo_labels import KernelVote, largest_components
from vmfseg.networks import VMFNet, network_parts
from vmfseg.transforms import BidirectionalCopyPaste, GINAugment
from vmfseg.utils import check_choice, derive_seed
from vmfseg.utils.seeds import torch_rng

__all__ = ["CopyPasteLever", "Lever", "ViewsLever"]

Batch = dict[str, Any]


class Lever:
    """What a trainer does to its batches before and after the network sees them. This one does nothing.

    The loss holds the weights; a lever only makes what a term needs. Draws are functions of seed and iteration.
    """

    def attach(self, engine: Engine) -> None:
        """Attach what listens to the trainer's events."""

    def before(self, engine: Any, batch: Batch) -> Batch:
        """Return the batch that the network is to see."""
        return batch

    def after(self, engine: Any, network: torch.nn.Module, parts: Any, batch: Batch) -> Batch:
        """Return the batch with what is to be added for the loss; called for each network of the trainer."""
        return batch


class CopyPasteLever(Lever):
    r"""Replace every unlabelled batch by a mix with the labelled batch before it, labels of a teacher pasted alike.

    Bidirectional copy-paste (BCP): the pseudo-label of an unlabelled image is the teacher's argmax, the largest
    component of each class; a :class:`vmfseg.losses.pseudo_labels.KernelVote` may say which pixels of it count, or
    ``confidence``. For the first ``warm_up`` of the training, when the teacher knows nothing, labelled images are
    pasted on labelled ones of another domain instead. All terms of the loss that need no label apply to the mixed
    images; ``copy_paste`` finds the labels as ``batch["pasted"]``.

    Its state is that of the teacher and of the vote; give it to the checkpoint. The labelled batch is not part of it:
    an epoch must begin with one, as those of :class:`vmfseg.data.InterleavedLoader` do.

    Args:
        networks: those in training; the mean of their slow copies (:class:`vmfseg.handlers.EMATeacher`) is the teacher.
        decay: of the teacher.
        kernel_vote: learn from labelled batches which kernel stands for which class, and filter the pseudo-labels.
        confidence: least probability of a pseudo-label that counts; 0 takes all, as BCP does, and 0.95 with a vote.
        warm_up: share of the training.
        seed: of the boxes.
        mix: the batch transform; ``None`` for one with default boxes.
    """

    def __init__(
        self,
        networks: Sequence[torch.nn.Module],
        decay: float = 0.99,
        kernel_vote: bool = False,
        confidence: float = 0.0,
        warm_up: float = 0.3,
        seed: int = 0,
        mix: BidirectionalCopyPaste | None = None,
    ) -> None:
        if not 0.0 <= confidence < 1.0 or not 0.0 <= warm_up <= 1.0:
            raise ValueError(f"confidence and warm_up must be shares from 0 to 1, got {confidence} and {warm_up}.")
        self.mix, self.teacher = mix or BidirectionalCopyPaste(), EMATeacher(networks, decay)
        self.vote = _vote(self.teacher, confidence or 0.95) if kernel_vote else None
        self.confidence, self.warm_up, self.seed = confidence, warm_up, seed
        self._labeled: Batch | None = None

    def attach(self, engine: Engine) -> None:
        """Let the teacher follow the trainer."""
        self.teacher.attach(engine)

    def before(self, engine: Any, batch: Batch) -> Batch:
        """Keep a labelled batch; mix an unlabelled one with it."""
        if "labeled" in batch:
            raise ValueError(
                "joint must be false for copy-paste, got labelled and unlabelled images in one batch. Set joint to "
                "false, or copy_paste to 0."
            )
        if batch.get("label") is not None:
            self._labeled = batch
            return batch
        if self._labeled is None:
            return batch
        own = self._labeled
        done = (engine.state.iteration - 1) / (engine.state.max_epochs * engine.state.epoch_length)
        count = len(batch["image"])
        seeds = [derive_seed(self.seed, engine.state.iteration, "copy-paste", index) for index in range(count)]
        if done < self.warm_up:
            image, pasted = self.mix(own, _across_domains(own), seeds[: len(own["image"])], other_weight=1.0)
        else:
            image, pasted = self.mix(own, self._pseudo_labeled(batch["image"]), seeds)
        return {"image": image, "pasted": pasted}

    def after(self, engine: Any, network: torch.nn.Module, parts: Any, batch: Batch) -> Batch:
        """Let the vote learn from labelled batches, by the first network."""
        if self.vote is not None and batch.get("label") is not None and network is engine.network:
            self.vote.update(parts.activations, batch["label"], batch.get("annotated"))
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state of teacher and vote."""
        vote = {} if self.vote is None else self.vote.state_dict()
        return {"teacher": self.teacher.state_dict(), "vote": vote}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state."""
        self.teacher.load_state_dict(state["teacher"])
        if self.vote is not None:
            self.vote.load_state_dict(state["vote"])

    def _pseudo_labeled(self, image: torch.Tensor) -> Batch:
        probabilities, parts = self.teacher.predict(image)
        sure, winner = probabilities.max(dim=1, keepdim=True)
        label = largest_components(winner)
        trusted = None  # what is no part of the largest component counts as background, as in BCP
        if self.vote is not None:
            trusted = self.vote(parts[0].activations, probabilities) & (label == winner)
        elif self.confidence:
            trusted = (sure > self.confidence) & (label == winner)
        return {"image": image, "label": label, "trusted": trusted}


class ViewsLever(Lever):
    """Show the network its images once more, in another style or moved, for the ``consistency`` term.

    The loss finds the distributions of both as ``batch["views"]``, in the frame of the second view, and where both are
    known as ``batch["valid"]``: kernel activations, or class probabilities of a network without kernels.

    Args:
        style: another contrast for the second view, or ``None`` for the same.
        rotation: largest angle of the second view in degrees; 0 does not move it.
        scale: largest zoom of it, for instance 0.15 for factors from 0.85 to 1.15.
        batches: ``"unlabeled"`` (and mixed) ones, or ``"all"``.
        seed: of the draws.
    """

    def __init__(
        self,
        style: GINAugment | None = None,
        rotation: float = 0.0,
        scale: float = 0.0,
        batches: str = "unlabeled",
        seed: int = 0,
    ) -> None:
        check_choice("batches", batches, ("unlabeled", "all"))
        if not 0.0 <= rotation <= 180.0 or not 0.0 <= scale < 1.0:
            raise ValueError(f"rotation must be 0 to 180 degrees and scale 0 to 1, got {rotation} and {scale}.")
        if style is None and not rotation and not scale:
            raise ValueError("style, rotation or scale must be given, got none: the second view would be the first.")
        self.style, self.rotation, self.scale, self.batches, self.seed = style, rotation, scale, batches, seed

    def after(self, engine: Any, network: torch.nn.Module, parts: Any, batch: Batch) -> Batch:
        """Add the views of this batch."""
        if batch.get("label") is not None and self.batches == "unlabeled":
            return batch
        image = batch["image"]
        draw = (self.seed, engine.state.iteration, "views")
        first, valid = _distribution(parts), None
        if self.rotation or self.scale:
            matrices = self._matrices(len(image), *draw).to(image)
            image, first = move(image, matrices), move(first, matrices)
            valid = move(torch.ones_like(first[:, :1]), matrices) > 0.999
        if self.style is not None:
            seeds = [derive_seed(*draw, index) for index in range(len(image))]
            image = self.style({"image": image}, seeds)["image"]
        second = _distribution(network_parts(network, image, engine.inferer))
        return {**batch, "views": [first, second], "valid": valid}

    def _matrices(self, count: int, *draw: object) -> torch.Tensor:
        angle, zoom = (2 * torch.rand(2, count, generator=torch_rng(*draw)) - 1).unbind()
        radians, factor = math.radians(self.rotation) * angle, 1 + self.scale * zoom
        cosine, sine = radians.cos() / factor, radians.sin() / factor
        return torch.stack([torch.stack([cosine, -sine], 1), torch.stack([sine, cosine], 1)], 1)


def move(maps: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Move maps ``BCHW`` about their center by ``(B, 2, 2)``, output to input, x before y; bilinear, zeros outside.

    Example:
        >>> half_turn = torch.tensor([[[-1.0, 0.0], [0.0, -1.0]]])
        >>> move(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), half_turn)
        tensor([[[[4., 3.],
                  [2., 1.]]]])
    """
    height, width = maps.shape[2:]
    ratio = torch.tensor([[1.0, height / width], [width / height, 1.0]]).to(matrices)
    theta = F.pad(matrices * ratio, (0, 1))
    grid = F.affine_grid(theta, list(maps.shape), align_corners=False)
    return F.grid_sample(maps, grid.to(maps.dtype), mode="bilinear", padding_mode="zeros", align_corners=False)


def _vote(teacher: EMATeacher, threshold: float) -> KernelVote:
    network: Any = teacher.teachers[0]
    if not isinstance(network, VMFNet):
        raise ValueError(
            f"kernel_vote must be false for a network without kernels, got {type(network).__name__}. Use VMFNet, or "
            "pseudo_confidence alone."
        )
    vote = KernelVote(network.out_channels, network.kernels.num_kernels, threshold)
    return vote.to(next(network.parameters()).device)


def _distribution(parts: Any) -> torch.Tensor:
    activations = getattr(parts, "activations", None)
    found: torch.Tensor = parts.logits.softmax(dim=1) if activations is None else activations
    return found


def _across_domains(batch: Mapping[str, Any]) -> Batch:
    """Return the images of a labelled batch in another order: each place gets one of another domain if there is one."""
    count = len(batch["image"])
    domains = list(batch.get("domain") or [""] * count)
    order = []
    for index in range(count):
        others = [(index + step) % count for step in range(1, count)] or [index]
        order.append(next((other for other in others if domains[other] != domains[index]), others[0]))
    places = torch.tensor(order, device=batch["image"].device)
    return {key: batch[key][places] for key in ("image", "label", "annotated") if batch.get(key) is not None}
