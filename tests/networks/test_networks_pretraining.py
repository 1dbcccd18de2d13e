# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from vmfseg.networks import ReconstructionUNet, VMFEncoder
from vmfseg.networks.pretraining import load_encoder


def encoder(**kwargs):
    return VMFEncoder(**{"channels": (4, 6, 8), **kwargs})


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_unet_returns_an_image_of_the_same_shape(level, channels):
    unet = ReconstructionUNet(encoder(level=level, in_channels=channels))
    image = torch.rand(2, channels, 16, 24)
    assert unet(image).shape == image.shape


def test_the_encoder_is_used_not_copied():
    shared = encoder()
    assert ReconstructionUNet(shared).encoder is shared


@pytest.mark.parametrize(
    "source",
    [lambda u: u, lambda u: u.state_dict(), lambda u: u.encoder.state_dict()],
    ids=["unet", "state", "encoder"],
)
def test_transfer_copies_every_value_by_name(source):
    unet, target = ReconstructionUNet(encoder()), encoder()
    unet(torch.rand(2, 1, 16, 16))  # moves the running statistics
    load_encoder(target, source(unet))
    for name, value in unet.encoder.state_dict().items():
        assert torch.equal(target.state_dict()[name], value), name
    target.downs[0][0].bias.data += 1
    assert not torch.equal(target.downs[0][0].bias, unet.encoder.downs[0][0].bias)


def shuffled(state):
    return dict(reversed(list(state.items())))


def test_transfer_does_not_depend_on_the_order():
    unet, target = ReconstructionUNet(encoder()), encoder()
    load_encoder(target, shuffled(unet.state_dict()))
    assert torch.equal(target.ups[0].conv[0].weight, unet.encoder.ups[0].conv[0].weight)


def without(state, name):
    return {key: value for key, value in state.items() if key != name}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            lambda: ReconstructionUNet(encoder(channels=(4, 6, 10))),
            r"layer downs\.2\.0\.weight must have shape \(8, 6, 3, 3\), got \(10, 6, 3, 3\)\. Build both",
        ),
        (
            lambda: ReconstructionUNet(encoder(spatial_dims=3)),
            r"layer downs\.0\.0\.weight must have shape \(4, 1, 3, 3\), got \(4, 1, 3, 3, 3\)",
        ),
        (
            lambda: ReconstructionUNet(encoder(channels=(4, 6, 8, 8))),
            r"layer ups\.0\.conv\.0\.weight must have shape .* got .*\. Build both networks with the same channels",
        ),
        (
            lambda: without(encoder().state_dict(), "downs.1.4.running_var"),
            r"layer downs\.1\.4\.running_var must be in the source, got none\. Did you mean '.*'\? Build both",
        ),
        (
            lambda: {**encoder().state_dict(), "downs.9.0.weight": torch.zeros(1)},
            r"layer downs\.9\.0\.weight of the source must be in the target encoder, got none\. Build both",
        ),
    ],
    ids=["width", "dims", "depth", "missing", "extra"],
)
def test_a_mismatch_names_the_layer_and_copies_nothing(source, message):
    target = encoder()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        load_encoder(target, source())
    for name, value in target.state_dict().items():
        assert torch.equal(value, before[name])
