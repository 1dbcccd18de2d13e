# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy

import pytest
import torch
from inference_bundle import SIZE, smooth_slices, tiny_network
from monai.networks.nets import UNet

from vmfseg.model.backends import TorchBackend
from vmfseg.model.deploy import ExplainedNetwork, deploy, even_size, run_batch
from vmfseg.networks import VMFNet


@pytest.fixture(scope="module")
def slices() -> torch.Tensor:
    return smooth_slices(7, SIZE, torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "kwargs",
    [
        pytest.param({}, id="vmfnet"),
        pytest.param({"reconstruct": False, "presence": "masks", "presence_channels": 2}, id="vmfweak"),
        pytest.param({"last_activation": "none", "threshold": 0.0}, id="reference-gate"),
        pytest.param({"level": 0}, id="full-resolution"),
    ],
)
def test_deployed_logits_are_those_of_the_network(kwargs, slices):
    size = 64 if kwargs.get("presence") else SIZE
    network = tiny_network(**kwargs)
    images = smooth_slices(3, size, torch.Generator().manual_seed(2))
    ready = deploy(network)
    with torch.no_grad():
        torch.testing.assert_close(ready(images), network(images), rtol=1e-4, atol=1e-4)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in ready.modules())
    assert ready.composer is None
    assert ready.presence_head is None
    assert not any(parameter.requires_grad for parameter in ready.parameters())


def test_the_network_itself_is_left_alone(network):
    before = copy.deepcopy(network.state_dict())
    deploy(network)
    assert network.composer is not None
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


def test_networks_whose_kernels_are_assigned_deploy_too(slices):
    network = VMFNet(channels=(8, 16, 16), num_kernels=6, head="assignment", seed=0).eval()
    network.head.assign([0, 1, 2, 3, 0, 1])
    with torch.no_grad():
        torch.testing.assert_close(deploy(network)(slices), network(slices), rtol=1e-4, atol=1e-4)


def test_explained_network_gives_the_layers_own_values(network, slices):
    ready = deploy(network)
    with torch.no_grad():
        out = ExplainedNetwork(ready)(slices)
        parts = ready(slices, return_parts=True)
        assert torch.equal(out.logits, parts.logits)
        assert torch.equal(out.activations, parts.activations)
        torch.testing.assert_close(out.log_likelihood, network.kernels.log_likelihood(parts.features))


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 8])
def test_result_does_not_depend_on_the_batch_size_bit_for_bit(network, slices, batch_size):
    backend = TorchBackend(network)
    whole = backend(slices).logits
    parts = torch.cat([backend(part).logits for part in slices.split(even_size(len(slices), batch_size))])
    assert torch.equal(parts, whole)


def test_a_single_slice_gives_parts_of_one_slice(network, slices):
    single = run_batch(deploy(network), slices[:1], True)
    assert single.logits.shape[0] == 1
    assert single.activations.shape == (1, 6, SIZE // 2, SIZE // 2)
    assert single.kernels.shape == (6, 8)
    assert single.reconstruction is None


def test_a_network_without_kernels_gives_logits_alone(slices):
    plain = UNet(2, 1, 3, channels=(4, 8), strides=(2,), norm="batch").eval()
    out = TorchBackend(plain)(slices)
    assert out.activations is None
    assert out.log_likelihood is None
    with torch.no_grad():
        torch.testing.assert_close(out.logits, plain(slices), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("count", "size", "even"), [(9, 8, 5), (8, 8, 8), (1, 8, 1), (7, 3, 3), (12, 5, 4)])
def test_slices_are_spread_evenly(count, size, even):
    assert even_size(count, size) == even
