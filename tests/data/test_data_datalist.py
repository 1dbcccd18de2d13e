# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vmfseg.data import Datalist
from vmfseg.data.datalist import Row, add_checksums
from vmfseg.utils import VmfError, sha256_file

LABELS = {0: "background", 1: "LV", 2: "MYO"}
ROWS = (
    Row(image="a.nii.gz", label="la.nii.gz", domain="A", group="A/1", subject="s1", frame=3, phase="ED"),
    Row(image="b.nii.gz", label=["r1.nii.gz", "r2.nii.gz"], domain="B", subject="s2", annotated=[1]),
    Row(image="c.nii.gz", domain="B", subject="s3", split="unlabeled"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "la", "b", "r1", "r2", "c"):
        (tmp_path / f"{name}.nii.gz").write_bytes(name.encode())
    return tmp_path


def make(folder: Path, rows=ROWS, **kwargs) -> Datalist:
    return Datalist("demo", folder, LABELS, rows, **kwargs)


def test_dictionaries_have_absolute_paths_and_no_key_for_what_is_not_there(folder):
    first, second, third = make(folder).to_dicts()
    assert first == {
        "image": str(folder / "a.nii.gz"),
        "label": str(folder / "la.nii.gz"),
        "frame": 3,
        "domain": "A",
        "subject": "s1",
        "group": "A/1",
        "phase": "ED",
        "annotated": None,
    }
    assert second["label"] == [str(folder / "r1.nii.gz"), str(folder / "r2.nii.gz")]
    assert second["annotated"] == [1]
    assert second["group"] == "B"
    assert "label" not in third
    assert "frame" not in third
    assert make(folder, label_map={7: 1}).to_dicts()[0]["label_map"] == {7: 1}


def test_saved_and_loaded_it_is_the_same_and_may_move_with_its_folder(folder, tmp_path_factory):
    data = add_checksums(make(folder, label_map={200: 2}))
    assert data.rows[0].image_sha256 == sha256_file(folder / "a.nii.gz")
    assert data.rows[1].label_sha256 == tuple(sha256_file(folder / f"r{i}.nii.gz") for i in (1, 2))
    data.save(folder / "lists" / "datalist.json")
    loaded = Datalist.load(folder / "lists" / "datalist.json")
    assert loaded == data
    assert json.loads((folder / "lists" / "datalist.json").read_text())["root"] == ".."
    moved = folder.with_name(folder.name + "-moved")
    folder.rename(moved)
    again = Datalist.load(moved / "lists" / "datalist.json")
    assert again.root == moved
    assert again.hash == data.hash
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "datalist.json"
    again.save(elsewhere)
    assert json.loads(elsewhere.read_text())["root"] == str(moved)


def edit(**changes):
    def apply(content):
        content.update(changes)

    return apply


def edit_row(**changes):
    def apply(content):
        content["rows"][0].update(changes)

    return apply


def drop(key):
    def apply(content):
        del content["rows"][0][key]

    return apply


WRONG = [  # change of a good file, code, message
    pytest.param(edit(format="x"), "VMF280", "must be a datalist", id="format"),
    pytest.param(edit(labelz={}), "VMF282", "Did you mean 'labels'", id="unknown-key"),
    pytest.param(edit_row(imgae="x"), "VMF282", "Did you mean 'image'", id="unknown-row-key"),
    pytest.param(drop("domain"), "VMF280", "domain must be given", id="missing-key"),
    pytest.param(edit_row(frame="3"), "VMF280", "frame has the wrong type", id="frame-text"),
    pytest.param(edit_row(frame=-1), "VMF280", "frame must be 0 or more", id="frame-negative"),
    pytest.param(edit_row(annotated=["1"]), "VMF280", "annotated has the wrong type", id="annotated-text"),
    pytest.param(edit_row(annotated=[7]), "VMF280", "annotated must list classes", id="annotated-unknown"),
    pytest.param(edit_row(split="labelled"), "VMF280", "Did you mean 'labeled'", id="split"),
    pytest.param(edit_row(image="../x.nii.gz"), "VMF283", "stay inside the root", id="T80-escape"),
    pytest.param(edit_row(label="a/../../x.nii.gz"), "VMF283", "stay inside the root", id="T80-hidden-escape"),
    pytest.param(edit_row(image="/etc/passwd"), "VMF283", "relative", id="T80-absolute"),
    pytest.param(edit_row(image="gone.nii.gz"), "VMF281", "1 of 6 files do not exist", id="T80-missing"),
    pytest.param(edit_row(image="c.nii.gz", frame=None), "VMF284", "listed twice", id="T80-duplicate"),
    pytest.param(edit_row(subject="s2"), "VMF284", "in domain 'A', b.nii.gz in 'B'", id="two-domains"),
    pytest.param(edit(labels={"1": "LV"}), "VMF280", "without gaps", id="no-background"),
    pytest.param(edit(labels={"0": "b", "x": "LV"}), "VMF280", "integers as keys", id="label-key"),
    pytest.param(edit(labels={"0": "b", "1": "b"}), "VMF280", "different texts", id="equal-names"),
    pytest.param(edit(label_map={"9": 9}), "VMF280", "lead to classes", id="label-map"),
    pytest.param(edit(rows={}), "VMF280", "rows a list", id="rows"),
    pytest.param(edit(rows=[3]), "VMF280", "must be an object", id="row-type"),
]


@pytest.mark.parametrize(("change", "code", "message"), WRONG)
def test_wrong_file_is_refused_with_the_place(change, code, message, folder):
    make(folder).save(folder / "datalist.json")
    content = json.loads((folder / "datalist.json").read_text())
    change(content)
    (folder / "datalist.json").write_text(json.dumps(content))
    with pytest.raises(VmfError, match=message) as caught:
        Datalist.load(folder / "datalist.json")
    assert caught.value.code == code
    assert caught.value.fix
    assert len(caught.value.render().splitlines()) <= 5


def test_file_that_is_not_json_is_refused(folder):
    (folder / "datalist.json").write_text("{")
    with pytest.raises(VmfError, match="VMF301: the file is not valid JSON"):
        Datalist.load(folder / "datalist.json")


def test_subject_in_two_splits_is_refused(folder):  # T81
    rows = [replace(ROWS[0], frame=k, split=split) for k, split in ((0, "labeled"), (1, "validation"))]
    with pytest.raises(VmfError, match=r"(?s)VMF288.*labeled, validation"):
        make(folder, rows)
    make(folder, [replace(row, split=split) for row, split in zip(rows, ("labeled", "unlabeled"), strict=True)])
