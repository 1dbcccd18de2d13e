# SPDX-License-Identifier: Apache-2.0
"""MONAI Label's own Python client against our server: what 3D Slicer's module does."""

import json
import shutil

import itk
import nibabel as nib
import numpy as np
import pytest
from serving_tools import nifti_bytes, oblique, voxels

MODEL = "vmfnet_mnms"
LPS = np.diag([-1.0, -1.0, 1.0])


def refused(call, *arguments):
    """Return the client's own exception, which has no text."""
    from monailabel.client.client import MONAILabelClientException

    with pytest.raises(MONAILabelClientException) as caught:
        call(*arguments)
    return caught.value


@pytest.fixture
def client(label_client, server, tmp_path):
    return label_client(server.url, tmpdir=str(tmp_path), client_id="test")


def test_info_has_what_the_client_shows(client):
    info = client.info()
    assert info["models"][MODEL]["labels"] == {"LV": 1, "MYO": 2, "RV": 3}
    assert info["models"][MODEL]["type"] == "segmentation"
    assert info["models"][MODEL]["dimension"] == 3
    assert info["labels"] == ["LV", "MYO", "RV"]
    assert set(info["strategies"]) == {"random", "quality"}
    assert set(info) >= {"name", "description", "version", "trainers", "scoring", "train_stats", "datastore"}
    assert info["datastore"]["total"] >= 5
    assert not client.auth_enabled()


@pytest.mark.parametrize("image", ["scan0", "site/scan0", "tilted"])
def test_infer_by_id_gives_the_labels_of_the_predictor(client, server, predictor, image):
    file, params = client.infer(MODEL, image, {"result_extension": ".nii.gz", "result_dtype": "uint8"})
    result, scan = nib.load(file), nib.load(server.studies / f"{image}.nii.gz")
    expected = predictor(server.studies / f"{image}.nii.gz").labels
    np.testing.assert_array_equal(np.asarray(result.dataobj), expected)
    assert len(np.unique(expected)) > 1
    np.testing.assert_array_equal(result.affine, scan.affine)
    assert result.get_data_dtype() == np.uint8
    assert params["label_names"] == {"LV": 1, "MYO": 2, "RV": 3}
    assert params["quality"]["light"] in ("green", "amber", "red", "unknown")


@pytest.mark.parametrize("image", ["scan1", "tilted"])
def test_nrrd_lies_where_the_scan_lies(client, server, predictor, image):
    file, _ = client.infer(MODEL, image, {"result_extension": ".nrrd", "result_dtype": "uint8"})
    result = itk.imread(file)
    affine = nib.load(server.studies / f"{image}.nii.gz").affine
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    np.testing.assert_allclose(list(result.GetSpacing()), spacing, rtol=1e-9)
    np.testing.assert_allclose(list(result.GetOrigin()), LPS @ affine[:3, 3], atol=1e-9)
    np.testing.assert_allclose(
        itk.array_from_matrix(result.GetDirection()), LPS @ (affine[:3, :3] / spacing), atol=1e-9
    )
    expected = predictor(server.studies / f"{image}.nii.gz").labels
    np.testing.assert_array_equal(itk.array_from_image(result).transpose(), expected)


def test_session_upload_then_infer(client, server, predictor, tmp_path):
    scan = tmp_path / "mine.nii.gz"
    nib.save(nib.Nifti1Image(voxels((26, 28, 4), 11), oblique()), scan)
    session = client.create_session(str(scan))["session_id"]
    assert client.get_session(session)["image"] == "mine.nii.gz"
    file, _ = client.infer(MODEL, "", {"result_extension": ".nii.gz"}, session_id=session)
    np.testing.assert_array_equal(np.asarray(nib.load(file).dataobj), predictor(scan).labels)
    client.remove_session(session)
    error = refused(client.get_session, session)
    assert (error.status_code, json.loads(error.response)["code"]) == (404, "VMF183")


