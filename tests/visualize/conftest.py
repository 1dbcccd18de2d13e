# SPDX-License-Identifier: Apache-2.0
"""A finished run at the smallest scale: a phantom of eight hearts, a network with random weights, its figures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vmfseg.data import prepare_experiment
from vmfseg.metrics import SegmentationScores
from vmfseg.networks import VMFNet
from vmfseg.phantom import make_phantom
from vmfseg.visualize import SliceView

LABELS = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return the folders of the run (do not write into them) with its network and data."""
    home = tmp_path_factory.mktemp("run")
    data = make_phantom(home / "data", "mnms", subjects=8, size=48, frames=2, workers=1)
    experiment = prepare_experiment("mnms", data, target_domain="D", labeled_fraction=0.5, quiet=True)
    options = {"channels": [4, 8, 8], "num_kernels": 5, "hidden_channels": 4, "kappa": 20.0}
    network = VMFNet(out_channels=4, seed=0, **options).eval()
    with torch.no_grad():  # batch norm as if it had seen something
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.1)
    config = {
        "dataset_dir": "",
        "dataset": "mnms",
        "num_classes": 4,
        **options,
        "seed": 0,
        "pixdim": 6.0,
        "image_size": 32,
        "target_domain": "D",
        "labeled_fraction": 0.5,
        "protocol": "clean",
        "device": "$torch.device('cpu')",
        "network_def": {
            "_target_": "vmfseg.networks.VMFNet",
            "out_channels": "@num_classes",
            **{key: f"@{key}" for key in options},
            "seed": "@seed",
        },
        "source": {
            "_target_": "vmfseg.data.prepare_experiment",
            **{key: f"@{key}" for key in ("dataset", "dataset_dir", "target_domain", "labeled_fraction", "seed")},
        },
    }
    bundle = home / "tiny_mnms"
    stage = bundle / "output" / "stages" / "training-0123456789ab"
    for folder in (bundle / "configs", bundle / "models", stage):
        folder.mkdir(parents=True)
    (bundle / "configs" / "train.json").write_text(json.dumps(config))
    manifest = {
        "format": "vmfseg-manifest-1",
        "versions": {"python": "3"},
        "bundle": "tiny_mnms",
        "data": experiment.fingerprint,
        "phantom": True,
        "selection": {"mode": "best", "source_validation_dice": 0.5, "epoch": 2},
        "sha256": {"model.pt": "ab"},
    }
    for folder in (stage, bundle / "models"):
        torch.save(network.state_dict(), folder / "model.pt")
        (folder / "manifest.json").write_text(json.dumps(manifest))
    (stage / "done.json").write_text("{}")
    epochs = [
        {"epoch": k, "iteration": 5 * k, "terms": {"loss": 3.0 / k}, "validation": {"val_mean_dice": v}}
        for k, v in ((1, 0.25), (2, 0.5), (3, None))
    ]
    history = {"format": "vmfseg-history-1", "epochs": epochs}
    (bundle / "output" / "history.json").write_text(json.dumps(history))
    scores = SegmentationScores(LABELS)
    for number, row in enumerate(experiment.target):
        truth = np.zeros((12, 12, 3), np.uint8)
        truth[2:6, 2:6], truth[6:8, 2:6], truth[8:11, 2:9] = 1, 2, 3
        pred = np.roll(truth, number % 3, axis=0)
        if number == 2:
            pred[pred == 3] = 0  # a missed structure
        scores.update(pred, truth, (2.0, 2.0, 9.0), row["subject"], row["domain"], row["phase"], None, row["frame"])
    scores.write(bundle / "output")
    return SimpleNamespace(
        home=home, bundle=bundle, output=bundle / "output", data=data, network=network, experiment=experiment,
        scores=scores, config=config, manifest=manifest,
    )  # fmt: skip


@pytest.fixture
def copied(finished: SimpleNamespace, tmp_path: Path) -> Path:
    """Return a copy of the bundle that a test may change."""
    return Path(shutil.copytree(finished.bundle, tmp_path / "tiny_mnms"))


@pytest.fixture
def make_view():
    """Return a function that makes a slice with ``J`` random kernels: (kernels, **changes)."""

    def make(kernels: int = 5, **changes: object) -> SliceView:
        rng = np.random.default_rng(kernels)
        activations = rng.random((kernels, 8, 8))
        truth = np.zeros((16, 16), np.uint8)
        truth[2:6, 2:6], truth[8:12, 2:6], truth[2:6, 9:14] = 1, 2, 3
        values = {
            "image": rng.random((16, 16)),
            "activations": activations / activations.sum(axis=0),
            "features": rng.random((4, 8, 8)),
            "pred": np.roll(truth, 1, axis=0),
            "truth": truth,
            "reconstruction": rng.random((16, 16)),
            "subject": "s1",
        }
        return SliceView(**{**values, **changes})

    return make


@pytest.fixture
def case_rows():
    """Return a function that scores shifted squares: one volume for each (domain, subject, shift or None = missed)."""

    def make(*volumes: tuple[str, str, int | None]):
        truth = np.zeros((12, 12, 2), np.uint8)
        truth[2:6, 2:6], truth[7:10, 2:6] = 1, 2
        scores = SegmentationScores({1: "LV", 2: "RV"})
        for domain, subject, shift in volumes:
            pred = np.where(truth == 2, 0, truth) if shift is None else np.roll(truth, shift, axis=1)
            scores.update(pred, truth, (1.0, 1.0, 5.0), subject, domain)
        return scores

    return make
