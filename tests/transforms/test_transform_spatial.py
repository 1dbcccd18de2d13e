# SPDX-License-Identifier: Apache-2.0
"""Slice space is the same whatever the file's axes, and every step can be undone."""

import itertools

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import Invertd, Spacing

from vmfseg.transforms import InPlaneSpacingd, ToSliceStackd
from vmfseg.transforms.spatial import InPlaneSpacing, ToSliceStack, slice_stack_axcodes

ORIENTATIONS = [
    (order, signs) for order in itertools.permutations(range(3)) for signs in itertools.product((1, -1), repeat=3)
]


def rotation(degrees, axis):
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    i, j = [k for k in range(3) if k != axis]
    matrix = np.eye(3)
    matrix[i, i], matrix[i, j], matrix[j, i], matrix[j, j] = c, -s, s, c
    return matrix


def store(array, affine, order, signs):
    """Write one volume in another axis order, by index arithmetic: voxel (i, j, k) keeps its place in mm."""
    moved = np.transpose(array, order)
    permute = np.zeros((4, 4))
    permute[3, 3] = 1
    for new, old in enumerate(order):
        permute[old, new] = 1
    affine = affine @ permute
    for axis, sign in enumerate(signs):
        if sign < 0:
            flip = np.eye(4)
            flip[axis, axis], flip[axis, 3] = -1, moved.shape[axis] - 1
            moved, affine = np.flip(moved, axis), affine @ flip
    return MetaTensor(torch.from_numpy(np.ascontiguousarray(moved))[None], affine=affine)


GRIDS = [
    pytest.param((1.25, 1.3, 9.0), np.eye(3), id="axial"),
    pytest.param((9.0, 1.25, 1.3), np.eye(3), id="sagittal"),
    pytest.param((1.0, 1.1, 1.2), np.eye(3), id="isotropic"),
    pytest.param((1.25, 1.25, 9.6), rotation(33, 0) @ rotation(-21, 2) @ rotation(12, 1), id="oblique"),
]


@pytest.mark.parametrize(("spacing", "directions"), GRIDS)
def test_all_48_orientations_give_the_identical_stack(spacing, directions):
    array = np.random.default_rng(0).random((7, 6, 5)).astype(np.float32)
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = directions * np.array(spacing), (-30.0, 12.0, 7.0)
    stacks = [ToSliceStack()(store(array, affine, *how)) for how in ORIENTATIONS]
    assert len(stacks) == 48
    for stack in stacks[1:]:
        assert torch.equal(stack.as_tensor(), stacks[0].as_tensor())
        torch.testing.assert_close(stack.affine, stacks[0].affine, atol=1e-9, rtol=0)


@pytest.mark.parametrize("how", ORIENTATIONS[::7], ids=str)
def test_the_inverse_restores_array_and_affine_exactly(how):
    array = np.random.default_rng(0).random((7, 6, 5)).astype(np.float32)
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = rotation(17, 0) * np.array([1.3, 1.1, 8.0]), (3.3, -9.1, 0.7)
    volume = store(array, affine, *how)
    transform = ToSliceStackd(["image", "label"])
    out = transform({"image": volume.clone(), "label": volume.clone()})
    back = transform.inverse(out)
    for key in ("image", "label"):
        assert torch.equal(back[key].as_tensor(), volume.as_tensor())
        assert torch.equal(back[key].affine, volume.affine)
        assert not back[key].applied_operations


AXCODES = [  # spacing, shape, expected
    pytest.param((1.25, 1.25, 9.0), None, "RAS", id="thick-axial"),
    pytest.param((1.25, 9.0, 1.25), None, "RSA", id="thick-coronal"),
    pytest.param((9.0, 1.25, 1.25), None, "ASR", id="thick-sagittal"),
    pytest.param((1.0, 1.49, 1.0), None, "RAS", id="below-the-ratio-falls-to-head-foot"),
    pytest.param((1.0, 1.5, 1.0), None, "RSA", id="at-the-ratio"),
    pytest.param((1.0, 1.0, 1.0), (64, 1, 64), "RSA", id="single-slice"),
    pytest.param((1.0, 1.0, 5.0), (1, 1, 64), "RAS", id="two-single-axes-decide-nothing"),
]


@pytest.mark.parametrize(("spacing", "shape", "expected"), AXCODES)
def test_axcodes(spacing, shape, expected):
    assert slice_stack_axcodes(np.diag([*spacing, 1.0]), shape) == expected


def test_lps_worlds_are_understood():
    affine = np.diag([-1.25, -1.25, 9.0, 1.0])  # the same voxels as diag(1.25, 1.25, 9) in RAS
    array = torch.arange(24.0).reshape(1, 2, 3, 4)
    ras = ToSliceStack()(MetaTensor(array, affine=np.diag([1.25, 1.25, 9.0, 1.0])))
    lps = ToSliceStack()(MetaTensor(array, affine=affine, meta={"space": "LPS"}))
    assert torch.equal(ras.as_tensor(), lps.as_tensor())


