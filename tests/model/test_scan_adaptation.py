# SPDX-License-Identifier: Apache-2.0
"""Adaptation to one volume: statistics by hand, a scan with another contrast, and a network that stays as it is."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from inference_bundle import smooth_slices, tiny_network
from monai.networks.nets import UNet

from vmfseg.model.backends import TorchBackend
from vmfseg.model.predictor import Predictor
from vmfseg.model.scan_adaptation import SHARES, adapt_to, interpolated_batch_norm, trained_by_reconstruction


@pytest.fixture(scope="module")
def slices():
    return smooth_slices(5, 32, torch.Generator().manual_seed(3))


def test_no_share_of_the_scan_is_the_network_and_a_whole_one_is_batch_statistics(network, slices):
    network, slices = copy.deepcopy(network).double(), slices.double()  # a flat channel blows up rounding errors
    with torch.no_grad():
        torch.testing.assert_close(interpolated_batch_norm(network, slices, 0.0)(slices), network(slices))
        by_batch = copy.deepcopy(network)
        for module in by_batch.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.train()
        whole = interpolated_batch_norm(network, slices, 1.0)(slices)
        torch.testing.assert_close(whole, by_batch(slices), atol=1e-9, rtol=1e-9)


def test_the_first_layer_has_the_blend_of_both_statistics(network, slices):
    twin = interpolated_batch_norm(network, slices, 0.4)
    old, new = network.encoder.downs[0][1], twin.encoder.downs[0][1]
    with torch.no_grad():
        seen = network.encoder.downs[0][0](slices).double().numpy()
    mean, variance = seen.mean(axis=(0, 2, 3)), seen.var(axis=(0, 2, 3))
    np.testing.assert_allclose(new.running_mean, 0.6 * old.running_mean.numpy() + 0.4 * mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(new.running_var, 0.6 * old.running_var.numpy() + 0.4 * variance, rtol=1e-4, atol=1e-5)


def test_probabilities_are_averaged_by_the_likelihood_of_the_volume(network, slices):
    adapted = adapt_to(slices, network, "bn")
    members = [TorchBackend(interpolated_batch_norm(network, slices, share)) for share in SHARES]
    found = [member(slices) for member in members]
    scores = torch.stack([one.log_likelihood.mean() for one in found])
    weights = (scores - scores.max()).exp()
    weights = weights / weights.sum()
    expected = sum(w * one.logits.sigmoid() for w, one in zip(weights, found, strict=True))
    torch.testing.assert_close(adapted(slices).logits.sigmoid(), expected, atol=1e-4, rtol=1e-3)
    assert float(adapted(slices).activations.sum(dim=1).sub(1).abs().max()) < 1e-4


def test_a_network_without_kernels_is_weighed_by_its_entropy(slices):
    net = UNet(spatial_dims=2, in_channels=1, out_channels=3, channels=(4, 8), strides=(2,), norm="batch").eval()
    adapted = adapt_to(slices, net, "bn")
    assert adapted(slices).logits.shape == (5, 3, 32, 32)
    assert adapted(slices).activations is None
    assert float(adapted.weights.sum()) == pytest.approx(1.0)
    plain = UNet(spatial_dims=2, in_channels=1, out_channels=3, channels=(4, 8), strides=(2,)).eval()
    with pytest.raises(ValueError, match="without batch norm"):
        adapt_to(slices, plain, "bn")
    with pytest.raises(ValueError, match="without kernels and image decoder"):
        adapt_to(slices, net, "reconstruction")


def test_training_by_reconstruction_raises_the_likelihood_and_touches_neither_kernels_nor_head(slices):
    network = tiny_network(seed=2)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    dark = 0.3 * slices  # a scan of another contrast
    twin = trained_by_reconstruction(network, dark, learning_rate=1e-2)
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in before.items())
    changed = {name for name, value in twin.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith(("encoder", "composer")) for name in changed)
    assert not any("running" in name for name in changed)

    def fit(net):
        with torch.no_grad():
            return float(net.kernels.cosine(net.encoder(dark)).amax(dim=1).mean())

    assert fit(twin) > fit(network)


def test_a_step_that_lowers_the_likelihood_is_taken_back_and_is_the_last(slices):
    network = tiny_network(seed=0)
    one, many = (trained_by_reconstruction(network, slices, steps, learning_rate=1.0) for steps in (1, 15))
    assert all(torch.equal(value, one.state_dict()[name]) for name, value in many.state_dict().items())
    slow = trained_by_reconstruction(network, slices, 2, learning_rate=0.01)  # where the second one helps
    first = trained_by_reconstruction(network, slices, 1, learning_rate=0.01)
    assert any(not torch.equal(value, first.state_dict()[name]) for name, value in slow.state_dict().items())


def test_the_predictor_adapts_a_copy_and_says_so(bundle, save_scan):
    predictor, path = Predictor.from_bundle(bundle, device="cpu"), save_scan()
    plain = predictor.predict(path)
    assert "adapt" not in plain.quality
    for how in ("bn", "reconstruction"):
        adapted = predictor.predict(path, adapt=how)
        assert adapted.quality["adapt"] == how
        assert adapted.labels.shape == plain.labels.shape
        assert np.array_equal(predictor.predict(path, adapt=how).labels, adapted.labels)
    assert (predictor.predict(path, adapt="bn").labels != plain.labels).any()
    assert np.array_equal(predictor.predict(path).labels, plain.labels)
    with pytest.raises(ValueError, match="adapt must be"):
        predictor.predict(path, adapt="batchnorm")
