# SPDX-License-Identifier: Apache-2.0
"""Small networks and batches for the engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from vmfseg.networks import VMFNet, VMFParts


class PlainNet(nn.Module):
    """Two convolutions without batch norm, so that a big batch is exactly the mean of small ones."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.features = nn.Conv2d(1, 3, 3, padding=1)
            self.head = nn.Conv2d(3, 2, 1)

    def forward(self, x: torch.Tensor, return_parts: bool = False) -> Any:
        features = torch.tanh(self.features(x))
        logits = self.head(features)
        if not return_parts:
            return logits
        return VMFParts(logits, features, features.softmax(dim=1), torch.eye(3))


class MeanLoss:
    """Two mean terms, the second without any label."""

    def __call__(self, parts: VMFParts, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        terms = {"quiet": parts.features.square().mean()}
        if "label" in batch:
            terms["fit"] = (parts.logits[:, :1] - batch["label"]).square().mean()
        return terms


@pytest.fixture
def plain_net() -> Callable[..., PlainNet]:
    return PlainNet


@pytest.fixture
def mean_loss() -> MeanLoss:
    return MeanLoss()


@pytest.fixture
def vmf_net() -> Callable[..., VMFNet]:
    """Return a function that makes a tiny vMF network by seed."""

    def make(seed: int = 0, **kwargs: Any) -> VMFNet:
        return VMFNet(channels=(4, 8, 8), num_kernels=4, hidden_channels=4, seed=seed, **kwargs)

    return make


@pytest.fixture
def batches() -> Callable[..., list[dict[str, Any]]]:
    """Return a function that makes batches, the same for the same seed; ``labels`` says which have one."""

    def make(labels: tuple[bool, ...] = (True, True, True), size: int = 2, seed: int = 0) -> list[dict[str, Any]]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for number, labeled in enumerate(labels):
            batch: dict[str, Any] = {"image": torch.rand(size, 1, 16, 16, generator=generator)}
            label = torch.randint(0, 4, (size, 1, 16, 16), generator=generator)
            if labeled:
                batch["label"] = label
            batch["sample"] = [f"A/s{number}/0/{i}" for i in range(size)]
            made.append(batch)
        return made

    return make


def weights(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of everything a network holds."""
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


@pytest.fixture
def snapshot() -> Callable[[nn.Module], dict[str, torch.Tensor]]:
    return weights


@pytest.fixture
def same() -> Callable[[dict[str, torch.Tensor], dict[str, torch.Tensor]], list[str]]:
    """Return a function that names the entries that differ."""

    def compare(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
        assert a.keys() == b.keys()
        return [name for name in a if not torch.equal(a[name], b[name])]

    return compare
