# SPDX-License-Identifier: Apache-2.0
"""A finished run at the smallest scale: a phantom of eight hearts, a network with random weights, its figures."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vmfseg.bundle.compile import write_bundle
from vmfseg.data import prepare_experiment
from vmfseg.metrics import SegmentationScores
from vmfseg.model import Model, Predictor
from vmfseg.model.definitions import build
from vmfseg.networks import VMFNet
from vmfseg.phantom import make_phantom
from vmfseg.visualize.slice_views import SliceView

LABELS = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}
DATA = {"dataset": "mnms", "target_domain": "D", "labeled_fraction": 0.5, "seed": 0}


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return the folders of the run (do not write into them) with its model and data."""
    home = tmp_path_factory.mktemp("run")
    data = make_phantom(home / "data", "mnms", subjects=8, size=48, frames=2, workers=1)
    experiment = prepare_experiment(**DATA, dataset_dir=data, quiet=True)
    options = {"channels": [4, 8, 8], "num_kernels": 5, "hidden_channels": 4, "kappa": 20.0, "out_channels": 4}
    network = VMFNet(seed=0, **options).eval()
    with torch.no_grad():  # batch norm as if it had seen something
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.1)
    write_bundle("vmfnet_mnms", home)
    bundle = (home / "vmfnet_mnms").rename(home / "tiny_mnms")
    (bundle / "output").mkdir()
    definition = {"_target_": "vmfseg.networks.VMFNet", **options}
    model = Model.of_slices(
        definition, LABELS, 6.0, (32, 32), name="tiny_mnms", version="0.1.0",
        facts={
            "data": {**DATA, "is_phantom": True, **experiment.fingerprint},
            "selection": {"mode": "best", "source_validation_dice": 0.5, "epoch": 2},
        },
    )  # fmt: skip
    model.save(bundle / "models", network.state_dict())
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
        scores=scores, model=model, predictor=Predictor.from_bundle(bundle, "cpu"),
    )  # fmt: skip


@pytest.fixture
def copied(finished: SimpleNamespace, tmp_path: Path) -> Path:
    """Return a copy of the bundle that a test may change."""
    return Path(shutil.copytree(finished.bundle, tmp_path / "tiny_mnms"))


@pytest.fixture
def plain(finished: SimpleNamespace, copied: Path) -> Path:
    """Return a copy of the bundle whose network is a MONAI U-Net without kernels."""
    definition = {
        "_target_": "monai.networks.nets.UNet", "spatial_dims": 2, "in_channels": 1, "out_channels": 4,
        "channels": [4, 8], "strides": [2],
    }  # fmt: skip
    model = replace(finished.model, network=definition)
    model.save(copied / "models", build(definition, "network").state_dict())
    return copied


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
