# SPDX-License-Identifier: Apache-2.0
"""Images, labels and sessions: found by id, never replaced, rebuilt from disk."""

import hashlib
import json
import time

import nibabel as nib
import numpy as np
import pytest
from serving_tools import nifti_bytes, read_nifti, tree, voxels

from vmfseg.serving import ImageIndex
from vmfseg.serving.label_store import LabelStore
from vmfseg.utils import VmfError

SCAN = nifti_bytes(voxels((24, 26, 3), 5))


def mask(value: int, shape=(30, 26, 5)) -> bytes:
    return nifti_bytes(np.full(shape, value, np.uint8))


def save(server, content, name="l.nii", **query):
    return server.request("PUT", "/datastore/label", params=query, files={"label": (name, content)})


def test_ids_are_paths_without_endings(own_server):
    assert own_server().service.studies.ids() == ["cine", "scan0", "scan1", "site/scan0", "tilted"]


def test_files_that_differ_in_their_ending_keep_it(own_server):
    server = own_server()
    (server.studies / "scan0.nii").write_bytes(SCAN)
    (server.studies / "scan0_gt.nii").write_bytes(SCAN)
    server.service.studies.refresh()
    assert server.service.studies.ids() == ["cine", "scan0.nii", "scan0.nii.gz", "scan1", "site/scan0", "tilted"]
    assert server.get("/datastore/image", params={"image": "scan0.nii"}).content == SCAN


def test_an_image_that_comes_later_is_found(own_server):
    server = own_server()
    (server.studies / "later.nii").write_bytes(SCAN)
    answer = server.get("/datastore/image", params={"image": "later"})
    assert answer.content == SCAN
    assert 'filename="later.nii"' in answer.headers["content-disposition"]


@pytest.mark.parametrize("output", ["all", "train"])
def test_an_image_that_goes_while_images_are_listed_is_left_out(own_server, output):
    server = own_server()
    assert save(server, mask(1), image="scan0", tag="final").status_code == 200
    assert "scan0" in server.service.studies.ids(), "read now, and believed for two seconds"
    (server.studies / "scan0.nii.gz").unlink()
    answer = server.get("/datastore/", params={"output": output})
    assert answer.status_code == 200, answer.text
    listed = answer.json() if output == "train" else [name for name in answer.json()["objects"] if name == "scan0"]
    assert listed == []


def test_upload_adds_and_never_replaces(own_server):
    server = own_server()
    before = tree(server.studies)

    def put(content, name="mine.nii", **query):
        return server.request("PUT", "/datastore/image", params=query, files={"file": (name, content)})

    assert put(SCAN, image="new").json() == {"image": "new"}
    assert put(SCAN, image="new").json() == {"image": "new"}, "the same again is done already"
    other = nifti_bytes(voxels((24, 26, 3), 6))
    assert put(other, image="new").json()["code"] == "VMF196"
    assert [put(other).json()["image"], put(SCAN).json()["image"]] == ["mine", "mine-2"]
    after = tree(server.studies)
    assert {name: after[name] for name in before} == before
    assert sorted(set(after) - set(before)) == ["mine-2.nii", "mine.nii", "new.nii"]
    digest = hashlib.sha256(SCAN).hexdigest()
    assert server.request("HEAD", "/datastore/image", params={"image": "new", "check_sum": digest}).status_code == 200
    wrong = {"image": "mine", "check_sum": f"SHA256:{digest}"}
    assert server.request("HEAD", "/datastore/image", params=wrong).status_code == 404


def test_only_uploaded_images_can_be_removed_and_are_kept(own_server):
    server = own_server()
    server.request("PUT", "/datastore/image", params={"image": "new"}, files={"file": ("a.nii", SCAN)})
    save(server, mask(1, (24, 26, 3)), image="new")
    assert server.request("DELETE", "/datastore/image", params={"id": "new"}).json() == {}
    assert server.get("/datastore/image", params={"image": "new"}).status_code == 404
    assert not (server.studies / "labels" / "final" / "new.nii").exists()
    assert (server.studies / ".vmfseg" / "removed" / "new.1.nii").read_bytes() == SCAN
    assert (server.studies / ".vmfseg" / "versions" / "final" / "new.1.nii").is_file()


def test_a_second_label_keeps_the_first(own_server):
    server = own_server()
    assert save(server, mask(1), image="scan0", tag="final").json() == {"image": "scan0", "label": "scan0"}
    save(server, mask(2), image="scan0", tag="final")
    save(server, mask(3), "l.nii", image="scan0", tag="draft")
    current = server.get("/datastore/label", params={"label": "scan0", "tag": "final"}).content
    assert np.unique(np.asarray(read_nifti(current).dataobj)).tolist() == [2]
    kept = server.studies / ".vmfseg" / "versions" / "final" / "scan0.1.nii"
    assert kept.read_bytes() == mask(1)
    info = server.get("/datastore/label/info", params={"label": "scan0", "tag": "final"}).json()
    assert (info["version"], info["name"]) == (2, "scan0.nii")
    assert server.get("/datastore/").json()["label_tags"] == {"draft": 1, "final": 1}
    assert server.request("DELETE", "/datastore/label", params={"id": "scan0", "tag": "final"}).json() == {}
    assert server.request("HEAD", "/datastore/label", params={"image": "scan0", "tag": "final"}).status_code == 404
    assert (server.studies / ".vmfseg" / "versions" / "final" / "scan0.2.nii").read_bytes() == mask(2)


