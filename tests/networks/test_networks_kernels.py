# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from scipy.stats import vonmises_fisher

from vmfseg.networks import VMFKernels, VMFMixture


def test_only_directions_of_features_matter():
    layer, features = VMFKernels(5, 3), torch.randn(2, 5, 4, 4)
    with torch.no_grad():
        expected = layer(features)
        for scale in (1e-12, 1e-3, 1e3, 1e18, 1e30):
            torch.testing.assert_close(layer(features * scale), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("threshold", [None, 0.0])
def test_a_zero_feature_is_shared_by_all_kernels_and_has_a_bounded_gradient(threshold):
    layer = VMFKernels(5, 4, threshold=threshold)
    features = torch.zeros(1, 5, 2, 2, requires_grad=True)
    weights = layer(features)
    expected = 0.25 if threshold is None else 0.0
    assert weights.unique().tolist() == [expected]
    weights[:, 0].sum().backward()
    assert features.grad.abs().max() <= 30
    assert torch.isfinite(layer.weight.grad).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("kappa", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("threshold", [None, 0.0])
def test_extreme_features_never_give_nan(dtype, kappa, threshold):
    limits = torch.finfo(dtype)
    values = [0.0, limits.tiny, limits.smallest_normal, limits.eps, 1.0, limits.max, -limits.max]
    values = torch.tensor(values, dtype=dtype)
    features = torch.cartesian_prod(values, values, values).t().reshape(1, 3, -1, 1).requires_grad_()
    layer = VMFKernels(3, 4, kappa=kappa, threshold=threshold)
    weights = layer(features)
    assert weights.dtype == dtype
    assert torch.isfinite(weights).all()
    assert weights.min() >= 0
    total = weights.detach().double().sum(dim=1)
    assert ((total - 1).abs() < 3e-3).logical_or(total == 0).all()
    weights[:, 0].sum().backward()
    assert torch.isfinite(layer.weight.grad).all()


def test_log_likelihood_is_scipys_mixture_of_equal_weights():
    layer, features = VMFKernels(4, 3, kappa=7.0), torch.randn(2, 4, 3, 5)
    z = features.movedim(1, -1).reshape(-1, 4).double().numpy()
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    kernels = layer.weight.detach().double().numpy()
    kernels /= np.linalg.norm(kernels, axis=1, keepdims=True)
    expected = np.log(np.mean([vonmises_fisher(mu, 7.0).pdf(z) for mu in kernels], axis=0)).reshape(2, 1, 3, 5)
    with torch.no_grad():
        np.testing.assert_allclose(layer.log_likelihood(features), expected, atol=1e-4)
        with torch.autocast("cpu", dtype=torch.float16):
            np.testing.assert_allclose(layer.log_likelihood(features), expected, atol=1e-4)


def test_setting_kernels_keeps_their_directions():
    layer = VMFKernels(3, 2)
    layer.set_kernels(torch.tensor([[0.0, 5.0, 0.0], [3.0, 0.0, 4.0]], dtype=torch.float64))
    torch.testing.assert_close(layer.unit_kernels(), torch.tensor([[0.0, 1.0, 0.0], [0.6, 0.0, 0.8]]))
    assert layer.weight.dtype == torch.float32
    assert "J=2" in repr(layer)
    assert "kappa=30" in repr(layer)


def test_larger_kappa_is_sharper():
    features = torch.randn(1, 6, 8, 8)
    layers = [VMFKernels(6, 4, kappa=kappa) for kappa in (1.0, 30.0)]
    layers[1].set_kernels(layers[0].weight.detach())
    soft, sharp = (layer(features).amax(dim=1).mean() for layer in layers)
    assert sharp > soft


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"kappa": 0.0}, r"kappa must be positive, got 0\.0\. Larger values give sharper"),
        ({"kappa": -1.0}, r"kappa must be positive, got -1\.0"),
        ({"kappa": float("nan")}, r"kappa must be positive, got nan"),
        ({"kappa": float("inf")}, r"kappa must be positive, got inf"),
        ({"feature_channels": 1}, r"feature_channels must be at least 2, num_kernels at least 1, got 1, 12"),
        ({"num_kernels": 0}, r"feature_channels must be at least 2, num_kernels at least 1, got 64, 0"),
        ({"threshold": 1.0}, r"threshold must be a cosine in \[-1, 1\) or None, got 1\.0\. The reference uses 0\.0"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        VMFKernels(**kwargs)


def filled(value):
    features = torch.randn(2, 4, 3, 3)
    features[1, 2, 0, 0] = value
    return features


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.zeros(2, 5, 3, 3), r"features must have shape \(B, 4, H, W\), got \(2, 5, 3, 3\)\. Check"),
        (torch.zeros(2, 5, 3, 3, 3), r"features must have shape \(B, 4, H, W, D\), got \(2, 5, 3, 3, 3\)"),
        (torch.zeros(2, 4, 3), r"features must have shape \(B, 4, H, W\), got \(2, 4, 3\)"),
        (filled(float("nan")), r"features must be finite, got 1 NaN or infinite value of 72\. Check the images"),
        (filled(float("inf")), r"features must be finite, got 1 NaN or infinite value of 72"),
        (filled(float("-inf")).half(), r"features must be finite, got 1 NaN or infinite value of 72"),
    ],
    ids=["channels-2d", "channels-3d", "one-axis", "nan", "inf", "float16-inf"],
)
def test_bad_features_are_refused(features, message):
    with pytest.raises(ValueError, match=message):
        VMFKernels(4, 3)(features)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_kernel_without_direction_is_refused_and_named(value):
    layer = VMFKernels(4, 3)
    with torch.no_grad():
        layer.weight[1] = value
    with pytest.raises(ValueError, match=r"kernels must have a finite norm above zero, got \S+ for kernel 1\. Re-init"):
        layer(torch.randn(1, 4, 3, 3))


@pytest.mark.parametrize(
    ("means", "message"),
    [
        (torch.ones(2, 4), r"means must have shape \(3, 4\) \(J, F\), got \(2, 4\)\. Fit the mixture with the same"),
        (torch.full((3, 4), float("nan")), r"means must be finite, got 12 NaN or infinite values of 12\. Fit"),
        (torch.zeros(3, 4), r"means must be directions, got a vector of norm zero\. Fit the mixture again"),
    ],
    ids=["shape", "nan", "zero"],
)
def test_bad_means_are_refused_and_nothing_changes(means, message):
    layer = VMFKernels(4, 3)
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match=message):
        layer.set_kernels(means)
    assert torch.equal(layer.weight, before)


def test_kernels_of_a_mixture_that_was_not_fitted_are_refused():
    with pytest.raises(ValueError, match=r"mixture must be fitted, got one that is not\. Call"):
        VMFKernels.from_mixture(VMFMixture(3))
