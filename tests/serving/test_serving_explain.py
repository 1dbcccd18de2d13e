# SPDX-License-Identifier: Apache-2.0
"""Explanations: the maps are those of the predictor, the shares those of a sum by hand."""

import gzip
import json
import shutil
import sys
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from scipy import ndimage

sys.path.append(str(Path(__file__).parent.parent / "cli"))
from plain_network import write_plain_bundle
from serving_tools import nifti_bytes, oblique, read_nifti, voxels

from vmfseg.model import Predictor
from vmfseg.model.kernel_names import save_named_model
from vmfseg.model.quality import QualityModel
from vmfseg.model.shift import ShiftReference, SubjectStatistics
from vmfseg.serving.served_models import ServedModel, load_models

FORM = {"params": (None, "{}")}


def explain(server, **query):
    return server.request("POST", "/vmfseg/explain/vmfnet_mnms", params=query, files=FORM).json()


def fetch(server, result, name):
    return read_nifti(gzip.decompress(server.get(f"/vmfseg/result/{result['id']}/{name}.nii.gz").content))


@pytest.mark.parametrize(("image", "frame"), [("tilted", 0), ("cine", 2)])
def test_maps_are_those_of_the_predictor(server, predictor, image, frame):
    result = explain(server, image=image, frame=frame)
    scan = nib.load(server.studies / f"{image}.nii.gz")
    array = np.asarray(scan.dataobj).reshape(*scan.shape[:3], -1)[..., frame]
    expected = predictor.predict(nib.Nifti1Image(array, scan.affine), activations=True)
    mask = fetch(server, result, "mask")
    np.testing.assert_array_equal(np.asarray(mask.dataobj), expected.labels)
    np.testing.assert_allclose(mask.affine, scan.affine, atol=1e-5)
    np.testing.assert_allclose(np.asarray(fetch(server, result, "image").dataobj), array)
    assert result["frames"] == (4 if image == "cine" else 1)
    for kernel in range(6):
        shown = np.asarray(fetch(server, result, f"kernel-{kernel}").dataobj)
        np.testing.assert_allclose(shown / 255, expected.activations[..., kernel], atol=0.003)


def test_tissue_is_where_the_activation_lies(server, predictor):
    result = explain(server, image="tilted")
    expected = predictor.predict(server.studies / "tilted.nii.gz", activations=True)
    names = ["background", "LV", "MYO", "RV"]
    for kernel in result["kernels"]:
        weights = expected.activations[..., kernel["kernel"]].astype(np.float64)
        shares = [weights[expected.labels == value].sum() / weights.sum() for value in range(4)]
        assert kernel["by_class"] == pytest.approx(dict(zip(names, shares, strict=True)), abs=2e-4)
        used = weights.mean() >= 1e-3
        assert kernel["tissue"] == (names[int(np.argmax(shares))] if used else "unused")
        assert kernel["certainty"] == pytest.approx(max(shares), abs=2e-4)


def test_a_voxel_is_found_by_its_place(server, predictor):
    result = explain(server, image="tilted")
    expected = predictor.predict(server.studies / "tilted.nii.gz", activations=True)
    for index in ((3, 20, 1), (29, 0, 4), (15, 13, 2)):
        x, y, z = (oblique() @ (*index, 1))[:3]
        told = server.get(f"/vmfseg/result/{result['id']}/voxel", params={"x": x, "y": y, "z": z}).json()
        assert told["voxel"] == list(index)
        assert told["class"] == expected.labels[index]
        weights = {entry["kernel"]: entry["weight"] for entry in told["kernels"]}
        assert [weights[j] for j in range(6)] == pytest.approx(expected.activations[index].tolist(), abs=1e-3)
        assert list(weights.values()) == sorted(weights.values(), reverse=True)
    outside = server.get(f"/vmfseg/result/{result['id']}/voxel", params={"x": 999, "y": 0, "z": 0})
    assert (outside.status_code, outside.json()["code"]) == (400, "VMF185")
    nowhere = server.get(f"/vmfseg/result/{result['id']}/voxel", params={"x": "nan", "y": 0, "z": 0})
    assert nowhere.status_code == 422


def test_an_upload_is_explained_and_gone(server):
    files = {**FORM, "file": ("Jane.nii", nifti_bytes(voxels((24, 26, 3), 8)))}
    result = server.request("POST", "/vmfseg/explain/vmfnet_mnms", files=files).json()
    assert result["image"] == "Jane.nii"
    assert fetch(server, result, "image").shape == (24, 26, 3)
    assert server.leftovers() == []


def test_old_results_are_forgotten(own_server):
    server = own_server()
    results = [explain(server, image="scan0")["id"] for _ in range(9)]
    answers = [server.get(f"/vmfseg/result/{result}/mask.nii.gz").status_code for result in results]
    assert answers == [404] + [200] * 8


