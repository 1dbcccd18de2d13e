# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import sys
from pathlib import Path

import itk
import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner

sys.path.append(str(Path(__file__).parent.parent / "model"))
from inference_bundle import tiny_network, write_tiny_bundle
from plain_network import write_plain_bundle

from vmfseg.cli.main import app
from vmfseg.model.inputs import find_images, plan_jobs
from vmfseg.utils import VmfError

RUNNER = CliRunner()
AFFINE = np.diag([1.3, 1.3, 8.0, 1.0])


def voxels(shape=(24, 20, 3), seed=0):
    return np.random.default_rng(seed).integers(0, 900, shape).astype(np.int16)


def save(path: Path, **kwargs) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(voxels(**kwargs), AFFINE), path)
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_tiny_bundle(tmp_path_factory.mktemp("bundles"), tiny_network())


def segment(bundle, *arguments):
    return RUNNER.invoke(app, ["segment", str(bundle), *map(str, arguments), "--device", "cpu"])


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_folder_keeps_its_subfolders_and_gets_labels_with_quality(bundle, tmp_path):
    for name in ("a.nii.gz", "sub/b.nii", "sub/b_gt.nii.gz", ".hidden.nii.gz", "a_seg.nii.gz"):
        save(tmp_path / "in" / name)
    (tmp_path / "in" / "notes.txt").write_text("no image")
    result = segment(bundle, tmp_path / "in", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    made = ["a_quality.json", "a_seg.nii.gz", "sub/b_quality.json", "sub/b_seg.nii.gz", "summary.csv", "summary.html"]
    assert names(tmp_path / "out") == made
    assert "2 written" in result.output
    quality = json.loads((tmp_path / "out" / "a_quality.json").read_text())
    assert quality["input"] == "a.nii.gz"
    assert quality["light"] == "unknown"


def test_one_bad_file_does_not_stop_the_others(bundle, tmp_path):
    save(tmp_path / "in" / "a.nii.gz")
    broken = save(tmp_path / "in" / "b.nii.gz")
    broken.write_bytes(broken.read_bytes()[:-50])
    save(tmp_path / "in" / "c.nii.gz")
    result = segment(bundle, tmp_path / "in", "-o", tmp_path / "out")
    assert result.exit_code == 3
    assert "failed, VMF210" in result.output
    assert "2 written, 1 failed" in result.output
    assert not any(name.startswith("b") or ".vmfseg" in name for name in names(tmp_path / "out"))
    shown = json.loads(segment(bundle, tmp_path / "in", "-o", tmp_path / "out2", "--json").stdout)
    assert [entry["status"] for entry in shown["results"]] == ["written", "failed", "written"]
    assert shown["results"][1]["error"]["code"] == "VMF210"


def test_nothing_is_overwritten_unless_asked(bundle, tmp_path):
    source = save(tmp_path / "a.nii.gz")
    out = tmp_path / "out"
    assert segment(bundle, source, "-o", out).exit_code == 0
    before = {name: (out / name).read_bytes() for name in names(out)}
    again = segment(bundle, source, "-o", out)
    assert isinstance(again.exception, VmfError)
    assert again.exception.code == "VMF503"
    assert before == {name: (out / name).read_bytes() for name in names(out)}
    skipped = segment(bundle, source, "-o", out, "--skip-existing")
    assert "1 skipped" in skipped.output
    assert segment(bundle, source, "-o", out, "--overwrite").exit_code == 0
    assert before == {name: (out / name).read_bytes() for name in names(out)}  # equal runs, equal bytes


def test_extra_outputs(bundle, tmp_path):
    cine = save(tmp_path / "cine.nii.gz", shape=(24, 20, 3, 4))
    out = tmp_path / "labels.nii.gz"
    result = segment(
        bundle, cine, "-o", out, "--frames", "ED,2", "--probabilities", "--activations", "--overlay", "png"
    )
    assert result.exit_code == 0, result.output
    made = [
        "labels.nii.gz",
        *(f"labels_{n}" for n in ("activations.nii.gz", "overlay.png", "probabilities.nii.gz", "quality.json")),
    ]
    assert [name for name in names(tmp_path) if name.startswith("labels")] == made
    assert nib.load(out).shape == (24, 20, 3, 4)
    assert nib.load(tmp_path / "labels_probabilities.nii.gz").shape == (24, 20, 3, 4, 4)
    assert nib.load(tmp_path / "labels_activations.nii.gz").shape == (24, 20, 3, 4, 6)
    assert (tmp_path / "labels_overlay.png").read_bytes()[:4] == b"\x89PNG"
    quality = json.loads((tmp_path / "labels_quality.json").read_text())
    assert {frame["frame"] for frame in quality["frames"]} == {2, quality["phases"]["ED"]}


def test_channels_come_joined_on_the_command_line_or_from_a_datalist(tmp_path):
    two = write_plain_bundle(tmp_path / "bundles", channels=2)
    pairs = [
        [save(tmp_path / "in" / f"{name}_{k}.nii.gz", seed=k + 10 * number) for k in (1, 2)]
        for number, name in enumerate("ab")
    ]
    rows = [{"image": [path.name for path in pair], "domain": "A", "subject": pair[0].name[0]} for pair in pairs]
    (tmp_path / "in" / "scans.json").write_text(json.dumps(rows))
    lines = "".join(f"{';'.join(row['image'])},A\n" for row in rows)
    (tmp_path / "in" / "scans.csv").write_text(f"image,domain\n{lines}")
    inputs = {
        "joined": ";".join(map(str, pairs[0])),
        "json": tmp_path / "in" / "scans.json",
        "csv": tmp_path / "in" / "scans.csv",
    }
    labels = {}
    for name, given in inputs.items():
        result = segment(two, given, "-o", tmp_path / name)
        assert result.exit_code == 0, (result.output, result.exception)
        assert len(names(tmp_path / name)) == (2 if name == "joined" else 4) + 2  # and the summary
        labels[name] = np.asarray(nib.load(tmp_path / name / "a_1_seg.nii.gz").dataobj)
    assert np.array_equal(labels["joined"], labels["json"])
    assert np.array_equal(labels["joined"], labels["csv"])
    swapped = segment(two, ";".join(map(str, pairs[0][::-1])), "-o", tmp_path / "swapped")
    assert swapped.exit_code == 0
    other = np.asarray(nib.load(tmp_path / "swapped" / "a_2_seg.nii.gz").dataobj)
    assert not np.array_equal(labels["joined"], other), "the order of the channels counts"
    single = segment(two, pairs[0][0], "-o", tmp_path / "single")
    assert single.exit_code != 0
    assert "2 channels" in single.output


def test_a_missing_channel_is_named(bundle, tmp_path):
    result = segment(bundle, f"{save(tmp_path / 'a.nii.gz')};{tmp_path / 'none.nii.gz'}", "-o", tmp_path / "out")
    assert isinstance(result.exception, VmfError)
    assert result.exception.code == "VMF295"


def test_without_kernels_no_activations_are_written_and_it_says_so(tmp_path):
    plain = write_plain_bundle(tmp_path / "bundles")
    result = segment(plain, save(tmp_path / "a.nii.gz"), "-o", tmp_path / "out", "--activations")
    assert result.exit_code == 0, result.output
    assert "no vMF kernels" in result.output
    assert names(tmp_path / "out") == ["a_quality.json", "a_seg.nii.gz", "summary.csv", "summary.html"]
    frame = json.loads((tmp_path / "out" / "a_quality.json").read_text())["frames"][0]
    assert frame["kernel_shares"] == []
    assert "log_likelihood" not in frame["signals"]


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
def test_other_formats_give_nifti_in_the_same_place(bundle, tmp_path, suffix):
    array = voxels()
    image = itk.image_from_array(np.ascontiguousarray(array.transpose(2, 1, 0)))
    image.SetSpacing([1.3, 1.3, 8.0])
    image.SetOrigin([5.0, -4.0, 3.0])
    itk.imwrite(image, str(tmp_path / f"scan{suffix}"))
    moved = AFFINE.copy()
    moved[0, 0], moved[1, 1], moved[:3, 3] = -1.3, -1.3, [-5.0, 4.0, 3.0]
    nib.save(nib.Nifti1Image(array, moved), tmp_path / "same.nii.gz")
    result = segment(bundle, tmp_path / f"scan{suffix}", tmp_path / "same.nii.gz", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    ours, theirs = (nib.load(tmp_path / "out" / f"{name}_seg.nii.gz") for name in ("scan", "same"))
    assert np.array_equal(ours.dataobj, theirs.dataobj)
    np.testing.assert_allclose(ours.affine, theirs.affine, atol=1e-5)


def test_dicom_series_are_segmented_by_folder(bundle, tmp_path):
    series = tmp_path / "study" / "series1"
    series.mkdir(parents=True)
    array = voxels()
    kind = itk.Image[itk.SS, 2]
    for k in range(array.shape[2]):
        plane = itk.image_view_from_array(np.ascontiguousarray(array[..., k].T))
        image = itk.cast_image_filter(plane, ttype=(type(plane), kind))
        image.SetSpacing([1.3, 1.3])
        header = image.GetMetaDataDictionary()
        for tag, value in {
            "0008|0060": "MR", "0020|000e": "1.2.3", "0020|000d": "1.2", "0020|0037": r"1\0\0\0\1\0",
            "0020|0032": rf"0\0\{8 * k}", "0018|0050": "8", "0020|0013": str(k + 1),
        }.items():  # fmt: skip
            header[tag] = value
        writer = itk.ImageFileWriter[kind].New(Input=image, FileName=str(series / f"{k}.dcm"))
        dicom = itk.GDCMImageIO.New()
        dicom.KeepOriginalUIDOn()
        writer.SetImageIO(dicom)
        writer.Update()
    assert [path for path, _ in find_images(tmp_path / "study")] == [series]
    result = segment(bundle, tmp_path / "study", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    output = nib.load(tmp_path / "out" / "series1_seg.nii.gz")
    assert output.shape == array.shape


def test_globs_and_names_that_collide(tmp_path):
    for name in ("x/a.nii.gz", "y/a.nii.gz", "y/a_gt.nii.gz"):
        save(tmp_path / name)
    found = [path for path, _ in find_images(tmp_path / "*" / "*.nii.gz")]
    assert found == [tmp_path / "x" / "a.nii.gz", tmp_path / "y" / "a.nii.gz"]
    with pytest.raises(VmfError, match="VMF172"):
        plan_jobs([tmp_path / "*" / "*.nii.gz"], tmp_path / "out")
    with pytest.raises(VmfError, match="several images need a folder"):
        plan_jobs([tmp_path], tmp_path / "out.nii.gz")
    with pytest.raises(VmfError, match="VMF173"):
        plan_jobs([tmp_path / "x" / "a.nii.gz"], tmp_path / "x" / "a.nii.gz")
    with pytest.raises(VmfError, match="VMF295"):
        plan_jobs([tmp_path / "*.mha"], tmp_path / "out")
    assert len(plan_jobs([tmp_path, tmp_path], tmp_path / "out")) == 2


def test_nan_voxels_are_refused_or_replaced_with_a_word(bundle, tmp_path):
    array = voxels().astype(np.float32)
    array[3, 4, 1] = np.nan
    nib.save(nib.Nifti1Image(array, AFFINE), tmp_path / "a.nii.gz")
    assert segment(bundle, tmp_path / "a.nii.gz", "-o", tmp_path / "out").exit_code == 3
    result = segment(bundle, tmp_path / "a.nii.gz", "-o", tmp_path / "out", "--nan-to", "0")
    assert result.exit_code == 0, result.output
    quality = json.loads((tmp_path / "out" / "a_quality.json").read_text())
    assert any("VMF230" in line for line in quality["warnings"])


def test_sheared_and_contradicting_grids_are_refused_or_taken_as_told(bundle, tmp_path):
    sheared = AFFINE.copy()
    sheared[0, 1] = 0.6
    image = nib.Nifti1Image(voxels(), sheared)
    image.set_qform(None, 0)
    nib.save(image, tmp_path / "sheared.nii.gz")
    assert segment(bundle, tmp_path / "sheared.nii.gz", "-o", tmp_path / "out").exit_code == 3
    result = segment(bundle, tmp_path / "sheared.nii.gz", "-o", tmp_path / "out", "--allow-shear")
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(
        nib.load(tmp_path / "out" / "sheared_seg.nii.gz").affine, nib.load(tmp_path / "sheared.nii.gz").affine
    )
    torn = nib.Nifti1Image(voxels(), AFFINE)
    torn.set_sform(AFFINE, 1)
    torn.set_qform(np.diag([1.3, 1.3, 8.0, 1.0])[[1, 0, 2, 3]], 1)
    nib.save(torn, tmp_path / "torn.nii.gz")
    assert segment(bundle, tmp_path / "torn.nii.gz", "-o", tmp_path / "out").exit_code == 3
    result = segment(bundle, tmp_path / "torn.nii.gz", "-o", tmp_path / "out", "--prefer", "sform")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--overlay", "gif", "png"), ("--prefer", "both", "sform"), ("--backend", "tf", "torch")],
)
def test_words_that_no_option_knows_are_named(bundle, tmp_path, option, value, message):
    result = segment(bundle, save(tmp_path / "a.nii.gz"), "-o", tmp_path / "out", option, value)
    assert isinstance(result.exception, ValueError)
    assert f"must be one of {message}" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_full_disk_ends_the_run_with_6(bundle, tmp_path, monkeypatch):
    sources = [save(tmp_path / f"{name}.nii.gz") for name in "ab"]
    import os

    real = os.fsync

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = segment(bundle, *sources, "-o", tmp_path / "out")
    monkeypatch.setattr(os, "fsync", real)
    assert result.exit_code == 6
    assert "1 images were not segmented" in result.output
    assert names(tmp_path / "out") == []
