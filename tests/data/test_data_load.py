# SPDX-License-Identifier: Apache-2.0
"""LoadVolumed and labels, with the threats T40 and T70 to T79."""

from __future__ import annotations

import gzip
import re
import struct

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from vmfseg.data import LoadVolumed
from vmfseg.data.findings import DataWarning
from vmfseg.data.masks import fuse_majority, fuse_raters, fuse_staple, read_label
from vmfseg.utils import VmfError

AFFINE = np.diag([1.25, 1.25, 8.0, 1.0])


def moved(row: int, column: int, value: float) -> np.ndarray:
    affine = AFFINE.copy()
    affine[row, column] = value
    return affine


def test_image_and_label_become_channel_first_metatensors(save_volume, scan, heart):
    row = {
        "image": str(save_volume("a.nii.gz", scan())),
        "label": str(save_volume("l.nii.gz", heart())),
        "subject": "s",
    }
    out = LoadVolumed(num_classes=4)(row)
    assert isinstance(out["image"], MetaTensor)
    assert (out["image"].dtype, out["label"].dtype) == (torch.float32, torch.uint8)
    np.testing.assert_array_equal(out["image"].numpy()[0], scan())
    np.testing.assert_array_equal(out["label"].numpy()[0], heart())
    np.testing.assert_allclose(out["image"].affine.numpy(), AFFINE)
    assert out["image"].meta["filename_or_obj"] == row["image"]
    assert out["subject"] == "s"


def test_frame_picks_from_cine_and_from_4d_label_but_3d_label_is_taken_as_it_is(save_volume, scan, heart):
    cine = scan((20, 18, 4, 3))
    truth = np.zeros(cine.shape, np.uint8)
    truth[..., 2] = heart()
    image = str(save_volume("a.nii.gz", cine))
    for name, label in (("l4.nii.gz", truth), ("l3.nii.gz", heart())):
        out = LoadVolumed()({"image": image, "label": str(save_volume(name, label)), "frame": 2})
        np.testing.assert_array_equal(out["image"].numpy()[0], cine[..., 2])
        np.testing.assert_array_equal(out["label"].numpy()[0], heart())


def test_cine_without_a_frame_is_refused(save_volume, scan):  # T40
    path = str(save_volume("a.nii.gz", scan((20, 18, 4, 3))))
    with pytest.raises(VmfError, match=r"(?s)VMF234.*3 frames.*frame of the row"):
        LoadVolumed()({"image": path})
    single = str(save_volume("b.nii.gz", scan((20, 18, 4, 1))))
    assert tuple(LoadVolumed()({"image": single})["image"].shape) == (1, 20, 18, 4)


def test_row_without_label_opens_none_and_row_without_image_is_refused(save_volume, scan):
    out = LoadVolumed()({"image": str(save_volume("a.nii.gz", scan()))})
    assert "label" not in out
    with pytest.raises(KeyError, match="'image' must be in the row"):
        LoadVolumed()({"label": "x.nii.gz"})


PAIRS = [  # label array from the heart, label affine, code, cause
    pytest.param(lambda h: h[:-2], AFFINE, "VMF253", "another shape", id="T73-shape"),
    pytest.param(lambda h: h, np.diag([1.5, 1.5, 8.0, 1.0]), "VMF254", "another spacing", id="T74-spacing"),
    pytest.param(lambda h: h, np.diag([-1.25, 1.25, 8.0, 1.0]), "VMF255", "mirrored", id="T76-mirrored"),
    pytest.param(lambda h: h, np.diag([-1.25, -1.25, 8.0, 1.0]), "VMF254", "elsewhere", id="T76-turned"),
    pytest.param(lambda h: h, moved(0, 3, 200.0), "VMF254", "200 mm apart", id="T77-origin"),
    pytest.param(lambda h: h, moved(1, 3, 1.25), "VMF254", "elsewhere", id="T77-one-voxel"),
    pytest.param(lambda h: h, np.eye(4), "VMF254", "another spacing", id="T77-identity"),
    pytest.param(lambda h: h * 5, AFFINE, "VMF251", r"5 \(116 voxels\), 10 \(\d+ voxels\)", id="T70-outside"),
    pytest.param(lambda h: h.astype(np.int16) - 1, AFFINE, "VMF251", r"-1 \(", id="T70-negative"),
    pytest.param(lambda h: h * np.float32(0.4), AFFINE, "VMF250", r"0\.4", id="T71-fractions"),
]


@pytest.mark.parametrize(("change", "affine", "code", "cause"), PAIRS)
def test_bad_pair_is_refused_by_name_cause_and_cure(change, affine, code, cause, save_volume, scan, heart):
    image, label = save_volume("scan.nii.gz", scan()), save_volume("scan_gt.nii.gz", change(heart()), affine)
    with pytest.raises(VmfError) as caught:
        LoadVolumed(num_classes=4)({"image": str(image), "label": str(label)})
    error = caught.value
    assert error.code == code
    assert error.subject == str(label)
    assert re.search(cause, f"{error.rule}; {error.found}"), error.render()
    assert error.fix
    assert len(error.render().splitlines()) <= 5