def test_quality_and_shift_come_along(own_server, bundle, predictor, tmp_path):
    copy = shutil.copytree(bundle, tmp_path / "judged")
    scans = [nib.Nifti1Image(voxels((30, 26, 5), seed), np.diag([1.3, 1.3, 8.0, 1.0])) for seed in range(20, 28)]
    frames = [predictor.predict(scan).quality["frames"][0] for scan in scans]
    model = QualityModel({"entropy": 0.5}, {"entropy": 1.0}, {"entropy": -0.01}, 0.9, 0.05)
    model.save(copy / "models" / "quality.json", weights=predictor.digest)
    statistics = [SubjectStatistics({**frame["signals"]}, "A") for frame in frames]
    reference = ShiftReference.from_subjects(statistics)
    note = copy / "models" / "shift.json"
    reference.save(note)
    note.write_text(json.dumps({**json.loads(note.read_text()), "weights": predictor.digest}))
    served = ServedModel("judged", Predictor.from_bundle(copy, "cpu"))
    server = own_server()
    server.service.models["judged"] = served
    told = server.infer(image="scan0", output="json", model="judged").json()["quality"]
    assert told["light"] == "green"
    assert told["predicted_dice"] == pytest.approx(model.predict(told["frames"][0]["signals"]), abs=1e-4)
    assert told["shift"]["nearest"] == "A"
    assert told["shift"]["new"] in (True, False)


def test_two_bundles_of_one_name_are_refused(bundle):
    with pytest.raises(ValueError, match="different folder names, got vmfnet_mnms twice"):
        load_models([bundle, bundle], "cpu")


def test_a_bundle_whose_configs_would_run_code_is_served_without_them_and_not_trained(own_server, bundle, tmp_path):
    copy = shutil.copytree(bundle, tmp_path / "hostile")
    config = copy / "configs" / "train.json"
    content = json.loads(config.read_text())
    call = f"$open('{tmp_path}/canary', 'w')"
    config.write_text(json.dumps({**content, "training": [call], "run": call}))
    server = own_server()
    server.service.models["hostile"] = load_models([copy], "cpu")["hostile"]
    assert server.infer(image="scan0", output="json", model="hostile").status_code == 200
    labels = nifti_bytes(np.ones((30, 26, 5), np.uint8))
    server.request("PUT", "/datastore/label", params={"image": "scan0"}, files={"label": ("l.nii", labels)})
    server.request("POST", "/train/hostile", json={"max_iterations": 2})
    deadline = time.monotonic() + 120
    while (task := server.get("/train/").json())["status"] == "RUNNING" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert task["status"] == "ERROR"
    assert any("VMF410" in line for line in task["details"]), task["details"]
    assert not (tmp_path / "canary").exists()


def test_a_network_without_kernels_is_segmented_and_has_no_kernel_maps(own_server, tmp_path):
    plain = write_plain_bundle(tmp_path / "bundles")
    server = own_server()
    server.service.models["plain"] = ServedModel("plain", Predictor.from_bundle(plain, "cpu"))
    assert server.get("/vmfseg/models").json()["plain"]["kernels"] == 0
    assert server.get("/vmfseg/models").json()["vmfnet_mnms"]["kernels"] == 6
    query = {"params": {"image": "scan0"}, "files": FORM}
    refused = server.request("POST", "/vmfseg/explain/plain", **query)
    assert (refused.status_code, refused.json()["code"]) == (422, "VMF354")
    assert refused.json()["fix"]
    result = server.request("POST", "/vmfseg/segment/plain", **query).json()
    assert result["kernels"] == []
    assert "no vMF kernels" in result["note"]
    expected = server.service.models["plain"].predictor.predict(server.studies / "scan0.nii.gz").labels
    np.testing.assert_array_equal(np.asarray(fetch(server, result, "mask").dataobj), expected)
    missing = server.get(f"/vmfseg/result/{result['id']}/kernel-0.nii.gz")
    assert (missing.status_code, missing.json()["code"]) == (400, "VMF185")
    told = server.get(f"/vmfseg/result/{result['id']}/voxel", params={"x": 0, "y": 0, "z": 0}).json()
    assert told["class"] == expected[0, 0, 0]
    assert told["kernels"] == []


def test_named_kernels_are_served_as_classes_with_a_box_around_them(own_server, predictor, tmp_path):
    plain = predictor.predict(oblique_scan := nib.Nifti1Image(voxels((30, 26, 5), 2), oblique()), activations=True)
    winners = plain.activations.argmax(axis=-1)
    common = int(np.bincount(winners.ravel()).argmax())
    save_named_model(predictor, {common: "lung"}, tmp_path / "named")
    server = own_server()
    server.service.models |= load_models([tmp_path / "named"], "cpu")
    assert [entry["name"] for entry in server.get("/vmfseg/models").json()["named"]["classes"]] == [
        "background",
        "lung",
    ]
    result = server.request("POST", "/vmfseg/segment/named", params={"image": "tilted"}, files=FORM).json()
    mask = np.asarray(fetch(server, result, "mask").dataobj)
    np.testing.assert_array_equal(mask, Predictor.from_bundle(tmp_path / "named", "cpu").predict(oblique_scan).labels)
    assert result["kernels"][common]["tissue"] == "lung"
    parts, _ = ndimage.label(mask)
    places = np.argwhere(parts == np.bincount(parts.ravel())[1:].argmax() + 1)
    assert result["box"] == [[low, high + 1] for low, high in zip(places.min(0), places.max(0), strict=True)]
