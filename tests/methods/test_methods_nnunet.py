# SPDX-License-Identifier: Apache-2.0
"""nnU-Net: its raw data set from our rows, and a real training by its own package on a phantom."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import nibabel as nib
import numpy as np
import pytest

from vmfseg.methods.nnunet import NNUNet
from vmfseg.methods.nnunet_network import planned_model
from vmfseg.model import Predictor
from vmfseg.phantom.heart_scan import scan_heart
from vmfseg.utils import VmfError

LABELS = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}


def python_with_nnunet() -> str | None:
    """Return an interpreter that has nnunetv2: this one, or the one that VMFSEG_NNUNET_PYTHON names."""
    other = os.environ.get("VMFSEG_NNUNET_PYTHON")
    return other or (sys.executable if importlib.util.find_spec("nnunetv2") else None)


def write_hearts(folder, count, frames=2, size=64):
    """Write cines of phantom subjects and return the rows of their two annotated frames."""
    rows = []
    for index in range(count):
        scan = scan_heart(index, seed=0, frames=frames, size=size)
        paths = [folder / f"s{index}_{kind}.nii.gz" for kind in ("sa", "gt")]
        for path, array in zip(paths, (scan.image, scan.label), strict=True):
            nib.save(nib.Nifti1Image(array, scan.affine), path)
        for phase in ("ED", "ES"):
            rows.append(
                {
                    "image": str(paths[0]), "label": str(paths[1]), "frame": int(str(scan.row[phase])),
                    "domain": str(scan.row["Vendor"]), "subject": f"s{index}", "phase": phase,
                }
            )  # fmt: skip
    return rows


def raw_of(model):
    return model.folder / "raw" / "Dataset001_vmfseg"


def test_rows_become_a_raw_data_set(tmp_path):
    rows = write_hearts(tmp_path, 1)
    model = NNUNet(tmp_path / "scratch", LABELS, iterations=10)
    model._prepare(model._cases(rows))
    raw = raw_of(model)
    names = sorted(f"A-s0_{row['frame']:03d}" for row in rows)
    assert sorted(p.name for p in (raw / "imagesTr").iterdir()) == [f"{name}_0000.nii.gz" for name in names]
    assert sorted(p.name for p in (raw / "labelsTr").iterdir()) == [f"{name}.nii.gz" for name in names]
    cine, masks = nib.load(rows[0]["image"]), nib.load(rows[0]["label"])
    for row in rows:
        case = f"A-s0_{row['frame']:03d}"
        image, label = nib.load(raw / "imagesTr" / f"{case}_0000.nii.gz"), nib.load(raw / "labelsTr" / f"{case}.nii.gz")
        assert int(np.argmax(image.header.get_zooms())) == 2, "slices come last"
        np.testing.assert_allclose(image.affine, label.affine)
        # every voxel is where it was in the world, whatever the order of the axes
        index = np.stack([*np.indices(image.shape), np.ones(image.shape)], axis=-1)
        there = np.rint(index @ (np.linalg.inv(cine.affine) @ image.affine).T).astype(int)[..., :3]
        place = (*np.moveaxis(there, -1, 0), row["frame"])
        np.testing.assert_array_equal(image.get_fdata(), cine.get_fdata()[place])
        np.testing.assert_array_equal(label.get_fdata(), masks.get_fdata()[place])
    described = json.loads((raw / "dataset.json").read_text())
    assert described["labels"] == {"background": 0, "LV": 1, "MYO": 2, "RV": 3}
    assert described["numTraining"] == 2


def volume(folder, name, array):
    nib.save(nib.Nifti1Image(array, np.diag([1.0, 1.0, 8.0, 1.0])), folder / name)
    return str(folder / name)


def test_files_that_fit_are_linked(tmp_path):
    image = volume(tmp_path, "i.nii.gz", np.random.default_rng(0).random((16, 16, 4)).astype(np.float32))
    label = volume(tmp_path, "l.nii.gz", np.ones((16, 16, 4), np.uint8))
    model = NNUNet(tmp_path / "scratch", LABELS)
    model._prepare(model._cases([{"image": image, "label": label, "domain": "A", "subject": "s"}]))
    linked = [*raw_of(model).glob("imagesTr/*"), *raw_of(model).glob("labelsTr/*")]
    assert [(p.is_symlink(), str(p.resolve())) for p in linked] == [(True, image), (True, label)]


def test_slices_and_classes_that_nobody_drew_are_ignored(tmp_path):
    array = np.zeros((16, 16, 4), np.uint8)
    array[4:8, 4:8], array[8:12, 8:12] = 1, 2
    image = volume(tmp_path, "i.nii.gz", np.random.default_rng(0).random((16, 16, 4)).astype(np.float32))
    label = volume(tmp_path, "l.nii.gz", array)
    few = volume(tmp_path, "f.nii.gz", np.where(array == 1, 1, 0).astype(np.uint8))
    model = NNUNet(tmp_path / "scratch", {0: "background", 1: "GM", 2: "WM"})
    rows = [
        {"image": image, "label": label, "domain": "A", "subject": "slices", "slices": "1-2"},
        {"image": image, "label": few, "domain": "A", "subject": "classes", "annotated": [0, 1]},
    ]
    model._prepare(model._cases(rows))
    assert json.loads((raw_of(model) / "dataset.json").read_text())["labels"]["ignore"] == 3
    by_slice = nib.load(raw_of(model) / "labelsTr" / "A-slices.nii.gz").get_fdata()
    assert (by_slice[..., [0, 3]] == 3).all()
    np.testing.assert_array_equal(by_slice[..., 1:3], array[..., 1:3])
    by_class = nib.load(raw_of(model) / "labelsTr" / "A-classes.nii.gz").get_fdata()
    np.testing.assert_array_equal(by_class, np.where(array == 1, 1, 3))


def test_budget():
    for iterations, wanted in ((8, (1, 8)), (250, (1, 250)), (600, (3, 200)), (250_000, (1000, 250))):
        assert NNUNet("x", LABELS, iterations=iterations).epochs == wanted


def test_refusals(tmp_path):
    row = {"image": "a.nii.gz", "label": "b.nii.gz", "domain": "D", "subject": "s"}
    model = NNUNet(tmp_path, LABELS)
    with pytest.raises(ValueError, match="target domain D"):
        model.train([row], target_domain="D")
    with pytest.raises(ValueError, match="must be labelled"):
        model.train([{**row, "label": None}])
    with pytest.raises(ValueError, match="twice"):
        model.train([row, row])
    with pytest.raises(ValueError, match="Call train first"):
        model.predict([row], tmp_path / "out")
    with pytest.raises(ValueError, match="from 0 on"):
        NNUNet(tmp_path, {1: "LV", 2: "RV"})


def test_a_missing_package_is_named(tmp_path):
    lacks = subprocess.run([sys.executable, "-c", "import nnunetv2"], capture_output=True, check=False).returncode
    if not lacks:
        pytest.skip("nnunetv2 is installed")
    with pytest.raises(VmfError, match=r"vmfseg\[nnunet\]"):
        NNUNet(tmp_path, LABELS, python=sys.executable).train(
            [{"image": "a", "label": "b", "domain": "A", "subject": "s"}]
        )


@pytest.mark.slow
@pytest.mark.skipif(python_with_nnunet() is None, reason="nnunetv2 is not installed")
def test_its_own_package_trains_and_predicts(tmp_path):
    rows = write_hearts(tmp_path, 4, size=64)
    source, target = [r for r in rows if r["domain"] != "D"], [r for r in rows if r["domain"] == "D"]
    model = NNUNet(
        tmp_path / "scratch", LABELS, iterations=12, memory_gb=0.5, python=python_with_nnunet(), mirror=False
    )
    folder = model.train(source, target_domain="D")
    assert (folder / "fold_all" / "checkpoint_final.pth").is_file()
    fingerprint = json.loads((tmp_path / "scratch/preprocessed/Dataset001_vmfseg/dataset.json").read_text())
    assert fingerprint["numTraining"] == 6
    written = (folder / "fold_all" / "checkpoint_final.pth").stat().st_mtime_ns
    assert model.train(source, target_domain="D") == folder  # complete, so it is kept
    assert (folder / "fold_all" / "checkpoint_final.pth").stat().st_mtime_ns == written
    maps = model.predict(target, tmp_path / "out")
    assert len(maps) == len(target)
    for row, path in zip(target, maps, strict=True):
        found, image = nib.load(path), nib.load(row["image"])
        assert found.shape == image.shape[:3]
        np.testing.assert_allclose(found.affine, image.affine, atol=1e-4)
        assert set(np.unique(np.asarray(found.dataobj))) <= {0, 1, 2, 3}
    plans, weights = model.trained()
    planned, state = planned_model(plans, weights, LABELS, mirror=False)
    planned.save(tmp_path / "model", state)
    predictor = Predictor.from_bundle(tmp_path / "model", "cpu")
    for row, path in zip(target, maps, strict=True):
        theirs = np.asarray(nib.load(path).dataobj)
        ours = predictor.predict(row["image"], [row["frame"]]).labels[..., row["frame"]]
        assert ours.shape == theirs.shape
        assert np.mean(ours == theirs) > 0.97, "only the interpolation differs"
