# SPDX-License-Identifier: Apache-2.0
"""Our bundles in MONAI Label's own monaibundle app: the keys it reads, and training as it starts one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from monai.bundle import ConfigParser
from serving_tools import voxels

FILES = (Path(__file__).parents[2] / "bundles").glob("*/configs/train.json")
# nnU-Net trains by its own package, not inside the app
BUNDLES = sorted(path.parent.parent for path in FILES if not path.parts[-3].startswith("nnunet"))
NAMES = [path.name for path in BUNDLES]
HEARTS = [path for path in BUNDLES if path.name.endswith("_mnms")]

# What MONAI Label does for a training on one device (BundleTrainTask): the data of its store in place of the bundle's,
# a loader of the weights that are there in front of the handlers, no initialize and no finalize.
PROGRAM = """
import json, pathlib, sys
import torch
from monai.bundle import ConfigParser, run

bundle, data = sys.argv[1], json.loads(sys.argv[2])
config = ConfigParser()
config.read_config(f"{bundle}/configs/train.json")
handlers = config.get("train#handlers", [])
if pathlib.Path(bundle, 'models', 'model.pt').exists():
    handlers.insert(0, {"_target_": "CheckpointLoader", "load_path": f"{bundle}/models/model.pt",
                        "load_dict": {"model": "$@network"}, "strict": False})
run(run_id="run", init_id=None, final_id=None, meta_file=f"{bundle}/configs/metadata.json",
    config_file=f"{bundle}/configs/train.json", **{
        "bundle_root": bundle, "train#trainer#max_epochs": 1, "train#dataset#data": data[:2],
        "device": torch.device("cpu"), "train#handlers": handlers, "validate#dataset#data": data[2:]})
"""


@pytest.mark.parametrize("bundle", BUNDLES, ids=NAMES)
def test_inference_has_the_keys_that_the_app_reads(bundle):
    config = ConfigParser()
    config.read_config(str(bundle / "configs" / "inference.json"))
    for key in ("network_def", "preprocessing", "postprocessing", "inferer", "device", "bundle_root"):
        assert config.get(key) is not None, key
    metadata = json.loads((bundle / "configs" / "metadata.json").read_text())
    formats = metadata["network_data_format"]
    assert next(iter(formats["inputs"])) == "image"
    assert next(iter(formats["outputs"])) == "pred"
    classes = formats["outputs"]["pred"]["channel_def"]
    assert classes["0"].lower() == "background"
    assert len(classes) == formats["outputs"]["pred"]["num_channels"]


@pytest.mark.parametrize("bundle", BUNDLES, ids=NAMES)
def test_train_has_the_keys_that_the_app_replaces(bundle):
    config = ConfigParser()
    config.read_config(str(bundle / "configs" / "train.json"))
    for key in ("train#dataset#data", "validate#dataset#data", "train#handlers", "train#trainer#max_epochs", "network"):
        assert config.get(key) is not None, key
    assert all("_target_" in handler for handler in config.get("train#handlers")), "the app looks for loaders by this"
    assert config.get("run") is not None


@pytest.mark.slow
def test_training_as_the_app_starts_it(bundle, rows, tmp_path):
    before = (bundle / "models" / "model.pt").read_bytes()
    output = _train(bundle, rows, tmp_path)
    assert (bundle / "models" / "model.pt").read_bytes() != before
    history = json.loads((bundle / "output" / "history.json").read_text())
    assert [row["epoch"] for row in history["epochs"]] == [1]
    assert history["epochs"][0]["validation"]
    assert "2 labelled, 0 unlabelled, 1 validation subjects), no unseen domain" in output


@pytest.mark.slow
@pytest.mark.parametrize("original", HEARTS, ids=[path.name for path in HEARTS])
def test_the_app_trains_every_method_on_its_own_rows_alone(original, rows, tmp_path):
    bundle = Path(shutil.copytree(original, tmp_path / original.name, ignore=shutil.ignore_patterns("output", "*.pt")))
    chosen = rows[:2] if "vmfnet" in bundle.name else rows  # two: none is left for validation
    _train(bundle, chosen, tmp_path, channels=[4, 8, 8, 8, 8])
    assert (bundle / "models" / "model.pt").is_file()
    manifest = json.loads((bundle / "models" / "manifest.json").read_text())
    assert manifest["phantom"] is False


def _train(bundle, rows, tmp_path, **changes):
    path = bundle / "configs" / "train.json"
    config = json.loads(path.read_text())
    config.update(max_iterations=2, epoch_length=2, pretraining_iterations=2, calibration_slices=0)
    config.update(changes)
    path.write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(bundle), json.dumps(rows)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "VMFSEG_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert not (tmp_path / "cache").exists(), "the app knows of no data but its own, so no phantom may be learnt from"
    assert not (bundle / "output" / "metrics.json").exists()
    return done.stdout


@pytest.fixture
def rows(tmp_path):
    rows = []
    for number in range(3):
        image = voxels((40, 36, 4), number)
        label = np.digitize(image, [400, 600, 800]).astype(np.uint8)
        row = {"image": str(tmp_path / f"i{number}.nii.gz"), "label": str(tmp_path / f"l{number}.nii.gz")}
        for key, array in (("image", image), ("label", label)):
            nib.save(nib.Nifti1Image(array, np.diag([1.5, 1.5, 8.0, 1.0])), row[key])
        rows.append(row)
    return rows


@pytest.fixture
def bundle(tmp_path):
    from inference_bundle import tiny_network, write_tiny_bundle

    return write_tiny_bundle(tmp_path / "bundles", tiny_network())
