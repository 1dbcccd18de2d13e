# SPDX-License-Identifier: Apache-2.0
"""A journey: a folder of DICOM studies becomes label maps, a summary, and DICOM SEG that another library reads."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import itk
import nibabel as nib
import numpy as np
import pytest

pytest.importorskip("highdicom", reason="the extra dicom is not installed")
sys.path.append(str(Path(__file__).parent.parent / "cli"))
from dicom_series import write_series

from vmfseg.phantom import draw_subject


def series_of(image, folder):
    """Write a NIfTI image as the DICOM series that it would have been, in its own place and orientation."""
    turned = image.affine * np.array([[-1], [-1], [1], [1]])  # RAS to LPS
    spacing = np.linalg.norm(turned[:3, :3], axis=0)
    right, down, normal = (turned[:3, :3] / spacing).T
    voxels = np.asarray(image.dataobj)
    origin = turned[:3, 3]
    if np.cross(right, down) @ normal < 0:  # slices are counted the other way round
        origin = origin + (voxels.shape[2] - 1) * turned[:3, 2]
        voxels = voxels[:, :, ::-1]
    pixels = np.clip(voxels.swapaxes(0, 1), 0, None).astype(np.uint16)
    return write_series(folder, pixels, right, down, tuple(origin), (spacing[1], spacing[0]), spacing[2])


@pytest.fixture
def studies(request, tmp_path):
    """Return a folder with two patients, a series each."""
    folder = tmp_path / "studies"
    if request.param == "real":
        files = request.getfixturevalue("real") / "sunnybrook"
        images = {name: nib.load(files / f"sunnybrook_{name}_cine.nii.gz") for name in ("SC-HYP-06", "SC-HF-I-01")}
    else:
        draw_subject("hearts", 1, seed=3).save(tmp_path)
        files = {phase: next(tmp_path.glob(f"*_{phase}.nii.gz")) for phase in ("ED", "ES")}
        # whole bytes of packed bits: GDCM makes up the last pixels where a segmentation ends within a byte
        side = nib.load(files["ED"]).shape[0] // 8 * 8
        images = {phase: nib.load(file).slicer[:side, :side, 5:9] for phase, file in files.items()}
    for name, image in images.items():
        series_of(image, folder / name / "series1")
    return folder


def check_seg(file, label):
    """Read a DICOM SEG by ITK: every slice of every segment is that of the label map, at its place."""
    image = itk.imread(str(file))
    turned = label.affine * np.array([[-1], [-1], [1], [1]])  # RAS to LPS
    voxels = np.asarray(label.dataobj).transpose(2, 1, 0)
    directions = itk.array_from_matrix(image.GetDirection())
    np.testing.assert_allclose(directions[:, :2], (turned[:3, :2] / np.linalg.norm(turned[:3, :2], axis=0)), atol=1e-4)
    ends = [turned[:3, 3] + k * turned[:3, 2] for k in (0, len(voxels) - 1)]
    distances = [np.linalg.norm(np.array(image.GetOrigin()) - end) for end in ends]
    assert min(distances) < 0.01
    order = slice(None) if distances[0] < distances[1] else slice(None, None, -1)
    segments = itk.array_from_image(image).reshape(3, *voxels.shape)
    for number, segment in enumerate(segments, start=1):
        np.testing.assert_array_equal(segment > 0, voxels[order] == number)


@pytest.mark.parametrize(
    "studies", ["phantom", pytest.param("real", marks=[pytest.mark.real_data, pytest.mark.slow])], indirect=True
)
def test_from_a_folder_of_dicom_to_a_summary_and_dicom_seg(studies, shell):
    shown = shell("segment", "hearts", studies, "-o", "out", "--dicom-seg", "--overlay", "png")
    assert all(f"{folder.name}/series1" in shown for folder in studies.iterdir())
    out = shell.folder / "out"
    with open(out / "summary.csv", encoding="utf-8", newline="") as stream:
        rows = {row["labels"].split("/")[0]: row for row in csv.DictReader(stream)}
    assert set(rows) == {folder.name for folder in studies.iterdir()}
    for name, row in rows.items():
        label = nib.load(out / row["labels"])
        voxels, milliliters = np.asarray(label.dataobj), float(np.prod(label.header.get_zooms()[:3])) / 1000
        named = row["frames"].split(" of ")[0].split(", ") if voxels.ndim == 4 else []
        phases = {phase: int(number) for phase, number in map(str.split, named)}
        files = sorted((out / name).glob("*.dcm"))
        assert len(files) == (2 if phases else 1)
        for file in files:
            frame = next((number for phase, number in phases.items() if f"_{phase}_" in file.name), None)
            one = voxels if frame is None else voxels[..., frame]
            check_seg(file, nib.Nifti1Image(one, label.affine))
        if phases:
            edv, esv = ((voxels[..., phases[phase]] == 1).sum() * milliliters for phase in ("ED", "ES"))
            assert float(row["LV_ef_percent"]) == pytest.approx(100 * (edv - esv) / edv, abs=0.06)
            assert 10 < float(row["LV_ef_percent"]) < 80
        else:
            assert float(row["ml_LV"]) == pytest.approx((voxels == 1).sum() * milliliters, abs=0.01)
        assert 0.2 < float(row["looked_at"]) <= 1
        assert row["flag"] in ("green", "amber", "red")
    page = (out / "summary.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 2
