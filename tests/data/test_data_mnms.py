# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vmfseg.data import LoadVolumed, MNMsDataset, verify_datalist
from vmfseg.data.discover import open_datalist
from vmfseg.utils import VmfError

SUBJECTS = {  # code: folder, vendor, centre, ED, ES
    "A0S9V9": ("Training/Labeled", "A", 1, 0, 2),
    "B2D9M2": ("Training/Labeled", "B", 2, 3, 1),
    "C8O0P2": ("Validation", "C", 4, 2, 0),
    "D1R1T6": ("Testing", "D", 5, 1, 3),
    "G3M5S4": ("Training/Unlabeled", "C", 4, 0, 1),
    "B9H8N8": ("Testing", "B", 3, 3, 0),
}
NAMES = {"A": "Siemens", "B": "Philips", "C": "GE", "D": "Canon"}
FRAMES = 4


def table_211230(code, vendor, centre, ed, es, index):
    return f"{index},{code},{NAMES[vendor]},{vendor},{centre},{ed},{es},58,DCM,M,170.0,70.0"


HEADERS = [  # file name, header, line
    pytest.param(
        "211230_M&Ms_Dataset_information_diagnosis_opendataset.csv",
        ",External code,VendorName,Vendor,Centre,ED,ES,Age,Pathology,Sex,Height,Weight",
        table_211230,
        id="211230",
    ),
    pytest.param(
        "201014_M&Ms_Dataset_Information_-_opendataset.csv",
        "External code,Vendor,Centre,ED,ES,Age",
        lambda c, v, n, ed, es, i: f"{c},{v},{n},{ed},{es},58",
        id="201014",
    ),
    pytest.param(
        "info.csv",
        "\ufeff External Code ; VendorName ; Center ; ED ; ES ",
        lambda c, v, n, ed, es, i: f" {c} ; {NAMES[v]} ; {n}.0 ; {ed}.0 ; {es} ",
        id="bom-spaces-semicolons-names",
    ),
    pytest.param(
        "mnms_dataset_info.csv",
        "ES\tED\tcentre\tvendor\tcode",
        lambda c, v, n, ed, es, i: f"{es}\t{ed}\t{n}\t{v.lower()}\t{c}",
        id="any-order-tabs",
    ),
]


def cine(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 300, (20, 18, 3, FRAMES)).astype(np.int16)


@pytest.fixture
def tree(tmp_path: Path, save_volume, heart) -> Callable[..., Path]:
    """Return a function that writes the official tree with a given CSV."""

    def build(name: str, header: str, line) -> Path:
        for index, (code, (folder, _, _, ed, es)) in enumerate(SUBJECTS.items()):
            label = np.zeros((20, 18, 3, FRAMES), np.uint8)
            if "Unlabeled" not in folder:
                label[..., ed], label[..., es] = heart((20, 18, 3), 4.0), heart((20, 18, 3), 2.0)
            base = f"OpenDataset/{folder}/{code}/{code}_sa"
            save_volume(f"{base}.nii.gz", cine(index))
            save_volume(f"{base}_gt.nii.gz", label)
        lines = [line(code, *entry[1:], index) for index, (code, entry) in enumerate(SUBJECTS.items())]
        (tmp_path / "OpenDataset" / name).write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
        return tmp_path

    return build


@pytest.fixture
def official(tree) -> Path:
    return tree(*HEADERS[0].values)


@pytest.mark.parametrize("inside", ["", "OpenDataset"], ids=["parent", "OpenDataset"])
@pytest.mark.parametrize(("name", "header", "line"), HEADERS)
def test_every_published_table_gives_the_same_rows(name, header, line, inside, tree):
    source = MNMsDataset(tree(name, header, line) / inside)
    data = source.datalist()
    rows = {(row.subject, row.phase): row for row in data.rows}
    assert len(rows) == len(data.rows) == 2 * 5
    for code, (folder, vendor, centre, ed, es) in SUBJECTS.items():
        if "Unlabeled" in folder:
            assert code not in data.subjects
            continue
        for phase, frame in (("ED", ed), ("ES", es)):
            row = rows[code, phase]
            assert (row.domain, row.group, row.frame) == (vendor, f"{vendor}/{centre}", frame)
            assert row.image.endswith(f"{folder}/{code}/{code}_sa.nii.gz")
            assert data.path(row.image).is_file()
            assert data.path(row.labels[0]).name == f"{code}_sa_gt.nii.gz"
    assert dict(data.labels) == {0: "background", 1: "LV", 2: "MYO", 3: "RV"}
    assert [row.subject for row in data.rows][::2] == ["A0S9V9", "B2D9M2", "B9H8N8", "C8O0P2", "D1R1T6"]


def test_second_run_is_identical_and_nothing_in_the_folder_changes(official):
    before = {path: path.stat().st_mtime_ns for path in official.rglob("*")}
    first, second = (MNMsDataset(official).datalist() for _ in range(2))
    assert first == second
    assert all(len(row.image_sha256) == len(row.label_sha256) == 64 for row in first.rows)
    assert before == {path: path.stat().st_mtime_ns for path in official.rglob("*")}


