# SPDX-License-Identifier: Apache-2.0
"""The work list: sorted by flag and predicted Dice, scored one by one; and labels of single frames of a cine."""

import json

import nibabel as nib
import numpy as np
import pytest
from serving_tools import nifti_bytes

from vmfseg.serving.store_training import store_rows
from vmfseg.serving.worklist import remember, work_list


def summary(color, score):
    return {"flag": color, "dice": score, "score": score}


def save(server, image, values, **params):
    files = {"label": ("l.nii", nifti_bytes(values)), "params": (None, json.dumps(params))}
    return server.request("PUT", "/datastore/label", params={"image": image, "tag": "final"}, files=files)


def test_images_come_by_flag_and_then_by_predicted_dice(own_server):
    server = own_server()
    model = server.service.models["vmfnet_mnms"]
    given = {"cine": ("green", 0.91), "scan0": ("red", 0.7), "scan1": ("amber", 0.6), "tilted": ("red", 0.2)}
    for image, (color, score) in given.items():
        remember(server.service.labels, image, model, summary(color, score))
    rows = server.get("/vmfseg/worklist/vmfnet_mnms").json()
    assert [row["image"] for row in rows] == ["tilted", "scan0", "scan1", "cine", "site/scan0"]
    assert [row["flag"] for row in rows] == ["red", "red", "amber", "green", None]
    assert rows[0]["predicted_dice"] == 0.2
    assert save(server, "scan0", np.ones((30, 26, 5), np.uint8)).status_code == 200
    rows = server.get("/vmfseg/worklist/vmfnet_mnms").json()
    assert [(row["image"], row["labeled"]) for row in rows][-2:] == [("site/scan0", False), ("scan0", True)]


def test_scores_are_those_of_the_model_and_forgotten_with_the_file(own_server, predictor):
    server = own_server()
    (server.studies / "broken.nii").write_bytes(nifti_bytes(np.full((20, 20, 3), np.nan, np.float32)))
    server.service.studies.refresh()
    seen = []
    while (answer := server.request("POST", "/vmfseg/worklist/vmfnet_mnms").json())["scored"]:
        seen.append(answer["scored"])
    assert sorted(seen) == server.service.studies.ids()
    rows = {row["image"]: row for row in answer["cases"]}
    assert answer["cases"][0]["image"] == "broken"
    assert (rows["broken"]["flag"], rows["broken"]["problem"]) == ("unreadable", "VMF230")
    quality = predictor.predict(server.studies / "tilted.nii.gz").quality
    assert rows["tilted"]["flag"] == quality["light"] == "unknown"
    assert rows["tilted"]["score"] == pytest.approx(1 - quality["frames"][0]["signals"]["entropy"], abs=1e-6)
    scores = [row["score"] for row in answer["cases"][1:]]
    assert scores == sorted(scores)
    (server.studies / "scan0.nii.gz").touch()
    model = server.service.models["vmfnet_mnms"]
    assert [row["image"] for row in work_list(server.service.labels, model) if row["flag"] is None] == ["scan0"]


def test_a_run_of_the_model_scores_the_image(own_server):
    server = own_server()
    result = server.request("POST", "/vmfseg/segment/vmfnet_mnms?image=scan1", files={"params": (None, "{}")}).json()
    rows = {row["image"]: row for row in server.get("/vmfseg/worklist/vmfnet_mnms").json()}
    assert rows["scan1"]["flag"] == result["quality"]["light"] == "unknown"
    assert server.get("/vmfseg/worklist/none").json()["code"] == "VMF180"


def test_frames_of_a_cine_are_labelled_one_by_one(own_server):
    server = own_server()
    first, second = (np.full((24, 26, 3), value, np.uint8) for value in (1, 2))
    first[0], second[:, 0] = 0, 0
    assert save(server, "cine", first, frame=3).status_code == 200
    assert save(server, "cine", second, frame=1).status_code == 200
    kept = nib.load(server.studies / "labels" / "final" / "cine.nii.gz")
    values = np.asarray(kept.dataobj)
    assert values.shape == (24, 26, 3, 4)
    np.testing.assert_array_equal(values[..., 3], first)
    np.testing.assert_array_equal(values[..., 1], second)
    assert not values[..., [0, 2]].any()
    np.testing.assert_array_equal(kept.affine, nib.load(server.studies / "cine.nii.gz").affine)
    before = np.asarray(nib.load(server.studies / ".vmfseg" / "versions" / "final" / "cine.1.nii.gz").dataobj)
    assert not before[..., 1].any()
    rows = [row for row in store_rows(server.service.labels) if row.subject == "cine"]
    assert [(row.frame, row.split) for row in rows] == [(1, "labeled"), (3, "labeled")]


@pytest.mark.parametrize(("frame", "code"), [(4, "VMF235"), (-1, "VMF235"), ("2", "VMF185"), (1.5, "VMF185")])
def test_a_frame_that_does_not_exist_is_refused(own_server, frame, code):
    server = own_server()
    told = save(server, "cine", np.ones((24, 26, 3), np.uint8), frame=frame).json()
    assert (told["code"], told["fix"]) == (code, "Choose a frame from 0 to 3.")
    assert not (server.studies / "labels").exists()
    asked = server.request(
        "POST", "/vmfseg/segment/vmfnet_mnms?image=cine&frame=7", files={"params": (None, "{}")}
    ).json()
    assert (asked["code"], asked["fix"]) == ("VMF235", "Choose a frame from 0 to 3.")


def test_the_frame_of_a_single_volume_does_not_matter(own_server):
    server = own_server()
    values = np.ones((30, 26, 5), np.uint8)
    assert save(server, "scan0", values, frame=0).status_code == 200
    kept = np.asarray(nib.load(server.studies / "labels" / "final" / "scan0.nii").dataobj)
    np.testing.assert_array_equal(kept, values)
