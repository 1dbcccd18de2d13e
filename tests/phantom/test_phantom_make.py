# SPDX-License-Identifier: Apache-2.0
"""The phantom on disk: layout, table, determinism, reuse and refusal."""

import csv
import json
import re

import nibabel as nib
import numpy as np
import pytest

from vmfseg.data.folder import FolderDataset
from vmfseg.data.mnms import MNMsDataset
from vmfseg.data.scgm import SCGMDataset
from vmfseg.data.verify import verify_datalist
from vmfseg.phantom import PHANTOM_FILE, make_phantom, save_montage
from vmfseg.phantom.release_layout import CSV_NAME, heart_code, heart_folder, write_subject
from vmfseg.phantom.subjects import draw_subject
from vmfseg.utils import VmfError
from vmfseg.utils.locks import locked_folder

SMALL = {"size": 64, "frames": 3, "workers": 1}
SIDES = ("cavity", "wall")


@pytest.fixture(scope="module")
def hearts(tmp_path_factory):
    return make_phantom(tmp_path_factory.mktemp("phantom") / "hearts", subjects=9, **SMALL)


@pytest.fixture(scope="module")
def cords(tmp_path_factory):
    return make_phantom(tmp_path_factory.mktemp("phantom") / "cords", "scgm", subjects=9, size=110, workers=1)


def table(root):
    with open(root / CSV_NAME, newline="") as stream:
        return list(csv.DictReader(stream))


