# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from monai.networks.nets import UNet, resnet10
from torch import nn
from torch.nn import functional as F

from vmfseg.networks import BackboneEncoder, VMFEncoder, VMFNet
from vmfseg.networks.parts import FeatureEncoder


def reference_forward(encoder, x):
    """The stages of the paper's table, written out for four resolutions and features at half the image size."""

    def up(low, skip, block):
        raised = F.interpolate(low, size=skip.shape[2:], mode="bilinear", align_corners=True)
        return block.conv(torch.cat([skip, raised], dim=1))

    d, u = encoder.downs, encoder.ups
    x1 = d[0](x)
    x2 = d[1](F.max_pool2d(x1, 2))
    x3 = d[2](F.max_pool2d(x2, 2))
    x4 = d[3](F.max_pool2d(x3, 2))
    y1 = up(x4, x3, u[0])
    return up(y1, x2, u[1])


def test_forward_is_the_unet_cut_before_its_last_stage():
    encoder = VMFEncoder(channels=(4, 6, 8, 10)).eval()
    x = torch.rand(2, 1, 24, 32)
    torch.testing.assert_close(encoder(x), reference_forward(encoder, x))


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize(
    ("level", "width", "stride"), [(0, 4, 1), (1, 4, 2), (2, 6, 4), (3, 10, 8)], ids=["0", "1", "2", "bottleneck"]
)
def test_every_level_has_its_width_and_stride(dims, level, width, stride):
    encoder = VMFEncoder(dims, channels=(4, 6, 8, 10), level=level).eval()
    assert (encoder.feature_channels, encoder.stride) == (width, stride)
    assert encoder(torch.rand(1, 1, *[16] * dims)).shape == (1, width, *[16 // stride] * dims)
    assert isinstance(encoder, FeatureEncoder)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_without_the_last_activation_features_are_signed(level):
    x = torch.randn(2, 1, 16, 16)
    assert VMFEncoder(channels=(4, 6, 8), level=level)(x).min() >= 0
    assert VMFEncoder(channels=(4, 6, 8), level=level, last_activation="none")(x).min() < 0


def test_the_pyramid_starts_with_the_features_and_gets_finer():
    encoder, image = VMFEncoder(channels=(4, 6, 8), level=2).eval(), torch.rand(1, 1, 16, 16)
    pyramid = encoder.pyramid(image)
    assert [tuple(m.shape[1:]) for m in pyramid] == [(8, 4, 4), (6, 8, 8), (4, 16, 16)]
    assert torch.equal(pyramid[0], encoder(image))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"spatial_dims": 1}, r"spatial_dims must be 2 or 3, got 1\. Images"),
        ({"channels": (8,)}, r"channels must be at least two positive widths, got \(8,\)\. The paper"),
        ({"channels": (8, 0)}, r"channels must be at least two positive widths, got \(8, 0\)"),
        (
            {"channels": (8, 8), "level": 2},
            r"level must be between 0 and 1 for 2 resolutions, got 2\. 1 is the paper's",
        ),
        ({"level": -1}, r"level must be between 0 and 4 .* got -1"),
        ({"last_activation": "rleu"}, r"last_activation must be one of relu, none, got 'rleu'\. Did you mean 'relu'\?"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        VMFEncoder(**kwargs)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 16, 16), r"image must have shape \(B, 1, H, W\), got \(1, 3, 16, 16\)\. Check"),
        ((1, 16, 16), r"image must have shape \(B, 1, H, W\), got \(1, 16, 16\)"),
        ((1, 1, 16, 16, 16), r"image must have shape \(B, 1, H, W\), got \(1, 1, 16, 16, 16\)"),
        (
            (1, 1, 18, 16),
            r"image size \(18, 16\) must be divisible by 4 because VMFEncoder halves it 2 times; pad to \(20",
        ),
        ((1, 1, 0, 16), r"image size \(0, 16\) must be divisible by 4 .* pad to \(4, 16\)"),
    ],
)
def test_bad_images_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        VMFEncoder(channels=(4, 6, 8))(torch.zeros(shape))


def test_the_papers_encoder_says_to_which_size_to_pad():
    with pytest.raises(ValueError, match=r"image size \(286, 288\) must be divisible by 16 .* pad to \(288, 288\)\."):
        VMFEncoder(channels=(2, 2, 2, 2, 2))(torch.zeros(1, 1, 286, 288))


def test_a_monai_network_becomes_an_encoder_and_keeps_its_mode():
    unet = UNet(spatial_dims=2, in_channels=1, out_channels=7, channels=(4, 8), strides=(2,)).train()
    before = {name: value.clone() for name, value in unet.state_dict().items()}
    encoder = BackboneEncoder(unet)
    assert (encoder.feature_channels, encoder.stride) == (7, 1)
    assert unet.training
    for name, value in unet.state_dict().items():
        assert torch.equal(value, before[name]), f"the blank image changed {name}"
    net = VMFNet(encoder=encoder, num_kernels=3, hidden_channels=4)
    assert net(torch.rand(1, 1, 16, 16)).shape == (1, 4, 16, 16)


class ResNetMaps(nn.Module):
    """The maps of a MONAI ResNet before and after its first stage."""

    def __init__(self):
        super().__init__()
        self.net = resnet10(spatial_dims=2, n_input_channels=1, num_classes=2, feed_forward=False)

    def forward(self, x):
        first = self.net.act(self.net.bn1(self.net.conv1(x)))
        return [first, self.net.layer1(self.net.maxpool(first))]


@pytest.mark.parametrize(("level", "stride"), [(0, 1), (1, 2)])
def test_any_layer_of_a_resnet_serves_as_features(level, stride):
    encoder = BackboneEncoder(ResNetMaps(), level=level, probe_size=32)
    assert (encoder.feature_channels, encoder.stride) == (64, stride)
    net = VMFNet(encoder=encoder, num_kernels=3, hidden_channels=4)
    assert net(torch.rand(2, 1, 32, 32)).shape == (2, 4, 32, 32)


def test_a_level_that_the_backbone_lacks_is_refused():
    with pytest.raises(ValueError, match=r"level must be below 2, the number of maps of the backbone, got 2\. Choose"):
        BackboneEncoder(ResNetMaps(), level=2, probe_size=32)


@pytest.mark.parametrize(
    "backbone", [nn.Flatten(), nn.Conv2d(1, 4, 4), nn.AdaptiveAvgPool2d((1, 2))], ids=["vector", "odd-size", "oblong"]
)
def test_a_backbone_without_a_feature_map_is_refused(backbone):
    with pytest.raises(ValueError, match=r"backbone must return features .* got shape .* Choose another level"):
        BackboneEncoder(backbone, probe_size=8)
