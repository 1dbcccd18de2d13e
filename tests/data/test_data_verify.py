# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from vmfseg.data import Datalist, verify_datalist
from vmfseg.data.datalist import Row

LABELS = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}
AFFINE = np.diag([1.25, 1.25, 8.0, 1.0])


@pytest.fixture
def data(save_volume, scan, heart, tmp_path: Path) -> Datalist:
    """Three good subjects."""
    rows = []
    for index, name in enumerate(("s1", "s2", "s3")):
        save_volume(f"{name}.nii.gz", scan(seed=index))
        save_volume(f"{name}_gt.nii.gz", heart(radius=3.0 + index))
        rows.append(Row(image=f"{name}.nii.gz", label=f"{name}_gt.nii.gz", domain=f"d{index}", subject=name))
    return Datalist("demo", tmp_path, LABELS, tuple(rows))


def codes(data: Datalist, **kwargs) -> list[tuple[str, str, str]]:
    return [(finding.severity, finding.code, finding.subject) for finding in verify_datalist(data, **kwargs)]


def change(data: Datalist, index: int, **fields) -> Datalist:
    return data.with_rows(replace(row, **fields) if i == index else row for i, row in enumerate(data.rows))


def test_good_data_has_no_findings_and_progress_is_told(data):
    steps = []
    assert verify_datalist(data, progress=lambda done, total: steps.append((done, total))) == []
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert codes(data, workers=3) == []
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        verify_datalist(data, workers=0)