def files(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*.gz"))}


def test_table_has_the_columns_of_the_release(hearts):
    with open(hearts / CSV_NAME, newline="") as stream:
        header = next(csv.reader(stream))
    wanted = "|External code|VendorName|Vendor|Centre|ED|ES|Age|Pathology|Sex|Height|Weight"
    assert header == wanted.split("|")
    rows = table(hearts)
    assert len(rows) == 9
    assert [row[""] for row in rows] == [str(k) for k in range(9)]
    pairs = {(row["Vendor"], row["VendorName"], row["Centre"]) for row in rows}
    assert pairs == {
        ("A", "Siemens", "1"), ("B", "Philips", "2"), ("B", "Philips", "3"), ("C", "GE", "4"), ("D", "Canon", "5"),
    }  # fmt: skip


def test_every_row_has_its_files(hearts):
    for row in table(hearts):
        code = row["External code"]
        assert re.fullmatch(r"([A-Z]\d){3}", code)
        (image,) = hearts.rglob(f"{code}_sa.nii.gz")
        assert image.parent.name == code
        scan, label = nib.load(image), nib.load(image.with_name(f"{code}_sa_gt.nii.gz"))
        factors = nib.load(hearts / "factors" / f"{code}_sa_factors.nii.gz")
        assert scan.shape == label.shape == factors.shape
        assert len(scan.shape) == 4
        np.testing.assert_array_equal(scan.affine, label.affine)
        np.testing.assert_allclose(scan.get_qform(), scan.get_sform(), atol=1e-4)
        assert (int(scan.header["qform_code"]), int(scan.header["sform_code"])) == (1, 1)
        marked = np.flatnonzero(np.asarray(label.dataobj).any(axis=(0, 1, 2)))
        assert sorted(marked) == sorted((int(row["ED"]), int(row["ES"])))


def test_folders_follow_the_release():
    folders = [heart_folder(index) for index in range(24)]
    assert set(folders) == {"Training/Labeled", "Training/Unlabeled", "Validation", "Testing"}
    assert folders.count("Training/Unlabeled") == 1
    assert all(heart_folder(i) in ("Validation", "Testing") for i in range(3, 96, 4))  # Canon is never trained on


def test_codes_never_collide():
    assert len({heart_code(index, 7) for index in range(5000)}) == 5000


def test_unlabeled_subject_has_an_empty_mask(tmp_path):
    row = write_subject(tmp_path, "mnms", 22, 0, 3, 48)
    assert row["folder"] == "Training/Unlabeled"
    (mask,) = tmp_path.rglob("*_sa_gt.nii.gz")
    assert not np.asarray(nib.load(mask).dataobj).any()
    (factors,) = tmp_path.rglob("*_factors.nii.gz")
    assert np.asarray(nib.load(factors).dataobj).any()


def test_subject_is_the_same_whatever_else_is_made(hearts, tmp_path):
    few = make_phantom(tmp_path / "few", subjects=3, **{**SMALL, "workers": 2})
    many = files(hearts)
    assert len(files(few)) == 9
    for name, data in files(few).items():
        assert many[name] == data, name


def test_summary_names_seed_and_protocols(hearts):
    summary = json.loads((hearts / PHANTOM_FILE).read_text())
    assert (summary["seed"], summary["subjects"], summary["dataset"]) == (0, 9, "mnms")
    assert [p["vendor"] for p in summary["protocols"]] == ["A", "B", "B", "C", "D"]
    names = json.loads((hearts / "factors" / "tissues.json").read_text())
    assert names["5"] == "papillary"


def test_the_release_loaders_read_it(hearts, cords):
    datalist = MNMsDataset(hearts, checksums=False).datalist()
    assert {row.domain for row in datalist.rows} == set("ABCD")
    assert len({row.subject for row in datalist.rows}) == 9
    assert not [f for f in verify_datalist(datalist) if f.severity == "error"]
    datalist = SCGMDataset(cords, checksums=False).datalist()
    assert len(datalist.rows) == 9
    assert sum(row.label is not None for row in datalist.rows) == 5
    assert not [f for f in verify_datalist(datalist) if f.severity == "error"]


def test_cords_have_the_flat_layout(cords):
    train, test = (sorted(p.name for p in (cords / name).iterdir()) for name in ("train", "test"))
    assert len(train) == 5 * 6
    assert len(test) == 4 * 2
    assert {f"site1-sc02-mask-r{k}.nii.gz" for k in (1, 2, 3, 4)} <= set(train)
    assert not [name for name in test if "mask" in name]
    lines = (cords / "train" / "site1-sc01-levels.txt").read_text().split("\n")
    assert re.fullmatch(r"0 C\d", lines[0])


def test_both_forms_of_a_header_agree(cords):
    for path in cords.rglob("*.nii.gz"):
        image = nib.load(path)
        corner = np.array([*image.shape[:3], 1])
        assert np.abs((image.get_qform() - image.get_sform()) @ corner).max() < 1e-3, path


def test_same_phantom_is_kept(hearts):
    before = (hearts / PHANTOM_FILE).stat().st_mtime_ns
    calls = []
    again = make_phantom(hearts, subjects=9, progress=lambda done, total: calls.append(done), **SMALL)
    assert again == hearts
    assert not calls
    assert (hearts / PHANTOM_FILE).stat().st_mtime_ns == before


def test_another_phantom_is_refused_unless_told(tmp_path):
    out = tmp_path / "p"
    make_phantom(out, "scgm", subjects=1, size=40, workers=1)
    with pytest.raises(VmfError, match="another phantom is there") as caught:
        make_phantom(out, "scgm", subjects=1, seed=1, size=40, workers=1)
    assert (caught.value.code, caught.value.exit_code) == ("VMF503", 6)
    assert caught.value.found == "seed 0 instead of 1"
    make_phantom(out, "scgm", subjects=1, seed=1, size=40, workers=1, overwrite=True)
    assert json.loads((out / PHANTOM_FILE).read_text())["seed"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_damaged_phantom_is_refused(tmp_path):
    out = make_phantom(tmp_path / "p", "scgm", subjects=1, size=40, workers=1)
    (out / "train" / "site1-sc01-image.nii.gz").write_bytes(b"cut")
    with pytest.raises(VmfError, match="the phantom there is damaged"):
        make_phantom(out, "scgm", subjects=1, size=40, workers=1)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_no_phantom_is_never_replaced(tmp_path, overwrite):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(VmfError, match="no phantom, so it is not replaced"):
        make_phantom(tmp_path, "scgm", subjects=1, size=40, workers=1, overwrite=overwrite)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_interruption_leaves_nothing(tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_phantom(tmp_path / "p", "scgm", subjects=2, size=40, workers=1, progress=stop)
    assert not list(tmp_path.iterdir())


def test_unwritable_parent_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(VmfError, match="VMF502"):
        make_phantom(tmp_path / "file" / "p", "scgm", subjects=1, size=40, workers=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"dataset": "mms"},
            "dataset must be one of mnms, scgm, hearts, cords, got 'mms'. Did you mean 'mnms'",
            id="dataset",
        ),
        pytest.param({"subjects": 0}, "subjects must be an integer from 1 to 10000, got 0", id="none"),
        pytest.param(
            {"dataset": "scgm", "subjects": 81}, "subjects must be an integer from 1 to 80, got 81", id="cords"
        ),
        pytest.param({"frames": 1}, "frames must be an integer from 2 to 60, got 1", id="frames"),
        pytest.param({"size": 8}, "size must be an integer from 32 to 4096, got 8", id="size"),
        pytest.param({"subjects": 2.5}, "subjects must be an integer", id="fraction"),
        pytest.param({"workers": 0}, "workers must be an integer from 1 to 256, got 0", id="workers"),
    ],
)
def test_arguments_are_checked(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        make_phantom(tmp_path / "p", **change)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("which", ["hearts", "cords"])
def test_montage_is_a_picture_with_a_row_per_scanner(request, tmp_path, which):
    root = request.getfixturevalue(which)
    png = save_montage(root, tmp_path / "m.png")
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(data[k : k + 4], "big") for k in (16, 20))
    rows = 5 if which == "hearts" else 4
    assert height == pytest.approx(2.9 * 110 * rows, rel=0.02)
    assert width > 900
    save_montage(root, tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == data
    with pytest.raises(VmfError, match="VMF503"):
        save_montage(root, png, overwrite=False)


def test_montage_of_no_phantom_is_refused(tmp_path):
    with pytest.raises(VmfError, match="VMF301"):
        save_montage(tmp_path, tmp_path / "m.png")


def test_drawn_subjects_come_with_a_table_that_holds_every_second_one_back(tmp_path):
    folder = make_phantom(tmp_path / "cords", "cords", subjects=3, seed=2, workers=1)
    datalist = FolderDataset(folder).datalist()
    assert [(row.subject, row.split) for row in datalist.rows] == [
        ("cords-2-0", "labeled"), ("cords-2-1", "validation"), ("cords-2-2", "labeled")
    ]  # fmt: skip
    assert datalist.labels == {0: "background", 1: "GM", 2: "WM"}
    subject = draw_subject("cords", 1, seed=2)
    stored = nib.load(folder / "cords-2-1.nii.gz")
    np.testing.assert_array_equal(np.asarray(stored.dataobj), subject.images[""])
    np.testing.assert_allclose(stored.affine, subject.affine, atol=1e-3)


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_makes_is_not(tmp_path):
    left, made = tmp_path / ".p.partial-0000", tmp_path / ".p.partial-1111"
    for folder in (left, made):
        folder.mkdir()
        (folder / "half.nii.gz").write_bytes(b"half")
    (left / ".lock").write_text("1")
    with locked_folder(made):
        make_phantom(tmp_path / "p", "scgm", subjects=1, size=50, workers=1)
        assert (made / "half.nii.gz").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [made.name, "p"]
    assert not (tmp_path / "p" / ".lock").exists()


def test_papillary_muscles_of_drawn_hearts_go_to_the_wall_on_request(tmp_path):
    made = {side: make_phantom(tmp_path / side, "hearts", subjects=1, workers=1, papillary=side) for side in SIDES}
    for phase in ("ED", "ES"):
        name = f"hearts-0-0_{phase}"
        images = [(folder / f"{name}.nii.gz").read_bytes() for folder in made.values()]
        assert images[0] == images[1], "the convention of the reader changes no picture"
        cavity, wall = (np.asarray(nib.load(made[side] / f"{name}_label.nii.gz").dataobj) for side in SIDES)
        moved = cavity != wall
        assert moved.sum() > 20
        assert (cavity[moved] == 1).all()
        assert (wall[moved] == 2).all()
    with pytest.raises(ValueError, match="papillary must be"):
        make_phantom(tmp_path / "cords", "cords", subjects=1, papillary="wall")
