# SPDX-License-Identifier: Apache-2.0
"""Models that are given away: half precision, checksums, nothing of a patient; and where they are found."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from inference_bundle import PIXDIM, SIZE, tiny_definition, tiny_network
from safetensors.torch import load_file

from vmfseg.model import Model, Predictor
from vmfseg.model.artifact import find_bundle
from vmfseg.model.quality import QualityModel
from vmfseg.model.shelves import is_shipped, model_folder, output_folder
from vmfseg.model.shift import ShiftReference, SubjectStatistics
from vmfseg.model.ship import average_models, ship_model
from vmfseg.model.weights import find_weights, tensors_digest
from vmfseg.utils import VmfError

LABELS = {0: "background", 1: "GM", 2: "WM"}


def code_of(call, *args, **kwargs) -> str:
    with pytest.raises(VmfError) as caught:
        call(*args, **kwargs)
    return caught.value.code


@pytest.fixture(scope="module")
def cords():
    """Return a network whose matrices need half precision only: it draws noise, where every bit counts."""
    network = tiny_network(classes=3)
    network.load_state_dict({k: v.half().float() if v.ndim > 1 else v for k, v in network.state_dict().items()})
    return network


@pytest.fixture
def run(tmp_path, cords):
    """Return the folder of a run with everything that a training of cords leaves."""
    models = tmp_path / "run" / "models"
    models.mkdir(parents=True)
    definition = tiny_definition(3, kappa=float(cords.kernels.kappa))
    facts = {"data": {"dataset": "cords", "is_phantom": True, "seed": 5}}
    model = Model.of_slices(definition, LABELS, PIXDIM, (SIZE, SIZE), name="cords", version="0.1.0", facts=facts)
    model.save(models, cords.state_dict())
    digest = tensors_digest(cords.state_dict())
    one = {"entropy": 0.1}
    QualityModel(one, one, {"entropy": -0.1}, 0.8, 0.05).save(models / "quality.json", weights=digest)
    subjects = [SubjectStatistics({"entropy": 0.1 * k}, "3T") for k in range(4)]
    ShiftReference.from_subjects(subjects).save(models / "shift.json", weights=digest)
    (models / "cost.json").write_text(json.dumps({"cpu_seconds": 12.5, "hours": 0.01, "processor": "test"}))
    (tmp_path / "run" / "history.json").write_text(json.dumps({"epochs": [{"iteration": 25}, {"iteration": 50}]}))
    return tmp_path / "run"


def test_matrices_are_halved_and_labels_stay(run, cords, tmp_path, save_scan):
    report = ship_model(run, tmp_path / "out", slices=4)
    assert (report.precision, report.slices) == ("float16", 4)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    for name, tensor in cords.state_dict().items():
        wanted = np.float16(tensor.numpy()) if tensor.ndim > 1 else tensor.numpy()
        np.testing.assert_array_equal(stored[name].numpy(), wanted)
        assert stored[name].numpy().dtype == wanted.dtype
    sizes = [path.stat().st_size for path in (tmp_path / "out").iterdir()]
    assert report.bytes == sum(sizes)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json", "model.safetensors", "quality.json", "shift.json"
    ]  # fmt: skip
    one, other = (Predictor.from_bundle(place, "cpu") for place in (run, tmp_path / "out"))
    assert other.quality == one.quality is not None, "the calibration goes along, under the new checksum"
    scan = save_scan()
    assert (one.predict(scan).labels == other.predict(scan).labels).mean() > 0.999


def test_the_manifest_says_what_the_training_cost_and_has_every_checksum(run, tmp_path):
    ship_model(run, tmp_path / "out", slices=1)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    cost = {"seed": 5, "iterations": 50, "cpu_seconds": 12.5, "hours": 0.01, "processor": "test"}
    assert manifest["training"] == cost
    assert set(manifest["sha256"]) == {"model.safetensors", "quality.json", "shift.json"}
    assert {"torch", "vmfseg"} <= set(manifest["versions"])
    assert is_shipped(tmp_path / "out")
    assert not is_shipped(run / "models")


def test_weights_that_half_precision_would_change_stay_whole(run, tmp_path):
    state = tiny_network(classes=3).state_dict()
    Model.load(run).save(run / "models", state)
    for note in ("quality.json", "shift.json"):
        path = run / "models" / note
        path.write_text(json.dumps({**json.loads(path.read_text()), "weights": tensors_digest(state)}))
    report = ship_model(run, tmp_path / "out", slices=4)
    assert report.precision == "float32"
    assert report.equal_labels < 1
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(stored[key], value) for key, value in state.items())


@pytest.mark.parametrize("data", [{"is_phantom": False}, {"dataset": "mnms"}, {"is_phantom": None}])
def test_a_model_that_saw_patients_is_not_shipped(run, tmp_path, data):
    path = run / "models" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "data": {**manifest["data"], **data}}))
    assert code_of(ship_model, run, tmp_path / "out") == "VMF332"
    assert not (tmp_path / "out").exists()


def test_a_model_without_its_calibration_is_not_shipped(run, tmp_path):
    (run / "models" / "shift.json").write_text(json.dumps({"weights": "of another"}))
    assert code_of(ship_model, run, tmp_path / "out") == "VMF333"
    (run / "models" / "shift.json").unlink()
    assert code_of(ship_model, run, tmp_path / "out") == "VMF333"


def test_a_calibration_of_another_version_is_not_shipped(run, tmp_path):
    path = run / "models" / "quality.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "format": "vmfseg-quality-0"}))
    assert code_of(ship_model, run, tmp_path / "out") == "VMF338"
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "quality.json").write_text(json.dumps(content))
    (tmp_path / "again" / "shift.json").write_bytes((run / "models" / "shift.json").read_bytes())
    ship_model(run, tmp_path / "out", slices=1, calibration=tmp_path / "again")
    assert Predictor.from_bundle(tmp_path / "out", "cpu").quality is not None


def test_nothing_is_replaced_unasked(run, tmp_path):
    ship_model(run, tmp_path / "out", slices=1)
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    assert code_of(ship_model, run, tmp_path / "out", slices=2) == "VMF503"
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("name", ["model.safetensors", "quality.json", "shift.json"])
def test_a_damaged_file_is_refused_by_its_checksum(run, tmp_path, name):
    ship_model(run, tmp_path / "out", slices=1)
    path = tmp_path / "out" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(VmfError, match="damaged") as caught:
        Predictor.from_bundle(tmp_path / "out", "cpu")
    assert (caught.value.code, caught.value.subject) == ("VMF412", str(path))


def test_a_bundle_is_found_by_name_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (find_bundle("hearts") / "configs" / "train.json").is_file()
    (tmp_path / "bundles" / "hearts" / "configs").mkdir(parents=True)
    (tmp_path / "bundles" / "hearts" / "configs" / "metadata.json").write_text("{}")
    assert find_bundle("hearts").resolve() == tmp_path / "bundles" / "hearts", "what lies here comes first"


def test_a_run_here_comes_before_a_bundle_of_its_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run.rename(tmp_path / "hearts")
    assert find_bundle("hearts").resolve() == tmp_path / "hearts"
    assert find_weights("hearts").resolve() == tmp_path / "hearts" / "models" / "model.safetensors"


def test_a_shipped_model_stays_and_another_one_is_replaced(run, tmp_path):
    bundle = tmp_path / "cords"
    assert model_folder(bundle) == str(bundle / "models")
    ship_model(run, bundle / "models", slices=1)
    assert model_folder(bundle) == str(bundle / "output" / "models")
    assert model_folder(bundle, tmp_path / "elsewhere") == str(tmp_path / "elsewhere" / "models")
    assert output_folder(bundle) == str(bundle / "output")


def test_pixdim_is_read_from_the_preprocessing(run):
    model = Model.load(run)
    assert model.pixdim == PIXDIM
    assert replace(model, preprocessing=[]).pixdim == 1.0


def test_the_mean_of_two_models_is_the_mean_of_their_weights(run, cords, tmp_path):
    other = Model.load(run)
    moved = {name: t + 2 if t.is_floating_point() else t for name, t in cords.state_dict().items()}
    (tmp_path / "other").mkdir()
    other.save(tmp_path / "other", moved, training={"seed": 7})
    mean = load_file(average_models(run, tmp_path / "other", tmp_path / "mean") / "model.safetensors")
    for name, tensor in cords.state_dict().items():
        wanted = tensor.numpy() + 1 if tensor.is_floating_point() else tensor.numpy()
        np.testing.assert_allclose(mean[name].numpy(), wanted, atol=1e-6)
    trainings = json.loads((tmp_path / "mean" / "cost.json").read_text())["mean_of"]
    assert [training["seed"] for training in trainings] == [5, 7]
    assert code_of(ship_model, tmp_path / "mean", tmp_path / "out") == "VMF333", "the mean is not calibrated yet"


def test_models_of_two_kinds_have_no_mean(run, cords, tmp_path):
    place = tmp_path / "other"
    place.mkdir()
    replace(Model.load(run), labels={0: "background", 1: "WM", 2: "GM"}).save(place, cords.state_dict())
    assert code_of(average_models, run, place, tmp_path / "mean") == "VMF334"
    assert not (tmp_path / "mean").exists()