@pytest.mark.parametrize("codes", [("L", "P", "S"), ("S", "R", "A"), ("A", "L", "I"), ("P", "S", "L")], ids="".join)
def test_label_in_another_orientation_is_brought_to_the_image(codes, save_volume, scan, heart):  # T75
    image = save_volume("a.nii.gz", scan())
    stored = nib.Nifti1Image(heart(), AFFINE)
    ornt = nib.orientations.ornt_transform(nib.io_orientation(AFFINE), nib.orientations.axcodes2ornt(codes))
    turned = stored.as_reoriented(ornt)
    label = save_volume("l.nii.gz", np.asarray(turned.dataobj), turned.affine)
    row = {"image": str(image), "label": str(label)}
    if np.linalg.det(turned.affine) < 0:
        with pytest.warns(DataWarning, match="VMF259 .*handedness"):
            out = LoadVolumed()(row)
    else:
        out = LoadVolumed()(row)
    np.testing.assert_array_equal(out["label"].numpy()[0], heart())
    np.testing.assert_allclose(out["label"].affine.numpy(), AFFINE, atol=1e-5)


@pytest.mark.parametrize(("shift", "warns"), [(1e-6, False), (0.5, True)], ids=["noise", "0.4-voxel"])
def test_tolerance_of_a_pair(shift, warns, save_volume, scan, heart, recwarn):
    row = {
        "image": str(save_volume("a.nii.gz", scan())),
        "label": str(save_volume("l.nii.gz", heart(), moved(0, 3, shift))),
    }
    LoadVolumed()(row)
    assert any("VMF254" in str(w.message) for w in recwarn) is warns


def test_empty_mask_is_allowed(save_volume, scan, heart):  # T72
    row = {
        "image": str(save_volume("a.nii.gz", scan())),
        "label": str(save_volume("l.nii.gz", np.zeros_like(heart()))),
    }
    assert int(LoadVolumed()(row)["label"].max()) == 0


def scaled_label(path, slope: float) -> None:
    data = bytearray(gzip.decompress(path.read_bytes()))
    struct.pack_into("<f", data, 112, slope)
    path.write_bytes(gzip.compress(bytes(data)))


def test_label_with_a_scale_factor(save_volume, scan, heart):  # T79
    image, label = save_volume("a.nii.gz", scan()), save_volume("l.nii.gz", heart() * 85)
    scaled_label(label, 1 / 85)
    with pytest.warns(DataWarning, match="VMF252 .*scl_slope"):
        out = LoadVolumed(num_classes=4)({"image": str(image), "label": str(label)})
    np.testing.assert_array_equal(out["label"].numpy()[0], heart())
    scaled_label(label, 1 / 300)
    with pytest.raises(VmfError, match=r"(?s)VMF250.*scl_slope 0.00333"):
        LoadVolumed()({"image": str(image), "label": str(label)})


def test_label_map_turns_values_into_classes(save_volume, scan, heart):
    image, label = save_volume("a.nii.gz", scan()), save_volume("l.nii.gz", heart() * 85)
    row = {"image": str(image), "label": str(label), "label_map": {85: 3, 170: 2, 255: 1}}
    out = LoadVolumed(num_classes=4)(row)["label"].numpy()[0]
    np.testing.assert_array_equal(out, np.array([0, 3, 2, 1])[heart()])
    with pytest.raises(VmfError, match=r"(?s)VMF251.*255 \("):
        LoadVolumed()({**row, "label_map": {85: 1, 170: 2}})


def test_majority_is_strict_and_white_matter_is_cord_without_grey():
    """Every combination of four raters against counting by hand."""
    votes = np.stack(np.meshgrid(*[[0, 1, 2]] * 4, indexing="ij")).reshape(4, -1).astype(np.float32)
    fused = fuse_majority(list(votes))
    for vote, value in zip(votes.T, fused, strict=True):
        grey, cord = sum(v == 1 for v in vote) >= 3, sum(v > 0 for v in vote) >= 3
        assert value == (1 if grey else 2 if cord else 0)


def test_staple_outvotes_a_bad_rater_and_survives_empty_and_equal_masks():
    truth = np.zeros((12, 12, 3), np.float32)
    truth[2:10, 2:10] = 2
    truth[4:8, 4:8] = 1
    noise = np.random.default_rng(0).integers(0, 3, truth.shape).astype(np.float32)
    np.testing.assert_array_equal(fuse_staple([truth, truth, truth, noise]), truth)
    np.testing.assert_array_equal(fuse_staple([truth] * 4), truth)
    assert fuse_staple([np.zeros_like(truth)] * 4).max() == 0
    with pytest.raises(ValueError, match="fusion must be one of majority, staple"):
        fuse_raters([truth], "mean")  # type: ignore[arg-type]


def test_raters_are_fused_on_loading_and_on_one_grid(save_volume, scan):
    rng = np.random.default_rng(3)
    masks = [rng.integers(0, 3, (20, 18, 4)).astype(np.uint8) for _ in range(4)]
    paths = [str(save_volume(f"r{i}.nii.gz", mask)) for i, mask in enumerate(masks)]
    expected = fuse_majority([mask.astype(np.float32) for mask in masks])
    image = str(save_volume("a.nii.gz", scan()))
    np.testing.assert_array_equal(LoadVolumed()({"image": image, "label": paths})["label"].numpy()[0], expected)
    staple = LoadVolumed(fusion="staple")({"image": image, "label": paths})
    assert tuple(staple["label"].shape) == (1, 20, 18, 4)
    paths[2] = str(save_volume("r2.nii.gz", masks[2], moved(2, 3, 16.0)))
    with pytest.raises(VmfError, match="VMF254") as caught:
        read_label(paths)
    assert caught.value.subject == paths[2]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_classes": 1}, "num_classes must be at least 2, got 1"),
        ({"fusion": "vote"}, "fusion must be one of majority, staple, got 'vote'"),
        ({"nan_to": float("nan")}, "nan_to must be finite"),
    ],
)
def test_wrong_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        LoadVolumed(**kwargs)