def test_a_label_follows_its_image_across_the_ratio():
    """1e-3 mm of header noise must not send image and label into different stacks."""
    image = MetaTensor(torch.zeros(1, 4, 5, 6), affine=np.diag([1.0, 1.501, 1.0, 1.0]))
    label = MetaTensor(torch.zeros(1, 4, 5, 6), affine=np.diag([1.0, 1.496, 1.0, 1.0]))
    out = ToSliceStackd(["image", "label"])({"image": image, "label": label})
    assert out["image"].shape == out["label"].shape == (1, 4, 6, 5)


@pytest.mark.parametrize("bad", [torch.zeros(1, 4, 4, 4), MetaTensor(torch.zeros(1, 4, 4, 4, 3))], ids=["plain", "4d"])
@pytest.mark.parametrize("transform", [ToSliceStack(), InPlaneSpacing(1.0)], ids=["stack", "spacing"])
def test_what_is_no_volume_is_refused(transform, bad):
    with pytest.raises(ValueError, match=r"img must be a MetaTensor of shape \(C, X, Y, Z\), got"):
        transform(bad)


SPACINGS = [
    pytest.param((1.4, 1.4, 9.0), 1.2, id="finer"),
    pytest.param((0.7, 0.8, 5.0), (1.2, 1.3), id="coarser-anisotropic"),
    pytest.param((1.2, 1.2, 9.0), 1.2, id="same"),
]


@pytest.mark.parametrize(("spacing", "pixdim"), SPACINGS)
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_in_plane_resampling_equals_monai_in_3d(spacing, pixdim, mode):
    contrast = torch.tensor([1.0, 1e4, 1.0, 0.0, 1e3])  # would leak between slices
    volume = MetaTensor(torch.rand(1, 41, 37, 5) * contrast, affine=np.diag([*spacing, 1.0]))
    two = (pixdim, pixdim) if isinstance(pixdim, float) else pixdim
    expected = Spacing((*two, -1), mode=mode)(volume)
    got = InPlaneSpacing(pixdim, mode=mode)(volume)
    torch.testing.assert_close(got.as_tensor(), expected.as_tensor(), atol=1e-3, rtol=1e-6)
    torch.testing.assert_close(got.affine, expected.affine)


def test_slices_do_not_mix():
    volume = MetaTensor(torch.rand(1, 30, 30, 3), affine=np.diag([1.5, 1.5, 8.0, 1.0]))
    other = volume.clone()
    other[..., 1] = 1e6
    for k in (0, 2):
        assert torch.equal(InPlaneSpacing(1.2)(volume)[..., k], InPlaneSpacing(1.2)(other)[..., k])


def test_resampling_keeps_every_point_where_it_was():
    """A linear ramp in mm is the same ramp after resampling, at the new voxels' places: by the affine, by hand."""
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = rotation(25, 2) * np.array([1.5, 1.4, 8.0]), (10.0, -5.0, 3.0)

    def ramp(shape, affine):
        index = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1)
        mm = nib.affines.apply_affine(np.asarray(affine), index)
        return (mm @ np.array([0.3, -0.2, 0.05])).astype(np.float32)

    volume = MetaTensor(torch.from_numpy(ramp((40, 36, 4), affine))[None], affine=affine)
    out = InPlaneSpacing(1.1)(volume)
    expected = ramp(out.shape[1:], out.affine)
    inner = (slice(2, -2), slice(2, -2))
    np.testing.assert_allclose(out[0].numpy()[inner], expected[inner], atol=1e-3)


def test_inverse_spacing_restores_the_grid_exactly_and_labels_mostly():
    affine = np.diag([1.7, 1.6, 9.0, 1.0])
    label = torch.zeros(1, 48, 40, 3, dtype=torch.uint8)
    label[:, 10:30, 12:28] = 1
    label[:, 15:25, 16:24] = 2
    volume = MetaTensor(label, affine=affine)
    transform = InPlaneSpacingd(["image", "label"], pixdim=1.1, mode=["bilinear", "nearest"])
    out = transform({"image": volume.float(), "label": volume})
    assert out["image"].shape == out["label"].shape
    back = transform.inverse(out)["label"]
    assert back.shape == volume.shape
    assert torch.equal(back.affine, volume.affine)
    assert (back != volume).float().mean() < 0.01


def test_invertd_maps_a_prediction_back_with_nearest():
    affine = np.diag([1.7, 1.6, 9.0, 1.0])
    image = MetaTensor(torch.rand(1, 48, 40, 3), affine=affine)
    transform = InPlaneSpacingd("image", pixdim=1.1)
    out = transform({"image": image})
    out["pred"] = MetaTensor((out["image"].as_tensor() > 0.5).float())
    out = Invertd("pred", transform, orig_keys="image", nearest_interp=True)(out)
    assert out["pred"].shape == image.shape
    assert set(out["pred"].unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("pixdim", [0.0, -1.0, float("nan")])
def test_bad_pixdim_is_named(pixdim):
    with pytest.raises(ValueError, match="pixdim must be positive, got"):
        InPlaneSpacing(pixdim)
