# SPDX-License-Identifier: Apache-2.0
"""Networks made ready for inference: batch norm folded into convolutions, parts that only training needs removed."""

# no `from __future__ import annotations` here: TorchScript reads the types of Explained at run time
import copy
from typing import Any, NamedTuple, Optional

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vmfseg.model.fast_convolution import use_winograd
from vmfseg.networks import VMFKernels, VMFNet
from vmfseg.networks.distribution import log_vmf_normalizer
from vmfseg.networks.parts import bare_network

__all__ = ["Explained", "ExplainedNetwork", "deploy", "even_size", "explained_network", "run_batch"]

#: Parts of a network that no logit depends on.
_TRAINING_ONLY = ("composer", "presence_head")


def deploy(network: nn.Module, portable: bool = True) -> nn.Module:
    r"""Return a copy of a network for inference: same logits up to rounding, half the time or less on a CPU.

    Batch norm is folded into the convolution before it, :math:`W' = W \gamma / \sqrt{v + \epsilon}`; composer and
    presence head are left out, since no logit depends on them; convolutions keep channels last. Unless the copy is to
    be portable, those of many channels are computed on a CPU by
    :class:`~vmfseg.model.fast_convolution.WinogradConv2d`. The copy is in eval mode; its parameters need no gradient.

    Args:
        network: any module; it stays as it is.
        portable: keep plain convolutions, for files that other programs read.

    Example:
        >>> network = VMFNet(channels=(8, 16, 16), hidden_channels=8, seed=0).eval()
        >>> image = torch.rand(2, 1, 32, 32)
        >>> fast = deploy(network, portable=False)
        >>> bool((fast(image) - network(image)).abs().max() < 1e-5), fast.composer is None
        (True, True)
    """
    bare = bare_network(network)
    parts = [getattr(bare, name) for name in _TRAINING_ONLY] if isinstance(bare, VMFNet) else []
    ready: Any = copy.deepcopy(bare, {id(part): None for part in parts if part is not None})  # known, so not copied
    ready.eval()
    for module in list(ready.modules()):
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:  # parts in this order
            _fold(module)
    for parameter in ready.parameters():
        parameter.requires_grad_(False)
    if not portable:
        use_winograd(ready)
    deployed: nn.Module = ready.to(memory_format=torch.channels_last)
    return deployed


def even_size(count: int, batch_size: int) -> int:
    """Return the batch size that spreads ``count`` slices evenly over as many batches as ``batch_size`` needs.

    Example:
        >>> even_size(9, 8)
        5
    """
    parts = max(1, -(-count // max(1, batch_size)))
    return max(1, -(-count // parts))


def run_batch(network: Any, batch: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Run a network on a batch of slices without gradients; a single slice goes twice.

    A batch of one takes other kernels of oneDNN than a batch of several, with other rounding. Without such batches the
    result does not depend on the batch size.
    """
    with torch.no_grad():
        if len(batch) != 1:
            return network(batch, *args, **kwargs)
        result = network(batch.expand(2, *batch.shape[1:]).contiguous(), *args, **kwargs)
    if isinstance(result, torch.Tensor):
        return result[:1]
    return type(result)(*(_first(name, value) for name, value in zip(result._fields, result, strict=True)))


class Explained(NamedTuple):
    """Output of a backend for a batch of slices.

    Attributes:
        logits: ``BNHW``.
        activations: ``BJhw``, or ``None`` for a network without kernels.
        log_likelihood: ``B1hw``, of the features under the kernels, or ``None``.
    """

    logits: torch.Tensor
    activations: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
    log_likelihood: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript


class ExplainedNetwork(nn.Module):
    r"""Logits with the activations and the log-likelihood of the kernels, for backends and exports.

    The log-likelihood is :math:`\log \frac1J \sum_j C_F(\kappa) e^{\kappa \mu_j^\top z_p}`, as in
    :meth:`VMFKernels.log_likelihood`.

    Shape: ``BCHW`` -> logits ``BNHW``, activations ``BJhw``, log-likelihood ``B1hw``.

    Args:
        network: a :class:`VMFNet`; see :func:`deploy`.
    """

    def __init__(self, network: VMFNet) -> None:
        super().__init__()
        self.encoder, self.kernels, self.head = network.encoder, network.kernels, network.head
        kernels: VMFKernels = network.kernels
        constant = log_vmf_normalizer(float(kernels.kappa), kernels.feature_channels)
        self.constant = constant - float(torch.log(torch.tensor(float(kernels.num_kernels), dtype=torch.float64)))

    def forward(self, x: torch.Tensor) -> Explained:
        """Return logits, activations and log-likelihood."""
        features = self.encoder(x)
        activations = self.kernels(features)
        scaled = self.kernels.kappa * self.kernels.cosine(features)
        likelihood = torch.logsumexp(scaled, dim=1, keepdim=True) + self.constant
        return Explained(self.head(activations), activations, likelihood)


def explained_network(network: Any) -> nn.Module:
    """Return a network whose forward gives what :class:`Explained` holds, as a tuple where there are kernels.

    Any network is taken: one without kernels is returned as it is, and gives logits alone.
    """
    bare = bare_network(network)
    return ExplainedNetwork(bare) if isinstance(bare, VMFNet) else bare


def _first(name: str, value: torch.Tensor | None) -> torch.Tensor | None:
    return value if value is None or name == "kernels" else value[:1]


def _fold(sequence: nn.Sequential) -> None:
    for index in range(1, len(sequence)):
        before, module = sequence[index - 1], sequence[index]
        if isinstance(module, _BatchNorm) and isinstance(before, _ConvNd):
            sequence[index - 1] = fuse_conv_bn_eval(before, module, transpose=before.transposed)
            sequence[index] = nn.Identity()
