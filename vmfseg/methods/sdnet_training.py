# SPDX-License-Identifier: Apache-2.0
"""Loss and trainer of SDNet with factor augmentation, see :mod:`vmfseg.methods.sdnet`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from vmfseg.model import Model
from vmfseg.networks.parts import bare_network
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath
from vmfseg.utils.seeds import torch_rng

from .domains import domains_of, from_another_domain, take
from .meta import MethodTrainer
from .objective import MethodLoss
from .sdnet import SDNet

__all__ = ["SDNetLoss", "SDNetTrainer", "load_generator"]


class SDNetLoss(MethodLoss):
    r"""Dice, cross-entropy, reconstruction, style regression and divergence of SDNet.

    ``style`` is :math:`|z - z(\hat X)|_1`, mean over the style; ``kl`` is :func:`gaussian_kl`, summed over the style.
    Unlabelled images give the last three. SDNet of 2019 weighs Dice 10, reconstruction 1, style 1, divergence 0.01; the
    defaults are those of 2020 with the divergence of 2019.

    Args:
        weights: of the terms ``dice``, ``cross_entropy``, ``reconstruction``, ``style``, ``kl``.
        **kwargs: as for :class:`MethodLoss`.
    """

    OWN = ("style", "kl")
    TERMS = (*MethodLoss.TERMS, *OWN)
    DEFAULTS = {"dice": 1.0, "cross_entropy": 1.0, "reconstruction": 1.0, "style": 1.0, "kl": 0.01}  # noqa: RUF012
    NEEDS = {**MethodLoss.NEEDS, "style": ("style", "Use SDNet"), "kl": ("mean", "Use SDNet")}  # noqa: RUF012


class SDNetTrainer(MethodTrainer):
    """Train SDNet on the images and on labelled images in the style of another domain (factor augmentation).

    For every labelled image of a batch, the style of a random image of another domain of the same batch, labelled or
    not, is decoded with its anatomy; where the batch has no other domain, the style is drawn from the prior. The
    augmented images are made without gradient. Their terms have the prefix ``fa_`` and leave out the divergence.

    Args:
        warm_up: iterations before the first augmented batch; a decoder must first have learnt to decode.
        fa_weight: weight of the augmented images' terms; 0 is SDNet without factor augmentation.
        generator: a trained :class:`SDNet` that makes the augmented images, frozen (the paper's second stage); ``None``
            uses the network in training.
        **kwargs: as for :class:`MethodTrainer`.
    """

    def __init__(
        self, warm_up: int = 0, fa_weight: float = 1.0, generator: nn.Module | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if warm_up < 0 or fa_weight < 0:
            raise ValueError(f"warm_up and fa_weight must be at least 0, got {warm_up} and {fa_weight}.")
        self.warm_up, self.fa_weight = warm_up, fa_weight
        self.generator = None if generator is None else generator.to(self.state.device).eval().requires_grad_(False)

    def compute_terms(self, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the logits and the weighted terms for a batch that is on the device."""
        logits, terms = super().compute_terms(batch)
        if batch.get("label") is None or not self.fa_weight or self.state.iteration <= self.warm_up:
            return logits, terms
        count = len(batch["label"])
        mixed = {**take(batch, range(count)), "image": self.augmented(batch, count), "draw": self.draw()}
        extra = self.loss_function(self.run_network(mixed, "augmented"), mixed)
        weighted = {f"fa_{name}": self.fa_weight * value for name, value in extra.items() if name != "kl"}
        return logits, {**terms, **weighted}

    @torch.no_grad()
    def augmented(self, batch: Mapping[str, Any], count: int) -> torch.Tensor:
        """Return the first ``count`` images in the styles of other domains, ``BCHW``."""
        network: Any = bare_network(self.network) if self.generator is None else self.generator
        image = batch["image"]
        was_training = network.training
        network.eval()  # batch statistics of images that are only looked at would move the running ones
        anatomy = network.encode_anatomy(image)[0]
        styles = network.encode_style(anatomy, image)[0]
        prior = torch.randn(count, styles.shape[1], generator=torch_rng(*self.draw(), "prior")).to(styles)
        partners = from_another_domain(domains_of(batch), count, *self.draw())
        chosen = [prior[i] if partner is None else styles[partner] for i, partner in enumerate(partners)]
        mixed: torch.Tensor = network.decode(anatomy[:count], torch.stack(chosen))
        network.train(was_training)
        return mixed.to(image.dtype)


def load_generator(path: StrPath = "") -> nn.Module | None:
    """Return a trained :class:`SDNet` for :class:`SDNetTrainer`, or ``None`` for an empty path.

    Args:
        path: a bundle, a run or a folder of weights; nothing in it is executed.

    Raises:
        VmfError: VMF360 if the model is another network; see :meth:`vmfseg.model.Model.load` for the rest.
    """
    if not os.fspath(path):
        return None
    network = Model.load(path).build_network()
    if not isinstance(network, SDNet):
        raise VmfError(
            "VMF360",
            subject=str(path),
            rule="the generator of augmented slices must be an SDNet",
            found=type(network).__name__,
            fix="give a run of sdnet_mnms or sdnet_scgm, or leave generator empty",
        )
    return network
