# SPDX-License-Identifier: Apache-2.0
"""Trainers of the compared methods: reproducible sampling, and gradient-based meta-learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from vmfseg.engines import SemiSupervisedTrainer
from vmfseg.networks.parts import bare_network
from vmfseg.utils.checks import check_positive
from vmfseg.utils.seeds import torch_rng

from .domains import domains_of, meta_split, take

__all__ = ["MetaTrainer", "MethodTrainer", "inner_step"]


class MethodTrainer(SemiSupervisedTrainer):
    """Train a network with random latent variables; what is drawn is a function of seed and iteration alone.

    A network that samples has a method ``noise_shape(x)`` and takes ``noise``, standard normal numbers of that shape.
    They are drawn here, so that the network has no random state and a resumed run equals an uninterrupted one. The loss
    finds ``(seed, iteration)`` as ``batch["draw"]`` and derives its own draws from it.

    Args:
        seed: of the run.
        **kwargs: as for :class:`vmfseg.engines.SemiSupervisedTrainer`.
    """

    def __init__(self, seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed = seed

    def compute_terms(self, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the logits and the weighted terms of the objective for a batch that is on the device."""
        batch = {**batch, "draw": self.draw()}
        parts = self.run_network(batch)
        return parts.logits, self.loss_function(parts, batch)

    def draw(self) -> tuple[int, int]:
        """Return what all random draws of this iteration depend on."""
        return self.seed, self.state.iteration

    def run_network(
        self, batch: Mapping[str, Any], name: str = "batch", parameters: Mapping[str, torch.Tensor] | None = None
    ) -> Any:
        """Return all parts of the network for the images of a batch.

        Args:
            batch: with ``image``.
            name: which of several passes of an iteration it is.
            parameters: to be used in place of the network's own ones of these names.
        """
        options = {"return_parts": True, **self.network_options(batch, name)}
        if parameters is None:
            return self.network(batch["image"], **options)
        return functional_call(self.network, dict(parameters), (batch["image"],), options)

    def network_options(self, batch: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return further arguments of the network for this batch: the noise, if it samples."""
        network = bare_network(self.network)
        if not hasattr(network, "noise_shape"):
            return {}
        image = batch["image"]
        noise = torch.randn(network.noise_shape(image), generator=torch_rng(*self.draw(), "noise", name))
        return {"noise": noise.to(image.device, image.dtype)}


class MetaTrainer(MethodTrainer):
    r"""Gradient-based meta-learning over domains: one step on some of them must help on another one.

    In each iteration one domain of the batch is chosen at random for the meta-test, the others are the meta-train:

    .. math:: \theta' = \theta - \alpha \, \nabla_\theta L_{train}(\theta), \qquad
              \min_\theta \; L_{train}(\theta) + \beta \, L_{test}(\theta')

    With ``second_order`` the gradient of the second term goes through the inner gradient (Hessian-vector products by
    torch, one ``torch.autograd.grad`` call for all parameters); without, the inner gradient is a constant.

    The loss is called twice: with the meta-train images; and with the meta-test images and the meta-train's parts and
    batch as ``batch["meta_train"]``, by which a loss tells the two. The terms of the second call get the prefix
    ``meta_``. A batch of one domain alone has no meta-test and is trained on as it is; sample so that it is rare
    (``balanced="domain"``). Batch norm uses the statistics of the batch in both passes.

    Gradients of gradients are not offered by the fast convolutions of :mod:`vmfseg.networks.convolution`, so second
    order puts the weights into the contiguous layout that does without. Several processes (DDP) are refused: the second
    pass does not go through its hooks.

    Args:
        step_size: :math:`\alpha`.
        second_order: differentiate through the inner gradient.
        outer_weight: :math:`\beta`; 0 is plain training on the meta-train images.
        max_norm: clip the inner gradient of each tensor to this norm, or ``None``.
        inner: prefixes of the names of the parameters that the inner step moves; empty for all.
        **kwargs: as for :class:`MethodTrainer`.
    """

    def __init__(
        self,
        step_size: float = 1e-3,
        second_order: bool = True,
        outer_weight: float = 1.0,
        max_norm: float | None = None,
        inner: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive("step_size", step_size, "It is the step of the inner gradient descent.")
        if isinstance(self.network, DistributedDataParallel):
            raise ValueError(
                "network must not be wrapped for several processes in meta-learning, got DistributedDataParallel. "
                "Train on one device."
            )
        self.step_size, self.second_order, self.max_norm = step_size, second_order, max_norm
        self.outer_weight, self.inner = outer_weight, tuple(inner)
        if second_order:
            self.network.to(memory_format=torch.contiguous_format)
        if not self.inner_parameters():
            names = ", ".join(name for name, _ in self.network.named_children())
            raise ValueError(f"inner must name parameters of the network, got {list(inner)}. It has {names}.")

    def inner_parameters(self) -> dict[str, torch.Tensor]:
        """Return the parameters that the inner step moves, by name."""
        named = self.network.named_parameters()
        return {n: p for n, p in named if p.requires_grad and (not self.inner or n.startswith(self.inner))}

    def compute_terms(self, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the logits and the weighted terms of both passes for a batch that is on the device."""
        train_index, test_index = meta_split(domains_of(batch), *self.draw())
        if not test_index:
            return super().compute_terms(batch)
        train, test = ({**take(batch, index), "draw": self.draw()} for index in (train_index, test_index))
        parts = self.run_network(train, "meta-train")
        terms = dict(self.loss_function(parts, train))
        moved = inner_step(
            torch.stack(list(terms.values())).sum(),
            self.inner_parameters(), self.step_size, self.second_order, self.max_norm,
        )  # fmt: skip
        parts_test = self.run_network(test, "meta-test", moved)
        outer = self.loss_function(parts_test, {**test, "meta_train": (parts, train)})
        terms.update({f"meta_{name}": self.outer_weight * value for name, value in outer.items()})
        place = torch.tensor(train_index + test_index).argsort()
        return torch.cat([parts.logits, parts_test.logits])[place.to(parts.logits.device)], terms


def inner_step(
    loss: torch.Tensor,
    parameters: Mapping[str, torch.Tensor],
    step_size: float,
    second_order: bool = True,
    max_norm: float | None = None,
) -> dict[str, torch.Tensor]:
    r"""Return the parameters after one step of gradient descent, :math:`\theta - \alpha \nabla_\theta L`.

    Args:
        loss: a scalar; its graph is kept.
        parameters: by name; those that the loss does not depend on stay.
        step_size: :math:`\alpha`.
        second_order: the result depends on the parameters through the gradient, too.
        max_norm: clip the gradient of each tensor to this norm, or ``None``.

    Example:
        >>> w = torch.tensor(3.0, requires_grad=True)
        >>> moved = inner_step(w**2, {"w": w}, step_size=0.1)["w"]
        >>> round(float(moved), 6), round(float(torch.autograd.grad(moved, w)[0]), 6)  # 1 - 2 * 0.1
        (2.4, 0.8)
    """
    gradients: Sequence[torch.Tensor | None] = torch.autograd.grad(
        loss, list(parameters.values()), create_graph=second_order, retain_graph=True, allow_unused=True
    )
    moved: dict[str, torch.Tensor] = {}
    for (name, value), gradient in zip(parameters.items(), gradients, strict=True):
        if gradient is None:
            moved[name] = value
            continue
        if max_norm is not None:
            gradient = gradient * (max_norm / gradient.norm().clamp_min(max_norm))
        moved[name] = value - step_size * gradient
    return moved
