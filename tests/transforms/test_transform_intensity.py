# SPDX-License-Identifier: Apache-2.0
"""Percentile normalization against NumPy by hand."""

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from vmfseg.transforms import PercentileNormalized
from vmfseg.transforms.intensity import PercentileNormalize
from vmfseg.utils import VmfError


def by_hand(values, lower, upper):
    low, high = np.percentile(values, [lower, upper])
    clipped = np.clip(values, low, high)
    shifted = clipped - clipped.min()
    return shifted / shifted.max() if shifted.max() > 0 else np.zeros_like(shifted)


def test_per_slice_equals_the_reference_recipe():
    volume = np.random.default_rng(0).gamma(2.0, 50.0, (1, 31, 29, 4)).astype(np.float32)
    out = PercentileNormalize()(torch.from_numpy(volume))
    for k in range(4):
        np.testing.assert_allclose(out[0, ..., k].numpy(), by_hand(volume[0, ..., k], 0.5, 99.5), atol=1e-5)


def test_per_volume_keeps_the_contrast_between_slices():
    volume = np.random.default_rng(0).gamma(2.0, 50.0, (1, 31, 29, 4)).astype(np.float32)
    volume[..., 2] *= 3
    out = PercentileNormalize(per="volume")(torch.from_numpy(volume))
    np.testing.assert_allclose(out.numpy(), by_hand(volume, 0.5, 99.5), atol=1e-5)


CONSTANTS = [0.0, 7.0, -3.5, 1e12, 1e-30]


@pytest.mark.parametrize("value", CONSTANTS)
@pytest.mark.parametrize("per", ["slice", "volume"])
def test_constant_input_becomes_zeros(value, per):
    out = PercentileNormalize(per=per)(torch.full((1, 8, 8, 2), value))
    assert out.dtype == torch.float32
    assert torch.equal(out, torch.zeros(1, 8, 8, 2))


def test_a_constant_slice_leaves_its_neighbors_alone():
    volume = torch.rand(1, 16, 16, 3)
    volume[..., 1] = 5.0
    out = PercentileNormalize()(volume)
    assert torch.isfinite(out).all()
    assert not out[..., 1].any()
    for k in (0, 2):
        assert out[..., k].min() == 0
        assert out[..., k].max() == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused_with_the_file(bad):
    volume = MetaTensor(torch.ones(1, 4, 4, 2), meta={"filename_or_obj": "scan.nii.gz"})
    volume[0, 1, 1, 1] = bad
    with pytest.raises(VmfError, match=r"VMF152[\s\S]*scan\.nii\.gz[\s\S]*1 NaN or infinite values of 32"):
        PercentileNormalize()(volume)


def test_scale_and_offset_of_a_scanner_do_not_matter():
    volume = torch.rand(1, 32, 32, 3)
    torch.testing.assert_close(
        PercentileNormalize()(volume), PercentileNormalize()(1000 * volume - 250), atol=1e-4, rtol=0
    )


def test_metadata_and_missing_keys_survive():
    image = MetaTensor(torch.rand(1, 8, 8, 2), affine=np.diag([2.0, 2, 9, 1]), meta={"filename_or_obj": "a"})
    out = PercentileNormalized(["image", "other"], allow_missing_keys=True)({"image": image})["image"]
    assert out.meta["filename_or_obj"] == "a"
    assert torch.equal(out.affine, image.affine)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        pytest.param({"lower": 60, "upper": 40}, "lower and upper must satisfy", id="swapped"),
        pytest.param({"upper": 101}, "lower and upper must satisfy", id="above-100"),
        pytest.param(
            {"per": "slices"}, "per must be one of slice, volume, got 'slices'. Did you mean 'slice'", id="per"
        ),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        PercentileNormalize(**kwargs)