def test_a_label_of_another_ending_takes_the_place_of_the_first(own_server, tmp_path):
    server = own_server()
    save(server, mask(1), image="scan0")
    nib.save(nib.Nifti1Image(np.full((30, 26, 5), 2, np.uint8), np.diag([1.3, 1.3, 8.0, 1.0])), tmp_path / "l.nii.gz")
    save(server, (tmp_path / "l.nii.gz").read_bytes(), "l.nii.gz", image="scan0")
    assert sorted(path.name for path in (server.studies / "labels" / "final").iterdir()) == ["scan0.nii.gz"]
    assert server.get("/datastore/?output=train").json() == [
        {"image": "scan0.nii.gz", "label": "labels/final/scan0.nii.gz"}
    ]


def test_the_index_is_rebuilt_from_disk(own_server):
    server = own_server()
    save(server, mask(1), image="scan0")
    save(server, mask(1, (30, 26, 3)), image="site/scan0")
    (server.studies / ".vmfseg" / "info.json").unlink()
    again = LabelStore(ImageIndex(server.studies))
    assert again.studies.ids() == server.service.studies.ids()
    assert sorted(again.of_image("site/scan0")) == ["final"]
    assert again.unlabeled() == ["cine", "scan1", "tilted"]


def test_damaged_notes_are_named(own_server):
    server = own_server()
    (server.studies / ".vmfseg").mkdir()
    (server.studies / ".vmfseg" / "info.json").write_text("{")
    with pytest.raises(VmfError, match="VMF301"):
        ImageIndex(server.studies)


def test_info_is_remembered_but_not_what_is_the_servers_own(own_server):
    server = own_server()
    given = {"comment": "blurred", "uploaded": True, "name": "x"}
    info = server.request(
        "PUT", "/datastore/image/info", params={"image": "scan0"}, data={"info": json.dumps(given)}
    ).json()
    assert (info["comment"], info["name"], "uploaded" in info) == ("blurred", "scan0.nii.gz", False)
    assert server.request("DELETE", "/datastore/image", params={"id": "scan0"}).status_code == 403
    save(server, mask(1), image="scan0")
    query = {"label": "scan0", "tag": "final"}
    told = server.request("PUT", "/datastore/updatelabelinfo", params=query, data={"params": '{"by": "me"}'}).json()
    assert (told["by"], told["version"]) == ("me", 1)


def test_text_that_no_answer_could_hold_is_not_remembered(own_server):
    """Half a surrogate pair is valid JSON, but has no UTF-8: remembered, it would break the list for every client."""
    server, half = own_server(), '{"comment": "\\ud800"}'
    info = server.request("PUT", "/datastore/image/info", params={"image": "scan0"}, data={"info": half})
    assert (info.status_code, info.json()["code"]) == (400, "VMF185")
    for _ in range(len(server.get("/datastore/?output=all").json()["objects"])):
        body = {"client_id": "\ud800\x1b[2J"}
        assert server.request("POST", "/activelearning/random", json=body).status_code == 200
    assert server.get("/datastore/?output=all").status_code == 200


def test_a_session_ends_by_itself(own_server):
    server = own_server(session_expiry=1)
    session = server.request("PUT", "/session/", files={"files": ("a.nii", SCAN)}).json()["session_id"]
    assert server.get(f"/session/{session}", params={"image": True}).content == SCAN
    assert len(server.leftovers()) == 1
    server.service.sessions.get(session).used -= 5  # as if it were later
    assert server.service.sessions.sweep() == 1
    assert server.get(f"/session/{session}").json()["code"] == "VMF183"
    assert server.leftovers() == []


def test_sessions_are_counted(own_server):
    server = own_server()
    answers = [server.request("PUT", "/session/", files={"files": ("a.nii", SCAN)}) for _ in range(65)]
    assert [answer.status_code for answer in answers] == [200] * 64 + [503]
    assert answers[-1].json()["code"] == "VMF542"
    assert int(answers[-1].headers["Retry-After"]) > 0


def test_what_was_shown_longest_ago_comes_again(own_server, monkeypatch):
    server = own_server()
    clock = iter(range(1_000_000, 1_000_100))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    shown = [server.request("POST", "/activelearning/random", json={}).json()["id"] for _ in range(10)]
    assert sorted(shown[:5]) == sorted(set(shown))
    assert shown[5:] == shown[:5]


def test_lowest_quality_comes_first_and_is_scored_once(own_server, predictor, monkeypatch):
    server = own_server()
    first = server.request("POST", "/activelearning/quality", json={}).json()
    entropy = {}
    for image in server.service.studies.ids():
        frames = predictor.predict(server.studies / f"{image}.nii.gz").quality["frames"]
        entropy[image] = max(frame["signals"]["entropy"] for frame in frames)
    worst = max(entropy, key=lambda image: entropy[image])
    assert (first["id"], first["scored"], first["by"]) == (worst, 5, "one minus the mean entropy")
    assert first["score"] == pytest.approx(1 - entropy[worst], abs=1e-4)
    monkeypatch.delattr("vmfseg.serving.strategies.judge")  # a second scoring would be an error
    assert server.request("POST", "/activelearning/quality", json={}).json()["id"] == worst