def test_uploaded_file_then_infer(client, predictor, tmp_path):
    scan = tmp_path / "sent.nii.gz"
    nib.save(nib.Nifti1Image(voxels((26, 28, 4), 12), np.diag([1.5, 1.5, 9, 1])), scan)
    file, params = client.infer(MODEL, "", {}, file=str(scan))
    np.testing.assert_array_equal(np.asarray(nib.load(file).dataobj), predictor(scan).labels)
    assert params["quality"]["input"] == "sent.nii.gz"


def test_upload_label_fetch_and_list(label_client, own_server, tmp_path):
    server = own_server()
    client = label_client(server.url, tmpdir=str(tmp_path), client_id="test")
    scan, label = tmp_path / "new.nii", tmp_path / "edited.nii"
    scan.write_bytes(nifti_bytes(voxels((24, 26, 4), 13)))
    mask = np.random.default_rng(0).integers(0, 4, (24, 26, 4)).astype(np.uint8)
    label.write_bytes(nifti_bytes(mask))
    assert client.upload_image(str(scan), "fresh one") == {"image": "fresh one"}
    assert (server.studies / "fresh one.nii").read_bytes() == scan.read_bytes()
    assert client.save_label("fresh one", str(label), "final", {"label_info": [{"name": "LV"}]})["label"] == "fresh one"
    fetched = client.download_label("fresh one", "final")
    np.testing.assert_array_equal(np.asarray(nib.load(fetched).dataobj), mask)
    objects = client.datastore()["objects"]
    assert objects["fresh one"]["labels"]["final"]["info"]["label_info"] == [{"name": "LV"}]
    assert set(objects) == {"cine", "fresh one", "scan0", "scan1", "site/scan0", "tilted"}
    assert client.info()["datastore"] == {"total": 6, "completed": 1, "label_tags": {"final": 1}}


def test_next_sample_is_one_without_a_finished_label(label_client, own_server, tmp_path):
    server = own_server()
    client = label_client(server.url, tmpdir=str(tmp_path), client_id="test")
    for image in ("scan0", "scan1", "cine", "site/scan0"):
        shape = nib.load(server.studies / f"{image}.nii.gz").shape[:3]
        label = tmp_path / "label.nii"
        label.write_bytes(nifti_bytes(np.ones(shape, np.uint8)))
        client.save_label(image, str(label), "final")
    for strategy in ("random", "quality"):
        sample = client.next_sample(strategy, {})
        assert (sample["id"], sample["path"], sample["name"]) == ("tilted", "tilted.nii.gz", "tilted.nii.gz")
        assert sample["strategy"][strategy]["client_id"] == "test"
    assert sample["scored"] == sample["unlabeled"] == 1
    label.write_bytes(nifti_bytes(np.ones((30, 26, 5), np.uint8), oblique()))
    client.save_label("tilted", str(label), "final")
    assert client.next_sample("random", {}) == client.next_sample("quality", {}) == {}


def test_a_prediction_can_be_kept_as_original(label_client, own_server, tmp_path):
    server = own_server()
    client = label_client(server.url, tmpdir=str(tmp_path))
    _, params = client.infer(MODEL, "tilted", {"save_label": True, "label_tag": "original"})
    assert (params["label"], params["tag"]) == ("tilted", "original")
    kept = nib.load(server.studies / "labels" / "original" / "tilted.nii.gz")
    np.testing.assert_array_equal(kept.affine, nib.load(server.studies / "tilted.nii.gz").affine)
    shutil.copy(server.studies / "scan0.nii.gz", tmp_path / "sent.nii.gz")
    assert "label" not in client.infer(MODEL, "", {"save_label": True}, file=str(tmp_path / "sent.nii.gz"))[1]


def test_a_token_is_the_password_of_the_login_window(label_client, own_server, tmp_path):
    server = own_server(token="a-token-of-some-length")
    client = label_client(server.url, tmpdir=str(tmp_path))
    assert client.auth_enabled()
    assert refused(client.info).status_code == 401
    assert refused(client.auth_token, "me", "wrong").status_code == 401
    client.update_auth(client.auth_token("me", "a-token-of-some-length"))
    assert client.auth_valid_token()
    assert MODEL in client.info()["models"]
    assert client.infer(MODEL, "scan0", {})[1]["label_names"]["RV"] == 3
