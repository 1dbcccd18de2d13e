# SPDX-License-Identifier: Apache-2.0
"""Training on the store: which rows it takes, and a real one, started, watched, stopped and served."""

import hashlib
import json
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from serving_tools import nifti_bytes, oblique, voxels

from vmfseg.model import Model
from vmfseg.serving.store_training import store_rows
from vmfseg.utils import VmfError

SHORT = {"max_iterations": 2, "epoch_length": 2, "batch_size": 2}


def label(server, image):
    scan = nib.load(server.studies / f"{image}.nii.gz")
    values = np.asarray(scan.dataobj)
    classes = np.digitize(values, [400, 600, 800]).astype(np.uint8)
    if classes.ndim == 4:
        classes[..., [0, 2]] = 0
    files = {"label": ("l.nii", nifti_bytes(classes, scan.affine))}
    answer = server.request("PUT", "/datastore/label", params={"image": image, "tag": "final"}, files=files)
    assert answer.status_code == 200, answer.text


def test_rows_are_labelled_validation_and_unlabelled(own_server):
    server = own_server()
    for image in ("cine", "scan0", "scan1", "site/scan0"):
        label(server, image)
    rows = store_rows(server.service.labels, 0.25, seed=3)
    parts = {part: sorted({row.subject for row in rows if row.split == part}) for part in ("labeled", "validation")}
    assert len(parts["validation"]) == 1
    assert sorted(parts["labeled"] + parts["validation"]) == ["cine", "scan0", "scan1", "site/scan0"]
    assert [(row.image, row.label, row.frame) for row in rows if row.split == "unlabeled"] == [
        ("tilted.nii.gz", None, None)
    ]
    assert [row.frame for row in rows if row.subject == "cine"] == [1, 3], "frames with labels"
    assert store_rows(server.service.labels, 0.25, seed=3) == rows
    assert {row.split for row in store_rows(server.service.labels, 0.0)} == {"labeled", "unlabeled"}


def test_an_unlabelled_cine_is_two_frames(own_server):
    server = own_server()
    label(server, "scan0")
    rows = [row for row in store_rows(server.service.labels) if row.subject == "cine"]
    assert [(row.frame, row.split) for row in rows] == [(0, "unlabeled"), (1, "unlabeled")]


def test_without_finished_labels_there_is_nothing_to_learn(own_server):
    with pytest.raises(VmfError, match="VMF292"):
        store_rows(own_server().service.labels)


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_the_share_of_validation_is_checked(own_server, share):
    with pytest.raises(ValueError, match=f"val_split must lie in .0, 1., got {share}"):
        store_rows(own_server().service.labels, share)


def test_one_frame_as_label_of_a_cine_is_not_guessed(own_server):
    server = own_server()
    files = {"label": ("l.nii", nifti_bytes(np.ones((24, 26, 3), np.uint8)))}
    assert server.request("PUT", "/datastore/label", params={"image": "cine"}, files=files).status_code == 200
    with pytest.raises(VmfError, match="VMF237"):
        store_rows(server.service.labels)


def wait(server, *ends, seconds=600):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        task = server.get("/train/").json()
        if task["status"] in ends:
            return task
        time.sleep(0.2)
    raise AssertionError(task)


def weights(bundle):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (bundle / "models").iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("pretrained", [True, False], ids=["from the served weights", "from scratch"])
def test_a_training_ends_with_a_model_that_is_served(own_server, bundle, pretrained):
    server, before = own_server(), weights(bundle)
    for image in ("scan0", "scan1", "site/scan0"):
        label(server, image)
    query = {"json": {**SHORT, "pretrained": pretrained, "val_split": 0.3}}
    task = server.request("POST", "/train/vmfnet_mnms", **query).json()
    assert (task["status"], task["request"]["model"]) == ("RUNNING", "vmfnet_mnms")
    again = server.request("POST", "/train/vmfnet_mnms", **query)
    assert (again.status_code, again.json()["code"]) == (429, "VMF541")
    assert server.get("/train/?check_if_running=true").status_code == 200
    task = wait(server, "DONE", "ERROR")
    assert task["status"] == "DONE", task
    assert any("2 labelled, 0 unlabelled, 1 validation" in line for line in task["details"]), task["details"]
    run = server.studies / ".vmfseg" / "runs" / "vmfnet_mnms-1"
    unlabeled = json.loads((run / "overrides.json").read_text())["train::unlabeled_dataset::data"]
    assert [Path(row["image"]).name for row in unlabeled] == ["cine.nii.gz", "cine.nii.gz", "tilted.nii.gz"]
    assert Model.load(run).network == Model.load(bundle).network, "the served network, not that of the config"
    assert any(line.startswith("init: taken over") for line in task["details"]) == pretrained, task["details"]
    assert str(server.studies) not in str(task)
    assert server.get("/train/?check_if_running=true").status_code == 404
    info = server.get("/info/").json()
    assert info["models"]["vmfnet_mnms"]["version"].endswith("+run1")
    assert info["train_stats"]["vmfnet_mnms"]["epoch"] == 1
    assert server.infer(image="scan0", output="json").status_code == 200
    assert (server.studies / ".vmfseg" / "runs" / "vmfnet_mnms-1" / "models" / "model.safetensors").is_file()
    assert weights(bundle) == before, "the bundle itself was written to"


@pytest.mark.slow
def test_a_training_can_be_stopped_and_fails_aloud(own_server):
    server = own_server()
    label(server, "scan0")
    server.request("POST", "/train/", json={"vmfnet_mnms": {"max_iterations": 100_000}})
    assert server.request("DELETE", "/train/").json()["status"] == "STOPPED"
    assert wait(server, "STOPPED")["end_ts"]
    (server.studies / "tilted.nii.gz").write_bytes(nifti_bytes(voxels((30, 26, 5), 2), oblique())[:2000])
    answer = server.request("POST", "/train/vmfnet_mnms", json=SHORT)
    assert (answer.status_code, answer.json()["code"][:4]) == (422, "VMF2"), answer.text
    assert server.get("/info/").json()["models"]["vmfnet_mnms"]["version"] == "0.1.0"
