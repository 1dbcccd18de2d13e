# SPDX-License-Identifier: Apache-2.0
"""Labels keep the geometry of their image, to the byte."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch

from vmfseg.model import find_rows
from vmfseg.model.scan import label_path, write_label
from vmfseg.model.weights import fill_network, read_tensors
from vmfseg.networks import VMFNet
from vmfseg.utils import VmfError

SHAPE = (32, 24, 5)
OBLIQUE = np.array([[-1.1, 0.2, 0.5, 30], [0.2, 1.2, -1.0, -20], [0.1, 0.1, 8.0, 5], [0, 0, 0, 1]])


def save(path, shape=SHAPE, kind=nib.Nifti1Image, code=1):
    affine = OBLIQUE.copy()
    u, _, v = np.linalg.svd(affine[:3, :3])
    affine[:3, :3] = (u @ v) * np.array([1.2, 1.2, 8.0])  # oblique, without shear
    voxels = np.random.default_rng(0).integers(0, 900, shape).astype(np.int16)
    image = kind(voxels, affine)
    image.set_sform(affine, code)
    image.set_qform(affine, code)
    image.header.set_xyzt_units("mm", "sec")
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"Jane Doe"))
    nib.save(image, path)
    return path


@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
@pytest.mark.parametrize("shape", [SHAPE, (*SHAPE, 4)], ids=["3d", "cine"])
@pytest.mark.parametrize("code", [1, 4])
def test_label_has_the_geometry_of_its_image(kind, shape, code, tmp_path):
    image = save(tmp_path / "a.nii.gz", shape, kind, code)
    label = np.random.default_rng(1).integers(0, 4, SHAPE)
    path = write_label(tmp_path / "out" / "a_seg.nii.gz", label, image)
    written, source = nib.load(path), nib.load(image)
    assert type(written) is kind
    np.testing.assert_array_equal(np.asarray(written.dataobj), label)
    assert written.get_data_dtype() == np.uint8
    for field in ("sform_code", "qform_code", "srow_x", "srow_y", "srow_z", "quatern_b", "qoffset_x", "xyzt_units"):
        np.testing.assert_array_equal(written.header[field], source.header[field], err_msg=field)
    assert written.header.get_zooms() == source.header.get_zooms()[:3]
    assert not written.header.extensions, "what is said about the patient stays where it is"
    assert [file.name for file in path.parent.iterdir()] == ["a_seg.nii.gz"]


BAD = [
    pytest.param(np.zeros((32, 24, 6)), "must have the shape of the image", id="shape"),
    pytest.param(np.full(SHAPE, 256), "from 0 to 255", id="too many classes"),
    pytest.param(np.full(SHAPE, 0.5), "from 0 to 255", id="probabilities"),
]


@pytest.mark.parametrize(("label", "message"), BAD)
def test_bad_labels_are_refused_before_anything_is_written(label, message, tmp_path):
    image = save(tmp_path / "a.nii.gz")
    with pytest.raises(ValueError, match=message):
        write_label(tmp_path / "b.nii.gz", label, image)
    assert not (tmp_path / "b.nii.gz").exists()


PATHS = [
    pytest.param(("/d/A/a.nii.gz", "o", None, "/d"), "o/A/a_seg.nii.gz", id="subfolder"),
    pytest.param(("/d/a.b.nii", "o", 12, ""), "o/a.b_frame12_seg.nii.gz", id="frame"),
    pytest.param(("/e/a.MHA", "o", None, "/d"), "o/a_seg.nii.gz", id="elsewhere"),
]


@pytest.mark.parametrize(("arguments", "expected"), PATHS)
def test_names(arguments, expected):
    assert label_path(*arguments).as_posix() == expected


def test_rows_are_frames_and_masks_are_left_out(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    save(tmp_path / "b.nii.gz")
    save(tmp_path / "sub" / "a_sa.nii.gz", (*SHAPE, 2))
    for name in ("sub/a_sa_gt.nii.gz", "x-mask-r1.nii.gz", "b_seg.nii.gz", ".hidden/c.nii.gz", "f_factors.nii.gz"):
        save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("")
    rows = find_rows(tmp_path)
    assert rows == [
        {"image": str(tmp_path / "b.nii.gz")},
        {"image": str(tmp_path / "sub" / "a_sa.nii.gz"), "frame": 0},
        {"image": str(tmp_path / "sub" / "a_sa.nii.gz"), "frame": 1},
    ]
    assert find_rows(tmp_path / "b.nii.gz") == rows[:1]


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_no_image_is_an_error_that_names_the_folder(name, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(VmfError, match=f"VMF295(.|\\n)*{name}"):
        find_rows(tmp_path / name)


def tiny(**changes):
    return VMFNet(**{"channels": (4, 8, 8), "num_kernels": 3, "hidden_channels": 4, **changes})


def test_weights_come_back(tmp_path):
    source, target = tiny(seed=1), tiny(seed=2)
    torch.save(source.state_dict(), tmp_path / "model.pt")
    fill_network(target, read_tensors(tmp_path / "model.pt"), tmp_path / "model.pt")
    for name, value in source.state_dict().items():
        torch.testing.assert_close(target.state_dict()[name], value, msg=name)


def test_weights_of_another_network_are_refused(tmp_path):
    network = tiny(seed=1)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    torch.save(tiny(num_kernels=5).state_dict(), tmp_path / "model.pt")
    with pytest.raises(VmfError, match=r"VMF306(.|\n)*kernels.weight is \(5, 4\) instead of \(3, 4\)"):
        fill_network(network, read_tensors(tmp_path / "model.pt"), tmp_path / "model.pt")
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    torch.save({"a": Path(".")}, tmp_path / "model.pt")  # any object but tensors and numbers
    with pytest.raises(VmfError, match="VMF401"):
        read_tensors(tmp_path / "model.pt")
