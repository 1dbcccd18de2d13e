# SPDX-License-Identifier: Apache-2.0
"""A trainer with a linear network, small enough to follow by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vmfseg.engines import SemiSupervisedTrainer
from vmfseg.networks import VMFParts


class Line(torch.nn.Module):
    """``y = w x``."""

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(value))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: torch.Tensor, return_parts: bool = False) -> Any:
        y = self.weight * x
        return VMFParts(y, y, y, y) if return_parts else y


@pytest.fixture
def line() -> Callable[..., Line]:
    return Line


def _images(count: int = 3, size: int = 2) -> list[dict[str, Any]]:
    return [
        {"image": torch.full((size, 1, 2, 2), 1.0 + number), "sample": [f"B/s{number}/1/{i}" for i in range(size)]}
        for number in range(count)
    ]


@pytest.fixture
def images() -> Callable[..., list[dict[str, Any]]]:
    return _images


@pytest.fixture
def trainer() -> Callable[..., SemiSupervisedTrainer]:
    """Return a function that makes a trainer of a :class:`Line`."""

    def make(net: torch.nn.Module, data: Any = None, epochs: int = 3, loss: Any = None, **kwargs: Any) -> Any:
        return SemiSupervisedTrainer(
            "cpu",
            epochs,
            _images() if data is None else data,
            net,
            torch.optim.SGD(net.parameters(), 0.01, momentum=0.9),
            loss or (lambda parts, *_args, **_kwargs: {"fit": (parts.logits - 5).square().mean()}),
            **kwargs,
        )

    return make
