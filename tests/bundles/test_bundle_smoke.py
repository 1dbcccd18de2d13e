# SPDX-License-Identifier: Apache-2.0
"""All bundles train, evaluate and segment by MONAI's own commands, wherever they lie and wherever one stands."""

from __future__ import annotations

import json
import math
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from conftest import NETWORK, SHORT, TINY, short

from vmfseg.model import Model

NAMES = [
    "vmfnet_mnms",
    "vmfpseudo_mnms",
    "vmfweak_mnms",
    "weak_mnms",
    "unsupervised_mnms",
    "vmfnet_scgm",
    "vmfpseudo_scgm",
]


def snapshot(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def trained(phantoms, run_bundle, copied):
    """Return a function that trains a bundle once and gives its folder, its data and what was printed."""
    done = {}

    def train(name: str) -> tuple[Path, Path, str]:
        if name not in done:
            bundle, data = copied(name), phantoms[name.split("_")[1]]
            before = snapshot(data)
            text = run_bundle(
                "training", "--config_file", str(bundle / "configs/train.json"), dataset_dir=data, **TINY, **short(name)
            )
            assert snapshot(data) == before, "the data was changed"
            done[name] = bundle, data, text
        return done[name]

    return train


@pytest.mark.parametrize("name", NAMES)
def test_one_command_trains_and_scores(name, trained):
    bundle, _, text = trained(name)
    metrics = json.loads((bundle / "output" / "metrics.json").read_text())
    assert math.isfinite(metrics["mean_dice"])
    assert 0 <= metrics["mean_dice"] <= 1
    assert f"mean Dice on the unseen domain: {metrics['mean_dice']:.3f}" in text
    stages = 5 if name.startswith(("weak", "unsupervised")) else 3
    assert f"stage {stages}/{stages} evaluation" in text
    assert str(bundle / "models" / "model.pt") in text
    weights = torch.load(bundle / "models" / "model.pt", weights_only=True)
    assert all(torch.isfinite(value).all() for value in weights.values())
    assert (bundle / "models" / "model.safetensors").is_file()
    for file in ("quality.json", "shift.json", "calibration.safetensors"):
        assert (bundle / "models" / file).is_file(), "the calibration stage leaves it"
    manifest = json.loads((bundle / "models" / "manifest.json").read_text())
    assert manifest["name"] == name
    assert manifest["data"]["protocol"] == "clean"
    assert manifest["input"] == {"channels": 1, "shape": [64, 64]}
    assert manifest["network"]["channels"] == NETWORK["network_def::channels"]
    assert str(bundle) not in json.dumps(manifest)
    network = Model.load(bundle).build_network()
    assert all(torch.equal(weights[key], value) for key, value in network.state_dict().items())
    assert len(list(bundle.glob("output/tensorboard/*/events.*"))) == 1
    kept = {"LICENSE", "configs", "docs", "models", "output"}
    assert {path.name for path in bundle.iterdir()} == kept
    if name.startswith(("weak", "unsupervised")):
        assert len(manifest["assignment"]["classes"]) == NETWORK["network_def::num_kernels"]


@pytest.mark.parametrize(
    "name", [n if n in ("vmfnet_mnms", "unsupervised_mnms") else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_evaluating_the_model_again_gives_the_same_figures(name, trained, run_bundle):
    bundle, data, _ = trained(name)
    files = [str(bundle / "configs" / file) for file in ("train.json", "evaluate.json")]
    text = run_bundle("evaluating", "--config_file", str(files), dataset_dir=data)  # the manifest has the network
    again = json.loads((bundle / "eval" / "metrics.json").read_text())
    first = json.loads((bundle / "output" / "metrics.json").read_text())
    assert again["mean_dice"] == pytest.approx(first["mean_dice"], abs=1e-12)
    assert (bundle / "eval" / "metrics.csv").read_bytes() == (bundle / "output" / "metrics.csv").read_bytes()
    assert "stage" not in text


@pytest.mark.parametrize("name", [n if n == "vmfnet_mnms" else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_inference_writes_labels_on_the_grid_of_each_image(name, trained, run_bundle, tmp_path):
    bundle, data, _ = trained(name)
    source = next(
        path for path in sorted(data.rglob("*.nii.gz")) if path.name.endswith(("_sa.nii.gz", "-image.nii.gz"))
    )
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / source.name).write_bytes(source.read_bytes())
    text = run_bundle(
        "--config_file",
        str(bundle / "configs/inference.json"),
        dataset_dir=tmp_path / "in",
        output_dir=tmp_path / "out",
    )
    image = nib.load(source)
    frames = image.shape[3] if image.ndim == 4 else 1
    labels = sorted((tmp_path / "out" / "sub").iterdir())
    assert len(labels) == frames
    assert f"{frames} label maps in {tmp_path / 'out'}" in text
    for path in labels:
        label = nib.load(path)
        assert label.shape == image.shape[:3]
        assert label.get_data_dtype() == np.uint8
        np.testing.assert_array_equal(label.get_sform(), image.get_sform())
        np.testing.assert_array_equal(label.get_qform(), image.get_qform())
        assert int(label.header["sform_code"]) == int(image.header["sform_code"])
        assert np.asarray(label.dataobj).max() < (4 if name.endswith("mnms") else 3)


def test_a_finished_run_is_taken_up_and_says_so(trained, run_bundle):
    bundle, data, first = trained("vmfnet_mnms")
    text = run_bundle(
        "training", "--config_file", str(bundle / "configs/train.json"), dataset_dir=data, **TINY, **SHORT
    )
    assert text.count("done already") == 3
    ends = [
        [line for line in lines.splitlines() if line.startswith(("mean Dice on", "model:", "figures:"))]
        for lines in (first, text)
    ]
    assert len(ends[0]) == 3
    assert ends[0] == ends[1]
    assert len(list(bundle.glob("output/tensorboard/*"))) == 1, "a run that trains nothing draws no curve"


def test_one_step_can_add_up_a_labelled_and_an_unlabelled_batch(phantoms, run_bundle, copied):
    bundle, keys = copied("vmfnet_mnms"), {"dataset_dir": phantoms["mnms"], **TINY, **SHORT}
    run_bundle("training", "--config_file", str(bundle / "configs/train.json"), accumulation_steps=2, **keys)
    (path,) = bundle.glob("output/stages/training-*/epoch-*.pt")
    state = torch.load(path, weights_only=True)
    steps = {int(entry["step"]) for entry in state["objects"]["optimizer"]["state"].values()}
    assert steps == {SHORT["max_iterations"]}  # two labelled batches and two without labels
