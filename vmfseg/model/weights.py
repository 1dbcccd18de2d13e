# SPDX-License-Identifier: Apache-2.0
"""Weights from a file into a network, or a reason why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events

from vmfseg.model.tensors import fill_network, read_tensors
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath

__all__ = ["ModelLoader", "load_model"]


def load_model(network: torch.nn.Module, path: StrPath) -> None:
    """Load the weights of ``path`` into ``network``; every tensor must fit.

    MONAI's tools skip tensors that do not fit, and segment with random ones.

    Args:
        network: as it was trained, perhaps wrapped for several processes.
        path: ``model.pt`` or ``model.safetensors``.

    Raises:
        VmfError: VMF301 if there is no such file, VMF306 if the weights belong to another network, VMF401 if the file
            holds anything but tensors, VMF402 if some are NaN.
    """
    if not Path(path).is_file():
        raise VmfError(
            "VMF301",
            subject=str(path),
            rule="there is no model",
            fix="train it first (python -m monai.bundle run training ...), or pass --checkpoint",
        )
    bare = getattr(network, "module", network)
    fill_network(bare, read_tensors(path), path)


class ModelLoader:
    """Load a model when an engine starts: :func:`load_model` as a handler.

    Args:
        network: where the weights go.
        path: ``model.pt`` or ``model.safetensors``.
    """

    def __init__(self, network: torch.nn.Module, path: StrPath) -> None:
        self.network, self.path = network, path

    def attach(self, engine: Engine) -> None:
        """Attach to an evaluator."""
        engine.add_event_handler(Events.STARTED, self)

    def __call__(self, _engine: Any = None) -> None:
        """Load."""
        load_model(self.network, self.path)
