# SPDX-License-Identifier: Apache-2.0
"""The whole chain, forth and back."""

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from vmfseg.transforms import slice_space_transforms
from vmfseg.utils import VmfError
from vmfseg.utils.errors import find_vmf_error


def scan(shape=(60, 50, 5), spacing=(1.5, 1.5, 9.0)):
    rng = np.random.default_rng(0)
    image = MetaTensor(torch.from_numpy(rng.random((1, *shape), dtype=np.float32)), affine=np.diag([*spacing, 1.0]))
    label = torch.zeros(1, *shape, dtype=torch.uint8)
    label[:, 20:40, 15:35] = 1
    label[:, 25:35, 20:30] = 3
    return {"image": image, "label": MetaTensor(label, affine=np.diag([*spacing, 1.0]))}


SIZES = [
    pytest.param(96, (96, 96), id="pad"),
    pytest.param(32, (32, 32), id="crop"),
    pytest.param((96, 32), (96, 32), id="pad-and-crop"),
    pytest.param(None, (75, 62), id="keep"),
]


@pytest.mark.parametrize(("roi", "size"), SIZES)
def test_shapes_types_and_range(roi, size):
    out = slice_space_transforms(1.2, roi)(scan())
    assert out["image"].shape == out["label"].shape == (1, *size, 5)
    assert (out["image"].dtype, out["label"].dtype) == (torch.float32, torch.uint8)
    assert 0 <= out["image"].min() <= out["image"].max() <= 1
    assert set(out["label"].unique().tolist()) <= {0, 1, 3}


@pytest.mark.parametrize(("roi", "size"), SIZES)
def test_the_inverse_restores_the_grid(roi, size):
    data = scan()
    chain = slice_space_transforms(1.2, roi)
    back = chain.inverse(chain(data))
    assert back["label"].shape == data["label"].shape
    assert torch.equal(back["label"].affine, data["label"].affine)
    inside = (slice(None), slice(26, 34), slice(21, 29))  # within every roi above
    assert torch.equal(back["label"][inside].as_tensor().to(torch.uint8), data["label"][inside].as_tensor())


def test_without_resampling_pad_and_crop_invert_exactly():
    data = scan()
    chain = slice_space_transforms(None, 96, normalize=None)
    out = chain(data)
    back = chain.inverse(out)
    assert torch.equal(back["image"].as_tensor(), data["image"].as_tensor())
    assert torch.equal(back["image"].affine, data["image"].affine)
    # zeros outside, the volume in the middle
    assert torch.equal(out["image"][:, 18:78, 23:73].as_tensor(), data["image"].as_tensor())
    assert out["image"].count_nonzero() == out["image"][:, 18:78, 23:73].count_nonzero()


def test_training_and_inference_see_the_same_image():
    data = scan()
    both = slice_space_transforms(1.2, 64)(data)
    alone = slice_space_transforms(1.2, 64, keys="image")({"image": data["image"]})
    assert torch.equal(both["image"], alone["image"])


def test_an_unlabeled_row_passes():
    assert set(slice_space_transforms(1.2, 64)({"image": scan()["image"]})) == {"image"}


def test_label_map_is_applied_once_and_before_the_check():
    data = scan()
    out = slice_space_transforms(None, None, label_map={1: 3, 3: 1}, num_classes=4)(data)
    assert torch.equal(out["label"] == 1, data["label"] == 3)
    assert torch.equal(out["label"] == 3, data["label"] == 1)
    with pytest.raises(RuntimeError) as caught:
        slice_space_transforms(None, None, label_map={1: 2}, num_classes=3)(data)
    error = find_vmf_error(caught.value)
    assert isinstance(error, VmfError)
    assert (error.code, error.found) == ("VMF153", "3 (500 voxels)")


def test_a_single_slice_passes():
    out = slice_space_transforms(1.2, 64)(scan(shape=(60, 50, 1), spacing=(1.5, 1.5, 1.0)))
    assert out["image"].shape == (1, 64, 64, 1)
    assert torch.isfinite(out["image"]).all()


def test_per_volume_normalization_is_an_option():
    data = scan()
    data["image"][..., 0] *= 10
    per_slice = slice_space_transforms(None, None)(data)["image"]
    per_volume = slice_space_transforms(None, None, normalize="volume")(data)["image"]
    assert per_slice[..., 1].max() == 1
    assert per_volume[..., 1].max() < 0.2
