# SPDX-License-Identifier: Apache-2.0
"""Training stage: run the trainer, choose the model by source validation, write the model artefact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vmfseg.data import SliceDataset
from vmfseg.engines.stages.assignment import choose_assignment, kernel_table
from vmfseg.engines.stages.cost import CostHandler
from vmfseg.engines.stages.runner import say
from vmfseg.engines.stepping import run_to_end
from vmfseg.handlers import ModelSelection
from vmfseg.handlers.checkpoint import RunCheckpoint, load_tensors
from vmfseg.model.artifact import MODEL_FILES, Model
from vmfseg.model.definitions import settings_of
from vmfseg.networks import AssignmentHead, network_parts
from vmfseg.networks.parts import bare_network
from vmfseg.utils import VmfError, check_choice, sha256_file
from vmfseg.utils.io import StrPath, copy_file

__all__ = ["ModelStage", "TrainingStage", "publish_model"]


class ModelStage:
    """What all stages have in common that leave a model: its labels, where it comes from, where it goes.

    Args:
        trainer: what trains.
        labels: class names by value.
        ckpt_dir: folder of the model; empty for none.
        source: the data, an :class:`vmfseg.data.experiment.Experiment`; its settings go into the manifest.
        bundle: name of the bundle.
        version: of the bundle.
        fingerprint: what decides the result beside the settings of the config.
    """

    name = "training"

    def __init__(
        self,
        trainer: Any,
        labels: Mapping[Any, str],
        ckpt_dir: StrPath,
        source: Any,
        bundle: str,
        version: str,
        fingerprint: Mapping[str, Any] | None,
    ) -> None:
        self.trainer, self.labels = trainer, {int(value): str(name) for value, name in labels.items()}
        self.ckpt_dir, self.source, self.bundle, self.version = ckpt_dir, source, bundle, version
        self.fingerprint = dict(fingerprint or {})
        self.folder: Path | None = None

    def data_facts(self) -> dict[str, Any]:
        """Return what the manifest says about the data, as ``data``."""
        if self.source is None:
            return {}
        settings = {key: value for key, value in settings_of(self.source).items() if key != "_target_"}
        return {"data": {**settings, **self.source.fingerprint, "is_phantom": self.source.is_phantom}}


class TrainingStage(ModelStage):
    """Run the trainer, choose the model by source validation, write it.

    Outputs: ``model.pt`` (a state dict, loads with ``weights_only=True``), ``model.safetensors`` and ``manifest.json``,
    see :mod:`vmfseg.model.artifact`. They are also copied to ``ckpt_dir``, where MONAI's tools look for ``model.pt``.

    Args:
        trainer: the engine, handlers attached.
        network: whose state dict becomes the model; with two networks the better one's weights are put into it.
        preprocessing: the ``Compose`` from a row to slices, as the config has it.
        postprocessing: the ``Compose`` from logits to labels.
        labels: class names by value.
        selection: which weights are kept; attached to the evaluators.
        state: what has a state beside the selection (networks, optimizers), by name; ``None`` for one
            that is switched off.
        evaluators: engines of source validation with the network each evaluates, as ``[evaluator, network]`` pairs.
        ckpt_dir: folder of the model; empty for none.
        checkpoint_interval: epochs between two checkpoints.
        assignment_loader: labelled source slices, for networks whose kernels are assigned to classes.
        source: the data, an :class:`vmfseg.data.experiment.Experiment`; its settings go into the manifest.
        bundle: name of the bundle.
        version: of the bundle.
        orientation: ``"any"`` if it was taught turned and mirrored slices, so that scans whose header has lost the
            orientation can be segmented (:mod:`vmfseg.model.lost_orientation`).
        fingerprint: what decides the result beside the settings of the config.

    Attributes:
        folder: of the outputs, once the stage is done.
    """

    def __init__(
        self,
        trainer: Any,
        network: torch.nn.Module,
        preprocessing: Any,
        postprocessing: Any,
        labels: Mapping[Any, str],
        selection: ModelSelection,
        state: Mapping[str, Any],
        evaluators: Sequence[Sequence[Any]] = (),
        ckpt_dir: StrPath = "",
        checkpoint_interval: int = 1,
        assignment_loader: Any = None,
        source: Any = None,
        bundle: str = "",
        version: str = "",
        orientation: str = "header",
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(trainer, labels, ckpt_dir, source, bundle, version, fingerprint)
        check_choice("orientation", orientation, ("header", "any"))
        self.orientation, self.network, self.selection = orientation, network, selection
        self.state = {name: value for name, value in state.items() if value is not None}
        self.preprocessing, self.postprocessing = preprocessing, postprocessing
        self.evaluators, self.checkpoint_interval = list(evaluators), checkpoint_interval
        self.assignment_loader = assignment_loader

    def check(self) -> None:
        """Refuse what cannot be trained or built again, before any stage has run.

        Raises:
            VmfError: VMF100 if there is no step to train, VMF294 if the masks to learn from lack a class, VMF320 if
                network or transforms are not plain, VMF350 if the network gives another number of classes.
            ValueError: a loss term has a weight but the network lacks the part it needs.
        """
        if int(self.trainer.state.max_epochs) < 1:
            raise VmfError(
                "VMF100",
                subject="max_iterations, max_epochs",
                rule="a training needs at least one step",
                found=f"{self.trainer.state.max_epochs} epochs",
                fix="give a max_iterations of 1 or more",
            )
        _check_classes(self.trainer)
        model = self._describe()
        blank = torch.zeros(2, model.channels, *model.image_size, device=self.trainer.state.device)
        bare = bare_network(self.network)
        was_training = bare.training
        with torch.no_grad():
            parts = network_parts(bare.eval(), blank)
        bare.train(was_training)
        if parts.logits.shape[1] != len(self.labels):
            raise VmfError(
                "VMF350",
                subject="network_def",
                rule=f"the network must give a score for each of {len(self.labels)} classes, background included",
                found=f"{parts.logits.shape[1]} output channels",
                fix=f"set its out_channels to {len(self.labels)}, or change labels",
            )
        check_parts = getattr(self.trainer.loss_function, "check_parts", None)
        if check_parts is not None:
            check_parts(parts)
            self._leave_out_unlabeled(parts, blank)

    def _leave_out_unlabeled(self, parts: Any, blank: torch.Tensor) -> None:
        """Train on labelled batches alone where no term of the loss learns from the others."""
        loader = self.trainer.data_loader
        if getattr(loader, "unlabeled", None) is None or bool(getattr(self.trainer, "levers", None)):
            return
        batch = {"image": blank, "partner": parts.logits, "presence": torch.zeros(2, len(self.labels) - 1).bool()}
        dataset = getattr(getattr(loader, "labeled", None), "dataset", None)
        if isinstance(dataset, SliceDataset):
            batch["domain"] = [dataset.domain(0)] * len(blank)
        if not self.trainer.loss_function(parts, batch):
            say("no term of the loss learns from unlabelled images: labelled batches alone are used")
            loader.unlabeled, loader.ratio = None, 0
            self.trainer.state.epoch_length = len(loader)

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
        CostHandler(folder / "cost.json", resume).attach(self.trainer)
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
        if isinstance(getattr(self._bare(), "head", None), AssignmentHead):
            facts["assignment"] = self._assign()
        return self._write(folder, facts)

    def load(self, folder: Path) -> None:
        """Take up ``model.pt``."""
        self._bare().load_state_dict(load_tensors(folder / "model.pt"))
        self.folder = folder
        self._publish(folder)

    def _bare(self) -> Any:
        return bare_network(self.network)

    def _describe(self) -> Model:
        channels, *size = _image_shape(self.trainer.data_loader)
        facts = {"orientation": self.orientation, **self.data_facts()}
        return Model.describe(
            self.network, self.preprocessing, self.postprocessing, self.labels, channels, size,
            name=self.bundle, version=self.version, facts=facts,
        )  # fmt: skip

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
        self.folder = folder
        if getattr(self.trainer.state, "rank", 0):
            return []
        names = self._describe().save(folder, self._bare().state_dict(), **facts)
        self._publish(folder)
        return names

    def _publish(self, folder: Path) -> None:
        if self.ckpt_dir and not getattr(self.trainer.state, "rank", 0):
            publish_model(folder, self.ckpt_dir)


def publish_model(folder: Path, ckpt_dir: StrPath) -> None:
    """Copy the model of a finished stage to ``ckpt_dir``, with ``cost.json`` where there is one.

    A model that lies there and comes from no stage of this run's folder (one that was downloaded, say) is kept beside
    as ``model.<checksum>.pt``; its manifest and what was learnt about it likewise.
    """
    target = Path(ckpt_dir)
    known = {sha256_file(path): path.parent for path in folder.parent.glob("*/*") if path.is_file()}
    _say_replaced(folder, target, known)
    for name in (*MODEL_FILES, "quality.json", "shift.json"):
        there = target / name
        if there.is_file() and (digest := sha256_file(there)) not in known:
            kept = there.with_name(f"{there.stem}.{digest[:8]}{there.suffix}")
            if not kept.exists():
                copy_file(there, kept, overwrite=False)
                say(f"{there} was not made by this run; it is kept as {kept.name}")
    for name in (*MODEL_FILES, "cost.json"):
        if (folder / name).is_file():
            copy_file(folder / name, target / name)


def _say_replaced(folder: Path, target: Path, known: Mapping[str, Path]) -> None:
    """Say that the model of another configuration gives way, and where it is kept."""
    there = target / "model.safetensors"
    owner = known.get(sha256_file(there)) if there.is_file() else None
    if owner not in (None, folder) and sha256_file(there) != sha256_file(folder / there.name):
        say(f"{target}: the model there was trained with other settings; it gives way and is kept in {owner}")


def _image_shape(loader: Any) -> tuple[int, ...]:
    """Return channels and size of the images that a loader gives."""
    first = getattr(loader, "labeled", loader)
    dataset = getattr(first, "dataset", None)
    image = dataset[0]["image"] if isinstance(dataset, SliceDataset) else next(iter(first))["image"][0]
    return tuple(int(size) for size in image.shape)


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
            found=f"no voxel of it in {len(dataset)} slices of {len(dataset.rows)} volumes",
        )


def _broadcast(modules: Sequence[torch.nn.Module]) -> None:
    """Give all processes the weights of the first, since the stages before ran in each of them."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        for module in modules:
            for tensor in (*module.parameters(), *module.buffers()):
                torch.distributed.broadcast(tensor.data, src=0)
