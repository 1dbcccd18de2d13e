# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from vmfseg.data import FolderDataset, LoadVolumed, read_volume, verify_datalist
from vmfseg.data.discover import open_datalist
from vmfseg.utils import VmfError

LABELS = {1: "LV", 2: "MYO", 3: "RV"}


@pytest.fixture
def folder(tmp_path: Path, save_volume, scan, heart) -> Path:
    for index, name in enumerate("abc"):
        save_volume(f"images/{name}.nii.gz", scan(seed=index))
    save_volume("labels/a.nii.gz", heart())
    save_volume("labels/b.nii.gz", np.where(heart() == 3, 0, heart()).astype(np.uint8))
    save_volume("images/cine.nii.gz", scan((20, 18, 4, 3), 9))
    return tmp_path


CSV = """Image;Mask;Scanner;Patient;annotated;age;frame
images/a.nii.gz;labels/a.nii.gz;x;p1;;50;
images/b.nii.gz;labels/b.nii.gz;y;p2;1,2;60;
images/c.nii.gz;;y;;;70;
images/cine.nii.gz;;x;p4;;70;2
"""
ROWS = [
    {"image": "images/a.nii.gz", "label": "labels/a.nii.gz", "domain": "x", "subject": "p1"},
    {"image": "images/b.nii.gz", "label": "labels/b.nii.gz", "domain": "y", "subject": "p2", "annotated": [1, 2]},
    {"image": "images/c.nii.gz", "domain": "y"},
    {"image": "images/cine.nii.gz", "domain": "x", "subject": "p4", "frame": 2},
]
TABLES = [
    pytest.param("scans.csv", CSV, LABELS, id="csv"),
    pytest.param("scans.tsv", CSV.replace(",", " ").replace(";", "\t"), LABELS, id="tsv"),
    pytest.param("scans.json", json.dumps(ROWS), LABELS, id="json-list"),
    pytest.param("scans.json", json.dumps({"labels": LABELS, "rows": ROWS}), None, id="json-with-labels"),
]


@pytest.mark.parametrize(("name", "text", "labels"), TABLES)
def test_tables_of_own_scans(name, text, labels, folder):
    (folder / name).write_text(text)
    (folder / "notes.csv").write_text("a,b\n1,2\n")
    (folder / "other.json").write_text('{"x": 1}')
    data = FolderDataset(folder, labels=labels).datalist()
    assert [(r.subject, r.domain, r.is_labeled, r.annotated, r.frame) for r in data.rows] == [
        ("p1", "x", True, None, None),
        ("p2", "y", True, (1, 2), None),
        ("c", "y", False, None, None),
        ("p4", "x", False, None, 2),
    ]
    assert data.labels == {0: "background", **LABELS}
    assert verify_datalist(data) == []


def test_label_names_beside_the_table_and_label_map(folder, save_volume, heart):
    save_volume("labels/a.nii.gz", heart() * 85)
    (folder / "scans.csv").write_text("image,label,domain\nimages/a.nii.gz,labels/a.nii.gz,x\n")
    (folder / "labels.json").write_text(json.dumps({str(k): v for k, v in LABELS.items()}))
    data = FolderDataset(folder, label_map={85: 1, 170: 2, 255: 3}).datalist()
    loaded = LoadVolumed(num_classes=data.num_classes)(data.to_dicts()[0])
    np.testing.assert_array_equal(loaded["label"].numpy()[0], heart())
    assert verify_datalist(data) == []
    plain, _ = open_datalist(folder)
    assert [finding.code for finding in verify_datalist(plain)] == ["VMF251"]


def test_table_may_lie_elsewhere_and_name_absolute_paths(folder, tmp_path_factory):
    table = tmp_path_factory.mktemp("tables") / "t.csv"
    table.write_text(f"image,domain\n{folder}/images/a.nii.gz,x\n")
    data = FolderDataset(folder, table, labels=LABELS).datalist()
    assert data.rows[0].image == "images/a.nii.gz"
    table.write_text("image,domain\n/elsewhere/a.nii.gz,x\n")
    with pytest.raises(VmfError, match="VMF283"):
        FolderDataset(folder, table, labels=LABELS).datalist()


