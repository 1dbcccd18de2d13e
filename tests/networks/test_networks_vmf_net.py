# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn

from vmfseg.networks import VMFEncoder, VMFNet, VMFParts
from vmfseg.networks.parts import FeatureEncoder


def small(**kwargs):
    return VMFNet(**{"channels": (4, 6, 8), "num_kernels": 3, "hidden_channels": 4, **kwargs})


def test_one_tensor_by_default_and_the_same_logits_among_the_parts():
    net, image = small().eval(), torch.rand(2, 1, 16, 16)
    logits = net(image)
    parts = net(image, return_parts=True)
    assert isinstance(parts, VMFParts)
    assert torch.equal(parts.logits, logits)
    assert parts.presence is None
    torch.testing.assert_close(parts.kernels.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(parts.features, net.encoder(image))
    torch.testing.assert_close(parts.activations, net.kernels(parts.features))
    torch.testing.assert_close(parts.reconstruction, net.composer(parts.activations, parts.kernels))


def test_parts_unpack_as_a_tuple_and_optional_ones_default_to_none():
    parts = VMFParts(*(torch.zeros(1) for _ in range(4)))
    assert parts._fields == ("logits", "features", "activations", "kernels", "reconstruction", "presence")
    assert parts.reconstruction is None
    assert parts.presence is None


def test_parts_that_were_not_built_are_none_and_cost_no_parameters():
    net = small(reconstruct=False)
    assert net(torch.rand(2, 1, 16, 16), return_parts=True).reconstruction is None
    assert not [name for name, _ in net.named_parameters() if name.startswith(("composer", "presence"))]


def test_presence_on_masks_sees_the_foreground_masks_only():
    net = small(presence="masks", presence_channels=1).eval()
    parts = net(torch.rand(2, 1, 64, 64), return_parts=True)
    assert parts.presence.shape == (2, 3)
    torch.testing.assert_close(parts.presence, net.presence_head(parts.logits[:, 1:].sigmoid()))


def test_presence_on_activations_has_one_output():
    net = small(presence="activations", presence_channels=1).eval()
    parts = net(torch.rand(2, 1, 64, 64), return_parts=True)
    assert parts.presence.shape == (2, 1)
    torch.testing.assert_close(parts.presence, net.presence_head(parts.activations))


def test_the_gradient_of_the_weak_loss_reaches_encoder_kernels_head_and_classifier():
    net = small(presence="masks", presence_channels=1)
    net(torch.rand(2, 1, 64, 64), return_parts=True).presence.sum().backward()
    reached = {name.split(".")[0] for name, p in net.named_parameters() if p.grad is not None}
    assert reached == {"encoder", "kernels", "head", "presence_head"}


def test_the_gradient_of_the_reconstruction_reaches_the_kernels_and_the_encoder():
    net = small()
    net(torch.rand(2, 1, 16, 16), return_parts=True).reconstruction.square().sum().backward()
    assert net.kernels.weight.grad.abs().max() > 0
    assert net.encoder.downs[0][0].weight.grad.abs().max() > 0


def test_two_networks_of_one_seed_are_equal():
    torch.manual_seed(0)
    a = small()
    torch.manual_seed(0)
    b = small()
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_a_seed_decides_the_weights_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    nets = [small(seed=seed, presence="masks", presence_channels=1) for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    nets.append(small(seed=3, presence="masks", presence_channels=1))
    states = [net.state_dict() for net in nets]
    for name, value in states[0].items():
        assert torch.equal(states[1][name], value)
        assert torch.equal(states[3][name], value)
    assert not torch.equal(states[0]["kernels.weight"], states[2]["kernels.weight"])


class Protocolless(nn.Module):
    feature_channels = 5


def test_the_encoder_is_a_protocol_not_a_base_class():
    encoder = nn.Sequential(nn.Conv2d(1, 5, kernel_size=4, stride=4), nn.ReLU())
    encoder.feature_channels, encoder.stride = 5, 4
    assert isinstance(encoder, FeatureEncoder)
    assert isinstance(VMFEncoder(channels=(4, 6)), FeatureEncoder)
    net = small(encoder=encoder)
    parts = net(torch.rand(2, 1, 16, 16), return_parts=True)
    assert parts.features.shape == (2, 5, 4, 4)
    assert parts.logits.shape[2:] == parts.reconstruction.shape[2:] == (16, 16)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"out_channels": 1}, r"out_channels must be at least 2 \(background and one class\), got 1\. Count"),
        ({"head": "segmentaton"}, r"head must be one of segmentation, assignment, got 'segmentaton'\. Did you mean"),
        (
            {"presence": "mask"},
            r"presence must be one of none, activations, masks, kernels, got 'mask'\. Did you mean 'masks'",
        ),
        ({"kappa": 0.0}, r"kappa must be positive, got 0\.0"),
        ({"num_kernels": 0}, r"num_kernels at least 1, got 4, 0"),
        ({"encoder": Protocolless()}, r"encoder must have integer attributes .* got Protocolless without\. Wrap it"),
        ({"encoder": nn.Identity()}, r"encoder must have integer attributes .* got Identity without\. Wrap it"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        small(**kwargs)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 2, 16, 16), r"image must have shape \(B, 1, H, W\), got \(1, 2, 16, 16\)"),
        ((1, 1, 15, 16), r"image size \(15, 16\) must be divisible by 4 .* pad to \(16, 16\)"),
    ],
)
def test_bad_images_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        small()(torch.zeros(shape))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_images_do_not_travel_on(value):
    image = torch.rand(1, 1, 16, 16)
    image[0, 0, 3, 3] = value
    with pytest.raises(ValueError, match=r"features must be finite, got \d+ NaN or infinite values of 256\. Check"):
        small()(image)
