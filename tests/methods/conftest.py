# SPDX-License-Identifier: Apache-2.0
"""Small networks of every compared method, and batches of several domains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from vmfseg.losses import VMFLoss
from vmfseg.methods import (
    DGNet,
    DGNetLoss,
    DGNetTrainer,
    LDDGLoss,
    LDDGNet,
    MethodTrainer,
    SAMLLoss,
    SAMLTrainer,
    SAMLUNet,
    SDNet,
    SDNetLoss,
    SDNetTrainer,
    SegmentationUNet,
)

DOMAINS = ("A", "B", "C")
METHODS = ("unet", "sdnet", "lddg", "saml", "dgnet")


def make_network(method: str, seed: int = 0, width: int = 4, **kwargs: Any) -> nn.Module:
    """Return a tiny network for images of 16 x 16 and more."""
    channels = (width, 2 * width, 4 * width)
    if method == "unet":
        return SegmentationUNet(channels=channels, seed=seed, **kwargs)
    if method == "sdnet":
        return SDNet(channels=channels, hidden_channels=width, style_grid=2, seed=seed, **kwargs)
    if method == "lddg":
        return LDDGNet(channels=channels, hidden_channels=width, seed=seed, **kwargs)
    if method == "saml":
        return SAMLUNet(channels=channels, seed=seed, **kwargs)
    return DGNet(channels=channels, style_channels=2, style_layers=3, style_grid=2, seed=seed, **kwargs)


def make_loss(method: str, **kwargs: Any) -> nn.Module:
    """Return the loss of a method with its own weights."""
    if method == "unet":
        return VMFLoss({"dice": 1.0, "cross_entropy": 1.0})
    if method == "dgnet":
        return DGNetLoss(DOMAINS, pixels=200, **kwargs)
    return {"sdnet": SDNetLoss, "lddg": LDDGLoss, "saml": SAMLLoss}[method](**kwargs)


def make_trainer(
    method: str, network: nn.Module, loader: Any, rate: float = 1e-3, epochs: int = 1, **kwargs: Any
) -> Any:
    """Return the trainer of a method."""
    kinds = {"unet": MethodTrainer, "lddg": MethodTrainer, "sdnet": SDNetTrainer, "saml": SAMLTrainer}
    loss = kwargs.pop("loss_function", None) or make_loss(method)
    optimizer = kwargs.pop("optimizer", torch.optim.Adam)(network.parameters(), rate)
    return kinds.get(method, DGNetTrainer)(
        device="cpu", max_epochs=epochs, train_data_loader=loader, network=network,
        optimizer=optimizer, loss_function=loss, **kwargs,
    )  # fmt: skip


@pytest.fixture
def network() -> Callable[..., nn.Module]:
    return make_network


@pytest.fixture
def loss() -> Callable[..., nn.Module]:
    return make_loss


@pytest.fixture
def trainer() -> Callable[..., Any]:
    return make_trainer


@pytest.fixture
def batch() -> Callable[..., dict[str, Any]]:
    """Return a function that makes a batch of three domains, the same for the same seed."""

    def make(seed: int = 0, domains: str = "ABCABC", labeled: int | None = None, size: int = 16) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        count = len(domains)
        made: dict[str, Any] = {"image": torch.rand(count, 1, size, size, generator=generator), "domain": [*domains]}
        coarse = torch.randint(0, 4, (count, 1, size // 4, size // 4), generator=generator)
        label = coarse.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
        labeled = count if labeled is None else labeled
        if labeled:
            made["label"] = label[:labeled]
        return made

    return make