def test_rows_load_their_frame(official):
    data = MNMsDataset(official, checksums=False).datalist()
    row = next(row for row in data.rows if row.subject == "B2D9M2" and row.phase == "ED")
    loaded = LoadVolumed(num_classes=4)(data.to_dicts([row])[0])
    np.testing.assert_array_equal(loaded["image"].numpy()[0], cine(1)[..., 3])
    assert set(np.unique(loaded["label"].numpy())) == {0, 1, 2, 3}


def test_all_frames_are_added_without_labels(official):
    data = MNMsDataset(official, all_frames=True, checksums=False).datalist()
    for code in data.subjects:
        rows = [row for row in data.rows if row.subject == code]
        assert sorted(row.frame for row in rows) == list(range(FRAMES))
        assert {row.frame for row in rows if row.is_labeled} == set(SUBJECTS[code][3:])
        assert all(row.phase is None for row in rows if not row.is_labeled)


def test_unlabeled_subjects_come_on_demand_and_without_masks(official):
    data = MNMsDataset(official, unlabeled_subjects=True, checksums=False).datalist()
    rows = [row for row in data.rows if row.subject == "G3M5S4"]
    assert [(row.frame, row.phase, row.label) for row in rows] == [(0, "ED", None), (1, "ES", None)]


def test_partial_download_is_tolerated_with_findings(official):
    base = official / "OpenDataset"
    for path in (base / "Testing").rglob("*"):
        if path.is_file():
            path.unlink()
    (base / "Validation/C8O0P2/C8O0P2_sa_gt.nii.gz").unlink()
    extra = base / "Validation/Z9Z9Z9/Z9Z9Z9_sa.nii.gz"
    extra.parent.mkdir()
    extra.write_bytes((base / "Validation/C8O0P2/C8O0P2_sa.nii.gz").read_bytes())
    source = MNMsDataset(official)
    data = source.datalist()
    assert data.subjects == ("A0S9V9", "B2D9M2", "C8O0P2")
    assert not any(row.is_labeled for row in data.rows if row.subject == "C8O0P2")
    texts = [str(finding) for finding in source.findings]
    assert any("2 of 6 subjects" in text for text in texts)  # the one in Training/Unlabeled is not absent
    assert any("no mask" in text and "C8O0P2" in text for text in texts)
    assert any("Z9Z9Z9" in text and "left out" in text for text in texts)


def rewrite(official: Path, old: str, new: str) -> None:
    path = next((official / "OpenDataset").glob("*.csv"))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


WRONG = [
    pytest.param("Siemens,A,1,0,2", "Siemens,A,1,0,9", "VMF286", "ES frame.*9 of 4", id="ES-outside"),
    pytest.param("Siemens,A,1,0,2", "Siemens,X,1,0,2", "VMF285", "vendor must be one of A, B, C, D", id="vendor"),
    pytest.param("External code", "Name", "VMF289", "column 'code'", id="no-code-column"),
    pytest.param(",ED,ES,", ",E1,E2,", "VMF285", "none with columns ED and ES", id="no-phases"),
    pytest.param("B2D9M2", "A0S9V9", "VMF284", "A0S9V9 twice", id="subject-twice"),
]


@pytest.mark.parametrize(("old", "new", "code", "message"), WRONG)
def test_wrong_table_is_refused(old, new, code, message, official):
    rewrite(official, old, new)
    with pytest.raises(VmfError, match=f"(?s){code}.*{message}"):
        MNMsDataset(official).datalist()


def test_two_copies_of_a_subject_and_an_empty_folder_are_refused(official, tmp_path_factory):
    source = official / "OpenDataset/Testing/D1R1T6/D1R1T6_sa.nii.gz"
    copy = official / "OpenDataset/Validation/D1R1T6/D1R1T6_sa.nii.gz"
    copy.parent.mkdir()
    copy.write_bytes(source.read_bytes())
    with pytest.raises(VmfError, match=r"(?s)VMF284.*one short-axis scan"):
        MNMsDataset(official).datalist()
    with pytest.raises(VmfError, match=r"(?s)VMF285.*information CSV"):
        MNMsDataset(tmp_path_factory.mktemp("empty")).datalist()


def test_official_tree_is_recognized_and_verified(official):
    data, _ = open_datalist(official)
    assert data.name == "mnms"
    assert verify_datalist(data, workers=2) == []
    path = official / "OpenDataset/Testing/D1R1T6/D1R1T6_sa.nii.gz"
    path.write_bytes(gzip.compress(gzip.decompress((official / data.rows[0].image).read_bytes()), 1))
    codes = {(finding.code, finding.subject) for finding in verify_datalist(data)}
    assert codes == {("VMF261", "D1R1T6"), ("VMF260", "D1R1T6")}  # changed, and now A0S9V9 under another name
