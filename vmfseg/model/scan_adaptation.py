# SPDX-License-Identifier: Apache-2.0
"""Adapt a network to one volume while segmenting it: batch norm, or training by reconstruction. Copies are adapted."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vmfseg.model.backends import TorchBackend
from vmfseg.model.deploy import Explained
from vmfseg.networks import VMFNet
from vmfseg.utils import check_choice

__all__ = ["ADAPTATIONS", "adapt_to", "interpolated_batch_norm", "trained_by_reconstruction"]

#: Ways to adapt to a volume.
ADAPTATIONS = ("none", "bn", "reconstruction")

#: Shares of the scan in the statistics of batch norm.
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_MOST_SLICES = 64  # that a volume's statistics are taken from, so that memory is bounded
_TINY = 1e-6


def adapt_to(
    slices: torch.Tensor, network: nn.Module | None, how: str, device: torch.device | str = "cpu"
) -> Callable[[torch.Tensor], Explained]:
    """Return what runs batches of this volume's slices, as a backend does. The network stays as it is.

    Shape: slices ``BCHW``.

    Args:
        slices: of one frame, as the network gets them.
        network: as it was trained.
        how: ``"bn"`` (:func:`interpolated_batch_norm`) or ``"reconstruction"`` (:func:`trained_by_reconstruction`).
        device: where it runs.

    Raises:
        ValueError: another word; no network at hand; a network without batch norm (``"bn"``), without kernels or image
            decoder (``"reconstruction"``).
    """
    check_choice("adapt", how, ADAPTATIONS[1:])
    if network is None:
        raise ValueError("adapt must be none without the trained network, got a backend alone. Use backend torch.")
    some = slices[torch.linspace(0, len(slices) - 1, min(len(slices), _MOST_SLICES)).round().long()].to(device)
    if how == "reconstruction":
        return TorchBackend(trained_by_reconstruction(network, some), device)
    members = [TorchBackend(interpolated_batch_norm(network, some, share), device) for share in SHARES]
    return _Ensemble(members, slices)


@torch.no_grad()
def interpolated_batch_norm(network: nn.Module, slices: torch.Tensor, share: float) -> nn.Module:
    r"""Return a copy whose batch norms have the statistics :math:`(1 - \alpha)\,\text{source} + \alpha\,\text{scan}`.

    Those of the scan are the mean and variance over slices and positions of what each layer gets, once the layers
    before it are interpolated (InTEnt; Dong et al., CVPR Workshops 2024, arXiv:2402.09604). :math:`\alpha = 0` is the
    network as it was trained.

    Args:
        network: with batch norm.
        slices: ``BCHW`` of one volume.
        share: :math:`\alpha`.
    """
    twin = copy.deepcopy(network).eval().to(slices.device)
    layers = [module for module in twin.modules() if isinstance(module, _BatchNorm) and module.running_mean is not None]
    if not layers:
        raise ValueError(f"adapt must not be bn for a network without batch norm, got {type(network).__name__}.")

    def interpolate(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        axes = [0, *range(2, inputs[0].ndim)]
        variance, mean = torch.var_mean(inputs[0], dim=axes, correction=0)
        module.running_mean.lerp_(mean, share)
        module.running_var.lerp_(variance, share)

    hooks = [layer.register_forward_pre_hook(interpolate) for layer in layers]
    twin(slices)
    for hook in hooks:
        hook.remove()
    return twin


class _Ensemble:
    r"""Average the probabilities of several networks, weighted by how well each explains the volume.

    The weight of network :math:`\alpha` is :math:`\text{softmax}_\alpha(\ell_\alpha)`, :math:`\ell` being the mean
    log-likelihood of the volume's features under the kernels, or, without kernels, minus the mean entropy of the class
    probabilities. InTEnt weighs by the entropy; the likelihood is ours. Logits are those of the averaged sigmoids.
    """

    def __init__(self, members: Sequence[TorchBackend], slices: torch.Tensor, batch_size: int = 8) -> None:
        self.members = list(members)
        scores = [torch.stack([_fit(member(part)) for part in slices.split(batch_size)]).mean() for member in members]
        self.weights = torch.stack(scores).softmax(dim=0)

    def __call__(self, batch: torch.Tensor) -> Explained:
        found = [member(batch) for member in self.members]
        chance = self._mean([one.logits.sigmoid() for one in found]).clamp(_TINY, 1 - _TINY)
        activations = [one.activations for one in found if one.activations is not None]
        likelihoods = [one.log_likelihood for one in found if one.log_likelihood is not None]
        if not activations or not likelihoods:
            return Explained(chance.logit())
        return Explained(chance.logit(), self._mean(activations), self._mean(likelihoods))

    def _mean(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.einsum("m,m...->...", self.weights, torch.stack(list(values)))


def _fit(found: Explained) -> torch.Tensor:
    if found.log_likelihood is not None:
        return found.log_likelihood.mean()
    log_chance = found.logits.log_softmax(dim=1)
    return (log_chance.exp() * log_chance).sum(dim=1).mean()


def trained_by_reconstruction(
    network: nn.Module, slices: torch.Tensor, steps: int = 15, learning_rate: float = 1e-3, batch_size: int = 16
) -> nn.Module:
    r"""Return a copy that was trained for a few steps to explain and to reconstruct one volume.

    .. math:: \min_{\gamma, \beta, \omega} \; \lvert X - \hat X \rvert_1 - \overline{\max_j \mu_j^\top z_p}

    over the scales and shifts :math:`\gamma, \beta` of the encoder's batch norms and the image decoder :math:`\omega`;
    kernels and segmentation head are frozen, and so are the statistics of batch norm. It stops as soon as the mean
    maximal cosine, the likelihood of the features, falls, and returns the weights before that step. Test-time training
    is named among the keywords of the vMFNet paper (MICCAI 2022), which gives no recipe: this one is ours.

    Args:
        network: a :class:`vmfseg.networks.VMFNet` with ``reconstruct=True``.
        slices: ``BCHW`` of one volume.
        steps: at most.
        learning_rate: of Adam.
        batch_size: slices of a step; more are taken in turn.
    """
    if not isinstance(network, VMFNet) or network.composer is None:
        raise ValueError(
            f"adapt must not be reconstruction for a network without kernels and image decoder, got "
            f"{type(network).__name__}. Use bn, or VMFNet with reconstruct=True."
        )
    twin = copy.deepcopy(network).eval().requires_grad_(False).to(slices.device)
    composer: Any = twin.composer
    norms = [module for module in twin.encoder.modules() if isinstance(module, _BatchNorm) and module.affine]
    free = [p for module in (*norms, composer) for p in module.parameters()]
    for parameter in free:
        parameter.requires_grad_(True)
    optimizer = torch.optim.Adam(free, lr=learning_rate)
    parts = slices.split(batch_size)
    best, kept = _cosine(twin, parts), copy.deepcopy(twin.state_dict())
    for step in range(steps):
        batch = parts[step % len(parts)]
        features = twin.encoder(batch)
        image = composer(twin.kernels(features), twin.kernels.unit_kernels())
        loss = (image - batch).abs().mean() - twin.kernels.cosine(features).amax(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = _cosine(twin, parts)
        if not now >= best:  # also a loss that is no number
            break
        best, kept = now, copy.deepcopy(twin.state_dict())
    twin.load_state_dict(kept)
    return twin.requires_grad_(False)


@torch.no_grad()
def _cosine(network: VMFNet, parts: Sequence[torch.Tensor]) -> float:
    values = [network.kernels.cosine(network.encoder(part)).amax(dim=1).mean() * len(part) for part in parts]
    return float(torch.stack(values).sum()) / sum(len(part) for part in parts)
