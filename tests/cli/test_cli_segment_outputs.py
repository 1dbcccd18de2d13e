# SPDX-License-Identifier: Apache-2.0
"""``vmfseg segment``: summary, DICOM SEG, meshes, where the model looked."""

from __future__ import annotations

import csv
import json
import struct
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from dicom_series import write_series
from typer.testing import CliRunner

sys.path.append(str(Path(__file__).parent.parent / "model"))
from inference_bundle import tiny_network, write_tiny_bundle

from vmfseg.cli.main import app
from vmfseg.model.weights import tensors_digest
from vmfseg.utils import VmfError

AFFINE = np.diag([1.3, 1.3, 8.0, 1.0])


@pytest.fixture(scope="module")
def network():
    return tiny_network()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, network):
    return write_tiny_bundle(tmp_path_factory.mktemp("bundles"), network)


def segment(bundle, *arguments):
    return CliRunner().invoke(app, ["segment", str(bundle), *map(str, arguments), "--device", "cpu"])


def voxels(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 900, shape).astype(np.int16)


def save(path, shape=(24, 20, 3), seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(voxels(shape, seed), AFFINE), path)
    return path


def table(folder):
    with open(folder / "summary.csv", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_summary_has_a_row_for_each_scan_with_the_figures_of_its_label_map(bundle, tmp_path):
    save(tmp_path / "in" / "cine.nii.gz", (24, 20, 3, 6))
    save(tmp_path / "in" / "sub" / "<b>.nii.gz", seed=1)
    broken = save(tmp_path / "in" / "z.nii.gz")
    broken.write_bytes(broken.read_bytes()[:-40])
    out = tmp_path / "out"
    result = segment(bundle, tmp_path / "in", "-o", out, "--overlay", "png")
    assert result.exit_code == 3
    rows = {row["image"].split("/")[-1]: row for row in table(out)}
    assert set(rows) == {"cine.nii.gz", "<b>.nii.gz", "z.nii.gz"}
    assert rows["z.nii.gz"]["flag"] == "failed"
    assert "VMF210" in rows["z.nii.gz"]["error"]
    labels = np.asarray(nib.load(out / "cine_seg.nii.gz").dataobj)
    milliliters = 1.3 * 1.3 * 8 / 1000
    quality = json.loads((out / "cine_quality.json").read_text())
    ed, es = quality["phases"]["ED"], quality["phases"]["ES"]
    edv, esv = ((labels[..., frame] == 1).sum() * milliliters for frame in (ed, es))
    row = rows["cine.nii.gz"]
    assert float(row["LV_edv_ml"]) == pytest.approx(edv, abs=1e-3)
    assert float(row["LV_esv_ml"]) == pytest.approx(esv, abs=1e-3)
    assert float(row["LV_ef_percent"]) == pytest.approx(100 * (edv - esv) / edv, abs=0.06)
    assert float(row["myocardium_g"]) == pytest.approx(1.05 * (labels[..., ed] == 2).sum() * milliliters, abs=0.06)
    assert float(row["ml_RV"]) == pytest.approx((labels[..., ed] == 3).sum() * milliliters, abs=1e-3)
    assert row["frames"] == f"ED {ed}, ES {es} of 6"
    assert rows["<b>.nii.gz"]["LV_ef_percent"] == ""
    page = (out / "summary.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;.nii.gz" in page
    assert "<b>.nii" not in page
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in page


def test_the_summary_grows_with_the_folder_and_replaces_no_file_of_a_user(bundle, tmp_path):
    out = tmp_path / "out"
    assert segment(bundle, save(tmp_path / "a.nii.gz"), "-o", out).exit_code == 0
    assert segment(bundle, save(tmp_path / "b.nii.gz", seed=2), "-o", out).exit_code == 0
    assert [row["image"] for row in table(out)] == ["a.nii.gz", "b.nii.gz"]
    (out / "summary.csv").write_text("my,own,table\n")
    refused = segment(bundle, save(tmp_path / "c.nii.gz", seed=3), "-o", out)
    assert isinstance(refused.exception, VmfError)
    assert refused.exception.code == "VMF503"
    assert (out / "summary.csv").read_text() == "my,own,table\n"
    assert not (out / "c_seg.nii.gz").exists()
    single = tmp_path / "elsewhere" / "one.nii.gz"
    assert segment(bundle, tmp_path / "a.nii.gz", "-o", single).exit_code == 0
    assert not (single.parent / "summary.csv").exists(), "one file was asked for"


def test_a_scan_unlike_the_training_scans_is_never_green(network, tmp_path):
    root = write_tiny_bundle(tmp_path / "bundles", network)
    digest = tensors_digest(network.state_dict())
    quality = {"mean": {}, "scale": {}, "weights": {}, "intercept": 0.95, "error": 0.02}
    note = {"format": "vmfseg-quality-3", "model": quality, "weights": digest}
    (root / "models" / "quality.json").write_text(json.dumps(note))
    source = save(tmp_path / "a.nii.gz")
    assert segment(root, source, "-o", tmp_path / "one").exit_code == 0
    assert json.loads((tmp_path / "one" / "a_quality.json").read_text())["light"] == "green"
    far = {
        "format": "vmfseg-shift-1",
        "names": ["image_mean", "image_contrast"],
        "values": [[50 + k, 60 - k % 3] for k in range(8)],
        "domains": ["A"] * 4 + ["B"] * 4,
        "weights": digest,
    }
    (root / "models" / "shift.json").write_text(json.dumps(far))
    assert segment(root, source, "-o", tmp_path / "two").exit_code == 0
    found = json.loads((tmp_path / "two" / "a_quality.json").read_text())
    assert found["shift"]["new"] is True
    assert found["light"] == "amber"
    assert found["frames"][0]["light"] == "green"
    assert "unlike the training scans" in found["light_reasons"][0]
    assert table(tmp_path / "two")[0]["shift"] == "unlike the training scans"


def rotation():
    """Return an oblique basis: rows and columns of the slices, LPS."""
    a, b = np.radians(25), np.radians(-35)
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    tilt = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    basis = turn @ tilt
    return basis[:, 0], basis[:, 1]


def points_of_seg(seg, number):
    """Return where a segment is, LPS in mm, by the attributes of the DICOM object alone, and its number of slices."""
    bits = np.unpackbits(np.frombuffer(seg.PixelData, np.uint8), bitorder="little")
    planes = bits[: int(seg.NumberOfFrames) * seg.Rows * seg.Columns].reshape(-1, seg.Rows, seg.Columns)
    shared = seg.SharedFunctionalGroupsSequence[0]
    points, slices = [], 0
    for plane, group in zip(planes, seg.PerFrameFunctionalGroupsSequence, strict=True):
        if group.SegmentIdentificationSequence[0].ReferencedSegmentNumber != number:
            continue
        slices += 1
        origin = np.array(group.PlanePositionSequence[0].ImagePositionPatient, float)
        both = [shared if "PlaneOrientationSequence" in shared else group][0]
        along = np.array(both.PlaneOrientationSequence[0].ImageOrientationPatient, float).reshape(2, 3)
        measures = (shared if "PixelMeasuresSequence" in shared else group).PixelMeasuresSequence[0]
        down, right = (float(x) for x in measures.PixelSpacing)
        rows, columns = np.nonzero(plane)
        points.append(origin + columns[:, None] * right * along[0] + rows[:, None] * down * along[1])
    return np.concatenate(points), slices


@pytest.mark.parametrize("frames", [1, 5], ids=["volume", "cine"])
def test_dicom_seg_lies_where_the_label_map_lies_in_an_oblique_series(bundle, tmp_path, frames):
    pydicom = pytest.importorskip("pydicom")
    pytest.importorskip("highdicom")
    shape = (20, 26, 4) if frames == 1 else (20, 26, 4, frames)
    series = write_series(tmp_path / "series", voxels(shape), *rotation())
    out = tmp_path / "out"
    result = segment(bundle, series, "-o", out, "--dicom-seg")
    assert result.exit_code == 0, (result.output, result.exception)
    quality = json.loads((out / "series_quality.json").read_text())
    names = ["series_seg.dcm"] if frames == 1 else ["series_ED_seg.dcm", "series_ES_seg.dcm"]
    assert sorted(path.name for path in out.glob("*.dcm")) == names
    label = nib.load(out / "series_seg.nii.gz")
    sources = [pydicom.dcmread(path, stop_before_pixels=True) for path in series.iterdir()]
    for name in names:
        seg = pydicom.dcmread(out / name)
        assert seg.Modality == "SEG"
        assert seg.StudyInstanceUID == sources[0].StudyInstanceUID
        assert seg.FrameOfReferenceUID == sources[0].FrameOfReferenceUID
        assert seg.PatientID == "p1"
        frame = 0 if frames == 1 else quality["phases"][name.split("_")[1]]
        array = np.asarray(label.dataobj)
        array = array if frames == 1 else array[..., frame]
        for number, structure in ((1, "LV"), (2, "MYO"), (3, "RV")):
            described = seg.SegmentSequence[number - 1]
            assert described.SegmentLabel == structure
            found, slices = points_of_seg(seg, number)
            assert slices == 4, "every slice is there, empty or not"
            index = np.argwhere(array == number)
            world = index @ label.affine[:3, :3].T + label.affine[:3, 3]
            expected = world * [-1, -1, 1]  # RAS to LPS
            assert len(found) == len(expected) > 0
            order = [np.lexsort(np.round(points, 2).T) for points in (found, expected)]
            np.testing.assert_allclose(found[order[0]], expected[order[1]], atol=2e-3)
        codes = [s.SegmentedPropertyTypeCodeSequence[0].CodeValue for s in seg.SegmentSequence]
        assert codes == ["87878005", "49848007", "53085002"]
        used = {item.ReferencedSOPInstanceUID for item in seg.ReferencedSeriesSequence[0].ReferencedInstanceSequence}
        assert len(used) == 4
        assert used <= {source.SOPInstanceUID for source in sources}
        times = {s.TriggerTime for s in sources if s.SOPInstanceUID in used}
        assert times == {40 * frame}


def test_dicom_seg_of_what_is_no_complete_series_is_refused(bundle, tmp_path):
    pytest.importorskip("highdicom")
    plain = segment(bundle, save(tmp_path / "a.nii.gz"), "-o", tmp_path / "out", "--dicom-seg")
    assert isinstance(plain.exception, VmfError)
    assert plain.exception.code == "VMF177"
    assert not (tmp_path / "out").exists()
    gap = write_series(tmp_path / "gap", voxels((20, 26, 6)), *rotation(), leave_out=(2,))
    result = segment(bundle, gap, "-o", tmp_path / "out", "--dicom-seg", "--json")
    error = json.loads(result.stdout)["results"][0]["error"]
    assert result.exit_code == 3
    assert error["code"] == "VMF241"
    assert "missing" in error["found"]
    assert not list((tmp_path / "out").glob("*.dcm"))


def read_stl(path):
    content = path.read_bytes()
    (count,) = struct.unpack("<I", content[80:84])
    rows = np.frombuffer(content[84:], np.dtype([("n", "<f4", 3), ("v", "<f4", (3, 3)), ("a", "<u2")]))
    assert len(rows) == count
    return rows["v"].astype(float)


def test_meshes_are_closed_surfaces_around_the_structures_in_lps(bundle, tmp_path):
    pytest.importorskip("skimage")
    source = tmp_path / "a.nii.gz"
    coarse = np.random.default_rng(3).random((6, 5, 3))
    smooth = np.kron(coarse, np.ones((5, 5, 2)))
    affine = np.array([[0, -1.3, 0, 30.0], [1.2, 0, 0, -5.0], [0, 0, 8.0, 100.0], [0, 0, 0, 1]])
    nib.save(nib.Nifti1Image((1000 * smooth).astype(np.int16), affine), source)
    out = tmp_path / "out"
    assert segment(bundle, source, "-o", out, "--mesh", "stl").exit_code == 0
    labels = np.asarray(nib.load(out / "a_seg.nii.gz").dataobj)
    present = [value for value in (1, 2, 3) if (labels == value).any()]
    assert present
    for value in (1, 2, 3):
        file = out / f"a_{ {1: 'LV', 2: 'MYO', 3: 'RV'}[value] }.stl"
        assert file.exists() == (value in present)
        if value not in present:
            continue
        corners = read_stl(file)
        index = np.argwhere(labels == value)
        world = (index @ affine[:3, :3].T + affine[:3, 3]) * [-1, -1, 1]
        reach = np.array([1.3, 1.2, 8.0]) / 2 + 1e-3
        assert (corners.reshape(-1, 3).min(axis=0) >= world.min(axis=0) - reach).all()
        assert (corners.reshape(-1, 3).max(axis=0) <= world.max(axis=0) + reach).all()
        edges = np.round(np.stack([corners, np.roll(corners, -1, axis=1)], axis=2).reshape(-1, 6), 3)
        back = np.round(np.stack([np.roll(corners, -1, axis=1), corners], axis=2).reshape(-1, 6), 3)
        kinds, there = np.unique(edges, axis=0, return_counts=True)
        others, here = np.unique(back, axis=0, return_counts=True)
        np.testing.assert_array_equal(kinds, others)  # every edge is run through in both directions: closed
        np.testing.assert_array_equal(there, here)
        volume = np.einsum("ij,ij->", corners[:, 0], np.cross(corners[:, 1], corners[:, 2])) / 6
        assert volume > 0, "normals point outwards"
        assert volume <= 1.3 * 1.2 * 8 * len(index)