def reoriented(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ornt = nib.orientations.axcodes2ornt(("S", "R", "A"))
    turned = nib.Nifti1Image(array, AFFINE).as_reoriented(
        nib.orientations.ornt_transform(nib.io_orientation(AFFINE), ornt)
    )
    return np.asarray(turned.dataobj), turned.affine


def shifted(mm: float) -> np.ndarray:
    affine = AFFINE.copy()
    affine[0, 3] = mm
    return affine


PAIRS = [  # label and affine from the heart, expected finding; demand 6: four of five crafted pairs fail
    pytest.param(lambda h: (h, np.diag([-1.25, 1.25, 8.0, 1.0])), ("error", "VMF255"), id="T76-flipped-affine"),
    pytest.param(lambda h: (h, np.eye(4)), ("error", "VMF254"), id="identity-affine"),
    pytest.param(lambda h: (h, shifted(200.0)), ("error", "VMF254"), id="T77-200-mm"),
    pytest.param(lambda h: (h[:-2], AFFINE), ("error", "VMF253"), id="T73-shape"),
    pytest.param(reoriented, None, id="T75-other-orientation"),
    pytest.param(lambda h: (h, shifted(1e-6)), None, id="noise"),
    pytest.param(lambda h: (h, shifted(0.6)), ("warning", "VMF254"), id="almost-half-a-voxel"),
    pytest.param(lambda h: (h, shifted(1.25)), ("error", "VMF254"), id="one-voxel"),
    pytest.param(lambda h: (np.where(h == 3, 7, h).astype(np.uint8), AFFINE), ("error", "VMF251"), id="T70-outside"),
    pytest.param(lambda h: (h * np.float32(0.7), AFFINE), ("error", "VMF250"), id="T71-fractions"),
    pytest.param(lambda h: (np.zeros_like(h), AFFINE), ("warning", "VMF258"), id="T72-empty"),
    pytest.param(lambda h: (np.array([0, 3, 2, 1], np.uint8)[h], AFFINE), ("warning", "VMF265"), id="acdc-order"),
]


@pytest.mark.parametrize(("make", "expected"), PAIRS)
def test_pairs(make, expected, data, save_volume, heart):
    label, affine = make(heart())
    save_volume("s2_gt.nii.gz", label, affine)
    assert codes(data) == ([] if expected is None else [(*expected, "s2")])


def test_values_outside_the_classes_are_counted(data, save_volume, heart):
    save_volume("s2_gt.nii.gz", np.where(heart() == 3, 7, heart()).astype(np.uint8))
    (finding,) = verify_datalist(data)
    assert f"7 ({int((heart() == 3).sum())} voxels)" in finding.message
    assert finding.file.endswith("s2_gt.nii.gz")


def test_swapped_paths_are_recognized(data):  # T78
    row = data.rows[1]
    swapped = change(data, 1, image=row.label, label=row.image)
    assert codes(swapped) == [("error", "VMF256", "s2")]
    same = change(data, 1, label=row.image)
    assert codes(same) == [("error", "VMF256", "s2")]
    other = change(data, 1, label="s3.nii.gz")
    assert codes(other) == [("error", "VMF256", "s2")]


def test_same_voxels_under_two_subjects_are_found_whatever_the_compression(data, tmp_path, scan, save_volume):  # T82
    copied = gzip.compress(gzip.decompress((tmp_path / "s1.nii.gz").read_bytes()), 1)
    assert copied != (tmp_path / "s1.nii.gz").read_bytes()
    (tmp_path / "s3.nii.gz").write_bytes(copied)
    assert codes(data) == [("error", "VMF260", "s3")]
    save_volume("s3.nii.gz", scan(seed=0).astype(np.float32))  # another type, the same picture
    (finding,) = verify_datalist(data)
    assert finding.code == "VMF260"
    assert "s1" in finding.message


def test_bad_image_missing_file_and_wrong_frame_are_findings_of_their_subject(data, tmp_path, scan, save_volume):
    path = tmp_path / "s1.nii.gz"
    path.write_bytes(path.read_bytes()[:-30])
    (tmp_path / "s2_gt.nii.gz").unlink()
    save_volume("s3.nii.gz", scan((20, 18, 4, 3)))
    findings = verify_datalist(data)
    assert [(f.code, f.subject) for f in findings] == [("VMF210", "s1"), ("VMF201", "s2"), ("VMF234", "s3")]
    assert all(f.file and " - " in f.message for f in findings)
    assert codes(change(data, 2, frame=3))[-1] == ("error", "VMF235", "s3")


def test_reader_warnings_carry_the_subject(data, save_volume, scan):
    affine = AFFINE.copy()
    affine[0, 1] = 3e-3
    save_volume("s2.nii.gz", scan(seed=1), affine)
    assert ("warning", "VMF226", "s2") in codes(data)


def test_class_that_nobody_shows_and_class_that_was_disowned(data, save_volume, heart):
    for name in ("s1", "s2", "s3"):
        save_volume(f"{name}_gt.nii.gz", np.where(heart() == 3, 0, heart()).astype(np.uint8))
    assert codes(data) == [("error", "VMF262", "demo")]
    partial = data.with_rows(replace(row, annotated=(1, 2)) for row in data.rows)
    assert codes(partial) == []
    disowned = data.with_rows(replace(row, annotated=(1,)) for row in data.rows)
    assert [code for _, code, _ in codes(disowned)] == ["VMF263"] * 3


def test_swapped_phases_are_suspected(save_volume, scan, heart, tmp_path):
    truth = np.stack([heart(radius=2.0), heart(radius=5.0)], axis=-1)
    save_volume("c.nii.gz", scan((20, 18, 4, 2)))
    save_volume("c_gt.nii.gz", truth)
    base = Row(image="c.nii.gz", label="c_gt.nii.gz", domain="A", subject="s")
    phases = [("ED", 0), ("ES", 1)]
    wrong = Datalist("demo", tmp_path, LABELS, tuple(replace(base, phase=p, frame=k) for p, k in phases))
    right = Datalist("demo", tmp_path, LABELS, tuple(replace(base, phase=p, frame=1 - k) for p, k in phases))
    assert codes(wrong) == [("warning", "VMF264", "s")]
    assert codes(right) == []
