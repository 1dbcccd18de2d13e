# SPDX-License-Identifier: Apache-2.0
"""Training stage of nnU-Net: the package trains, the network it leaves becomes a model like any other."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vmfseg.engines.stages.runner import say
from vmfseg.engines.stages.training_stage import ModelStage, publish_model
from vmfseg.utils.io import StrPath

from .nnunet import NNUNet
from .nnunet_network import planned_model

__all__ = ["NNUNetStage"]


class NNUNetStage(ModelStage):
    """Train nnU-Net on labelled rows, and write its network as ``model.pt``, ``model.safetensors``, ``manifest.json``.

    A training that was killed goes on from nnU-Net's own last checkpoint with ``resume``; it is not deterministic, so
    not bit for bit. The scratch data goes when the model is written; nnU-Net's plans and log stay in the folder.

    Args:
        trainer: the package with its settings; its folder is set to one inside the stage's.
        data: labelled rows.
        labels: class names by value.
        ckpt_dir: folder of the model; empty for none.
        source: the data, an :class:`vmfseg.data.experiment.Experiment`; its settings go into the manifest.
        target_domain: rows of this domain are refused.
        bundle: name of the bundle.
        version: of the bundle.
        fingerprint: what decides the result beside the settings of the config.

    Attributes:
        folder: of the outputs, once the stage is done.
    """

    def __init__(
        self,
        trainer: NNUNet,
        data: Sequence[Mapping[str, Any]],
        labels: Mapping[Any, str],
        ckpt_dir: StrPath = "",
        source: Any = None,
        target_domain: str = "",
        bundle: str = "",
        version: str = "",
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(trainer, labels, ckpt_dir, source, bundle, version, fingerprint)
        self.data, self.target_domain = list(data), target_domain

    def check(self) -> None:
        """Refuse to start without the package.

        Raises:
            VmfError: VMF530 if nnunetv2 is not installed.
        """
        self.trainer.check_package()

    def run(self, folder: Path, resume: bool) -> Sequence[str]:
        """Train and write the model."""
        self.trainer.folder = folder / "nnunet"
        epochs, length = self.trainer.epochs
        say(f"training: nnU-Net, {epochs} epochs of {length} iterations on {len(self.data)} volumes")
        self.trainer.train(self.data, self.target_domain)
        plans, weights = self.trainer.trained()
        facts = {"selection": {"mode": "last"}, **self.data_facts()}
        model, state = planned_model(
            plans, weights, self.labels, self.trainer.mirror, name=self.bundle, version=self.version, facts=facts
        )
        names = model.save(folder, state)
        for place in ("raw", "preprocessed"):
            shutil.rmtree(self.trainer.folder / place, ignore_errors=True)
        self.load(folder)
        return names

    def load(self, folder: Path) -> None:
        """Take up the model of an earlier run."""
        self.folder = folder
        if self.ckpt_dir:
            publish_model(folder, self.ckpt_dir)
