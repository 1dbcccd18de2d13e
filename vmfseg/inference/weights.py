# SPDX-License-Identifier: Apache-2.0
"""Weights from a file into a network, or a reason why not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events

from vmfseg.handlers import load_tensors
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath

__all__ = ["ModelLoader", "load_model"]


def load_model(network: torch.nn.Module, path: StrPath) -> None:
    """Load the weights of ``path`` into ``network``; every tensor must fit.

    MONAI's tools skip tensors that do not fit, and segment with random ones.

    Args:
        network: as it was trained, perhaps wrapped for several processes.
        path: ``model.pt``.

    Raises:
        VmfError: VMF301 if there is no such file, VMF306 if the weights belong to another network, VMF401 if the file
            holds anything but tensors.
    """
    if not Path(path).is_file():
        raise VmfError(
            "VMF301",
            subject=str(path),
            rule="there is no model",
            fix="train it first (python -m monai.bundle run training ...), or pass --checkpoint",
        )
    bare = getattr(network, "module", network)
    weights = load_tensors(path)
    problems = _problems(bare.state_dict(), weights)
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise VmfError(
            "VMF306",
            subject=str(path),
            rule="the weights must fit the network",
            found="; ".join(problems[:3]) + more,
            fix="give the options of the training (--channels, --num_kernels ... or paper.json) here too",
        )
    bare.load_state_dict(weights)


class ModelLoader:
    """Load a model when an engine starts: :func:`load_model` as a handler.

    Args:
        network: where the weights go.
        path: ``model.pt``.
    """

    def __init__(self, network: torch.nn.Module, path: StrPath) -> None:
        self.network, self.path = network, path

    def attach(self, engine: Engine) -> None:
        """Attach to an evaluator."""
        engine.add_event_handler(Events.STARTED, self)

    def __call__(self, _engine: Any = None) -> None:
        """Load."""
        load_model(self.network, self.path)


def _problems(wanted: Mapping[str, torch.Tensor], given: Any) -> list[str]:
    if not isinstance(given, Mapping):
        return [f"a {type(given).__name__} instead of named tensors"]
    missing = [f"{name} is missing" for name in wanted if name not in given]
    shapes = [
        f"{name} is {tuple(given[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in given and given[name].shape != tensor.shape
    ]
    return shapes + missing + [f"{name} is not known" for name in given if name not in wanted]
