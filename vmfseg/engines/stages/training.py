# SPDX-License-Identifier: Apache-2.0
"""Stage 3: the training proper, and the model it leaves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes

from vmfseg.data import SliceDataset
from vmfseg.engines.stages.assignment import choose_assignment, kernel_table
from vmfseg.engines.stages.runner import say
from vmfseg.engines.stepping import run_to_end
from vmfseg.handlers import ModelSelection, PolynomialDecayHandler, RunCheckpoint, load_tensors, save_tensors
from vmfseg.networks import AssignmentHead
from vmfseg.utils import VmfError, atomic_path, atomic_write, build_manifest, sha256_file, write_json
from vmfseg.utils.io import StrPath

__all__ = ["TrainingStage", "publish_model"]


class TrainingStage:
    """Run the trainer, choose the model by source validation, write it.

    Outputs: ``model.pt`` (a state dict, loads with ``weights_only=True``), ``model.safetensors`` and ``manifest.json``.
    They are also copied to ``ckpt_dir``, where MONAI's tools look for ``model.pt``.

    Args:
        trainer: the engine, handlers attached.
        network: whose state dict becomes the model; with two networks the better one's weights are put into it.
        selection: which weights are kept; attach it to evaluators by ``evaluators``.
        state: what has a state beside the selection (networks, optimizers, schedulers), by name.
        evaluators: engines of source validation with the network each evaluates, as ``[evaluator, network]`` pairs.
        ckpt_dir: folder of the model; empty for none.
        checkpoint_interval: epochs between two checkpoints.
        decay_power: the learning rates fall to zero by :class:`vmfseg.handlers.PolynomialDecayHandler`; 0 keeps them.
        assignment_loader: labelled source slices, for networks whose kernels are assigned to classes.
        manifest: facts for the manifest.
        fingerprint: what decides the result.

    Raises:
        VmfError: VMF294 if the masks to learn from lack a class, before any stage has run.
    """

    name = "training"

    def __init__(
        self,
        trainer: Any,
        network: torch.nn.Module,
        selection: ModelSelection,
        state: Mapping[str, Any],
        evaluators: Sequence[Sequence[Any]] = (),
        ckpt_dir: StrPath = "",
        checkpoint_interval: int = 1,
        assignment_loader: Any = None,
        decay_power: float = 0.0,
        manifest: Mapping[str, Any] | None = None,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        _check_classes(trainer)
        self.trainer, self.network, self.selection, self.state = trainer, network, selection, dict(state)
        self.evaluators, self.ckpt_dir, self.checkpoint_interval = list(evaluators), ckpt_dir, checkpoint_interval
        self.assignment_loader, self.manifest = assignment_loader, dict(manifest or {})
        self.decay_power = decay_power
        self.fingerprint = {"decay_power": decay_power, **(fingerprint or {})}

    def run(self, folder: Path, resume: bool) -> Sequence[str]:
        """Train and write the model."""
        _broadcast([value for value in self.state.values() if isinstance(value, torch.nn.Module)])
        for evaluator, network in self.evaluators:
            self.selection.attach(evaluator, network)
        state = {**self.state, "selection": self.selection}
        if hasattr(self.trainer, "stepper"):
            state["scaler"] = self.trainer.stepper.scaler
        checkpoint = RunCheckpoint(folder, state, self.checkpoint_interval)
        checkpoint.attach(self.trainer)
        if self.decay_power:  # before a state is restored, so that the rates are those of the config
            rates = [value for value in self.state.values() if isinstance(value, torch.optim.Optimizer)]
            PolynomialDecayHandler(rates, self.decay_power).attach(self.trainer)
        if resume:
            checkpoint.restore(self.trainer)
        run_to_end(self.trainer)
        if not self.selection.best_state or self.selection.mode == "last":
            self.selection.take(self.network, self.selection.best_metric, self.trainer.state.epoch)
        self._bare().load_state_dict(self.selection.best_state)
        facts: dict[str, Any] = {
            "selection": {
                "mode": self.selection.mode,
                "source_validation_dice": self.selection.best_metric,
                "epoch": self.selection.best_epoch,
            }
        }
        if isinstance(self._bare().head, AssignmentHead):
            facts["assignment"] = self._assign()
        return self._write(folder, facts)

    def load(self, folder: Path) -> None:
        """Take up ``model.pt``."""
        self._bare().load_state_dict(load_tensors(folder / "model.pt"))
        self._publish(folder)

    def _bare(self) -> Any:
        return getattr(self.network, "module", self.network)

    def _assign(self) -> dict[str, Any]:
        bare = self._bare()
        if self.assignment_loader is None:
            raise ValueError("assignment_loader must be given for a network with an AssignmentHead, got None.")
        device = next(bare.parameters()).device
        classes, dice = choose_assignment(kernel_table(bare, self.assignment_loader, bare.out_channels, device))
        bare.head.assign(classes)
        say(f"kernels assigned to classes {classes} on source slices, soft Dice there {dice:.3f}")
        return {"classes": classes, "source_soft_dice": dice}

    def _write(self, folder: Path, facts: Mapping[str, Any]) -> Sequence[str]:
        if getattr(self.trainer.state, "rank", 0):
            return []
        state = {k: v.detach().cpu().contiguous() for k, v in self._bare().state_dict().items()}
        save_tensors(folder / "model.pt", state)
        atomic_write(folder / "model.safetensors", safetensors_bytes(state, metadata={"format": "pt"}))
        hashes = {name: sha256_file(folder / name) for name in ("model.pt", "model.safetensors")}
        manifest = build_manifest(**self.manifest, **facts, sha256=hashes)
        write_json(folder / "manifest.json", json.loads(json.dumps(manifest, default=str)))
        self._publish(folder)
        return ["model.pt", "model.safetensors", "manifest.json"]

    def _publish(self, folder: Path) -> None:
        if self.ckpt_dir and not getattr(self.trainer.state, "rank", 0):
            publish_model(folder, self.ckpt_dir)


def publish_model(folder: Path, ckpt_dir: StrPath) -> None:
    """Copy the model of a finished stage to ``ckpt_dir``.

    A model that lies there and comes from no stage of this run's folder (one that was downloaded, say) is kept beside
    as ``model.<checksum>.pt``, its manifest likewise.
    """
    target = Path(ckpt_dir)
    known = {sha256_file(path) for path in folder.parent.glob("training-*/*") if path.is_file()}
    for name in ("model.pt", "model.safetensors", "manifest.json"):
        there = target / name
        if there.is_file() and (digest := sha256_file(there)) not in known:
            kept = there.with_name(f"{there.stem}.{digest[:8]}{there.suffix}")
            if not kept.exists():
                with atomic_path(kept, overwrite=False) as temporary:
                    shutil.copyfile(there, temporary)
                say(f"{there} was not made by this run; it is kept as {kept.name}")
        with atomic_path(there) as temporary:
            shutil.copyfile(folder / name, temporary)


def _check_classes(trainer: Any) -> None:
    loader = getattr(trainer.data_loader, "labeled", trainer.data_loader)
    dataset = getattr(loader, "dataset", None)
    if not isinstance(dataset, SliceDataset) or getattr(loader, "supervision", "none") != "mask":
        return
    absent = [str(n + 1) for n in np.flatnonzero(~dataset.presence().any(axis=0))]
    if absent:
        raise VmfError(
            "VMF294",
            subject=f"class {', '.join(absent)}",
            rule="every class must be in some labelled training slice",
            found=f"no voxel of it in {len(dataset)} slices of {len(dataset.rows)} volumes",
            fix="raise labeled_fraction, check image_size and pixdim, or leave the class out of the labels",
        )


def _broadcast(modules: Sequence[torch.nn.Module]) -> None:
    """Give all processes the weights of the first, since the stages before ran in each of them."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        for module in modules:
            for tensor in (*module.parameters(), *module.buffers()):
                torch.distributed.broadcast(tensor.data, src=0)
