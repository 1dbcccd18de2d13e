# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that survive a kill at any time, and the choice of the model by source validation."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from ignite.engine import Engine, Events

from vmfseg.networks.parts import bare_network
from vmfseg.utils import VmfError, atomic_write, read_json, write_json
from vmfseg.utils.io import StrPath, sha256_bytes

__all__ = ["ModelSelection", "RunCheckpoint", "Stateful", "load_tensors", "save_tensors"]

_LOG = logging.getLogger(__name__)


class Stateful(Protocol):
    """Anything with a state: networks, optimizers, schedulers, selections."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take up a state."""
        ...


def save_tensors(path: StrPath, value: Any) -> str:
    """Write nested dictionaries of tensors and numbers atomically and return the SHA-256 of the file."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    data = buffer.getvalue()
    atomic_write(path, data)
    return sha256_bytes(data)


def load_tensors(path: StrPath) -> Any:
    """Read what :func:`save_tensors` wrote. Nothing in the file is executed (``weights_only=True``).

    Raises:
        VmfError: VMF401 if the file is missing, damaged or holds anything but tensors and numbers.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise VmfError(
            "VMF401",
            subject=str(path),
            rule="the file must be a checkpoint of tensors and numbers",
            found=str(error).splitlines()[0] if str(error) else type(error).__name__,
            fix="use a file written by vmfseg, or train again",
        ) from error


class RunCheckpoint:
    """Save the whole state of a training at the end of every ``interval`` epochs and keep the last two.

    A checkpoint is written beside the previous one and named in ``checkpoint.json``, with its checksum, only when it is
    complete. If the newest is damaged, the one before is taken and that is said. All randomness of a run is stateless
    (:mod:`vmfseg.utils.seeds`), so a run continued from here equals an uninterrupted one bit for bit.

    Args:
        folder: where the checkpoints go.
        objects: what has a state, by name.
        interval: epochs between two checkpoints.
    """

    INDEX = "checkpoint.json"

    def __init__(self, folder: StrPath, objects: Mapping[str, Stateful], interval: int = 1) -> None:
        if interval < 1:
            raise ValueError(f"interval must be at least 1, got {interval}.")
        self.folder, self.objects, self.interval = Path(folder), dict(objects), interval

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer. Attach it last, so that it sees what the other handlers did in the epoch."""
        engine.add_event_handler(Events.EPOCH_COMPLETED(every=self.interval), self.save)

    def save(self, engine: Engine) -> None:
        """Write a checkpoint (only the first of several processes does)."""
        if getattr(engine.state, "rank", 0):
            return
        previous = self._entries()
        name = f"epoch-{engine.state.epoch:06d}.pt"
        payload = {
            "engine": {"epoch": engine.state.epoch, "iteration": engine.state.iteration},
            "objects": {key: value.state_dict() for key, value in self.objects.items()},
        }
        digest = save_tensors(self.folder / name, payload)
        kept = [entry for entry in previous if entry["file"] != name][-1:]
        write_json(self.folder / self.INDEX, {"checkpoints": [*kept, {"file": name, "sha256": digest}]})
        names = {name, *(entry["file"] for entry in kept)}
        for old in self.folder.glob("epoch-*.pt"):
            if old.name not in names:
                old.unlink()

    def restore(self, engine: Engine) -> bool:
        """Take up the newest good checkpoint; return whether there was one."""
        entries = self._entries()
        for entry in reversed(entries):
            path = self.folder / entry["file"]
            if not path.is_file() or sha256_bytes(path.read_bytes()) != entry["sha256"]:
                _LOG.warning("checkpoint %s is damaged; taking the one before", path.name)
                continue
            payload = load_tensors(path)
            for key, value in self.objects.items():
                value.load_state_dict(payload["objects"][key])
            engine.state.epoch = payload["engine"]["epoch"]
            engine.state.iteration = payload["engine"]["iteration"]
            return True
        return False

    def _entries(self) -> list[dict[str, str]]:
        index = self.folder / self.INDEX
        try:
            return list(read_json(index)["checkpoints"]) if index.is_file() else []
        except (VmfError, KeyError, TypeError):
            _LOG.warning("%s is damaged; the stage starts again", index)
            return []


class ModelSelection:
    """Remember the weights with the best score on *source* validation, or simply the last ones.

    It is attached to the evaluator of the source-validation data. Nothing of the target domain passes here: the class
    takes a score and a network, never data.

    Args:
        network: whose weights are kept.
        mode: ``"best"`` or ``"last"``.

    Attributes:
        best_metric: score of the kept weights, ``None`` before the first validation.
        best_epoch: epoch of the trainer at which they were taken.
    """

    def __init__(self, network: torch.nn.Module, mode: str = "best") -> None:
        if mode not in ("best", "last"):
            raise ValueError(f"mode must be best or last, got {mode!r}.")
        self.network, self.mode = network, mode
        self.best_metric: float | None = None
        self.best_epoch = 0
        self.best_state: dict[str, torch.Tensor] = {}

    def attach(self, evaluator: Engine, network: torch.nn.Module | None = None) -> None:
        """Attach to an evaluator; give ``network`` when several networks compete for one selection."""
        chosen = self.network if network is None else network
        evaluator.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: self._consider(engine, chosen))

    def _consider(self, engine: Any, network: torch.nn.Module) -> None:
        metric = float(engine.state.metrics[engine.state.key_metric_name])
        if metric != metric:  # no class was there to score
            metric = 0.0
        if self.mode == "last" or self.best_metric is None or metric > self.best_metric:
            self.take(network, metric, int(engine.state.epoch))

    def take(self, network: torch.nn.Module, metric: float | None = None, epoch: int = 0) -> None:
        """Keep a copy of the weights of ``network``."""
        self.best_metric, self.best_epoch = metric, epoch
        self.best_state = {k: v.detach().clone().cpu() for k, v in bare_network(network).state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {"metric": self.best_metric, "epoch": self.best_epoch, "weights": self.best_state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state."""
        self.best_metric, self.best_epoch = state["metric"], state["epoch"]
        self.best_state = dict(state["weights"])