WRONG = [
    pytest.param("image,label\nimages/a.nii.gz,\n", LABELS, "VMF285", "columns image and domain", id="no-domain"),
    pytest.param("image,domain\nimages/a.nii.gz,\n", LABELS, "VMF285", "must be given", id="empty-domain"),
    pytest.param("image,domain\nimages/z.nii.gz,x\n", LABELS, "VMF281", "do not exist", id="missing-file"),
    pytest.param("image,domain\nimages/a.nii.gz,x\n", None, "VMF280", "labels.json", id="no-classes"),
    pytest.param("image,domain,frame\nimages/a.nii.gz,x,two\n", LABELS, "VMF285", "whole number", id="frame"),
    pytest.param("image,domain,annotated\nimages/a.nii.gz,x,LW\n", LABELS, "VMF285", "mean 'LV'", id="annotated"),
    pytest.param("image,domain\nimages/a.nii.gz,x,y,z\n", LABELS, "VMF278", "line 2 has 4 cells", id="cells"),
]


@pytest.mark.parametrize(("text", "labels", "code", "message"), WRONG)
def test_wrong_table_is_refused(text, labels, code, message, folder):
    (folder / "scans.csv").write_text(text)
    with pytest.raises(VmfError, match=f"(?s){code}.*{message}"):
        FolderDataset(folder, labels=labels).datalist()


def test_missing_column_of_a_named_table_and_unknown_json_key(folder):
    (folder / "scans.csv").write_text("picture,domain\nimages/a.nii.gz,x\n")
    with pytest.raises(VmfError, match=r"(?s)VMF289.*column 'image'"):
        FolderDataset(folder, "scans.csv", labels=LABELS).datalist()
    (folder / "scans.json").write_text(json.dumps([{**ROWS[0], "labell": "x"}]))
    with pytest.raises(VmfError, match=r"(?s)VMF282.*Did you mean 'label'"):
        FolderDataset(folder, "scans.json", labels=LABELS).datalist()


def test_two_tables_and_no_table_are_refused(folder):
    with pytest.raises(VmfError, match=r"(?s)VMF285.*no such table.*image,label,domain,subject"):
        FolderDataset(folder, labels=LABELS).datalist()
    for name in ("one.csv", "two.csv"):
        (folder / name).write_text("image,domain\nimages/a.nii.gz,x\n")
    with pytest.raises(VmfError, match=r"(?s)VMF285.*2 tables: one.csv, two.csv"):
        FolderDataset(folder, labels=LABELS).datalist()


def test_annotated_by_name_and_class_names_of_a_bundle(folder):
    text = "image,label,domain,annotated\nimages/a.nii.gz,labels/a.nii.gz,x,LV;MYO\nimages/b.nii.gz,,y,\n"
    (folder / "t.csv").write_text(text)
    data = FolderDataset(folder, "t.csv", default_labels=LABELS, checksums=False).datalist()
    assert data.rows[0].annotated == (1, 2)
    assert data.labels[3] == "RV"
    (folder / "labels.json").write_text('{"1": "LV", "2": "MYO", "3": "right"}')
    data = FolderDataset(folder, "t.csv", default_labels=LABELS, checksums=False).datalist()
    assert data.labels[3] == "right"  # what the data says holds


def test_a_misspelt_file_gets_its_nearest_neighbour(folder, save_volume, scan):
    save_volume("images/patient_07.nii.gz", scan(seed=7))
    (folder / "t.csv").write_text("image,domain\nimages/patiant_07.nii.gz,x\n")
    with pytest.raises(VmfError, match=r"VMF281[\s\S]*Did you mean 'patient_07.nii.gz'"):
        FolderDataset(folder, "t.csv", labels=LABELS).datalist()
    with pytest.raises(VmfError, match=r"VMF201[\s\S]*Did you mean 'patient_07.nii.gz'"):
        read_volume(folder / "images" / "patiant_07.nii.gz")
