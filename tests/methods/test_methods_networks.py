# SPDX-License-Identifier: Apache-2.0
"""Networks of the compared methods: published sizes, shapes, export, and what their parts do."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from vmfseg.methods import DGNet, LDDGNet, SAMLUNet, SDNet, SegmentationUNet
from vmfseg.methods.style_decoders import AdaINDecoder, FiLMDecoder, SPADEDecoder
from vmfseg.model.definitions import build_network
from vmfseg.networks import VMFEncoder

METHODS = ("unet", "sdnet", "lddg", "saml", "dgnet")


def count(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


def millions(*modules):
    return round(count(*modules) / 1e6, 2)


def conv(i, o, k):
    return i * o * k * k + o


def test_published_sizes():
    with torch.device("meta"):
        sdnet, lddg, dgnet = SDNet(), LDDGNet(), DGNet()
        unet, saml, encoder = SegmentationUNet(), SAMLUNet(), VMFEncoder()
    assert millions(sdnet.encoder, sdnet.maps) == 17.27
    assert millions(lddg) == 13.40
    assert [millions(dgnet), millions(dgnet.content), millions(dgnet.style, dgnet.domain)] == [20.22, 12.71, 7.43]
    assert millions(dgnet.decoder) == 0.08
    assert unet.encoder.state_dict().keys() == encoder.state_dict().keys()
    assert count(unet.encoder) == count(encoder) == 17155200
    assert count(saml) - count(unet) == 128 * 24 + 24 + 24 * 16 + 16


def test_decoder_sizes_by_hand():
    film = 4 * conv(8, 8, 3) * 2 + 4 * ((8 * 16 + 16) + (16 * 16 + 16)) + conv(8, 1, 3)
    assert count(FiLMDecoder(8, 8, 1)) == film
    mlp = (16 * 256 + 256) + (256 * 256 + 256) + (256 * 32 + 32)
    assert count(AdaINDecoder(8, 16, 1)) == 2 * conv(8, 8, 3) + conv(8, 4, 3) + conv(4, 1, 3) + mlp
    spade = conv(8, 8, 3) * 3  # shared, scale, shift
    assert count(SPADEDecoder(8, 8, 1)) == (8 * 8 + 8) + 4 * (spade + conv(8, 8, 3)) + conv(8, 1, 3)


@pytest.mark.parametrize("kind", [FiLMDecoder, AdaINDecoder, SPADEDecoder])
def test_decoders_render_any_size_in_the_given_style(kind):
    torch.manual_seed(0)
    decoder = kind(5, 6, 2).eval()
    content, style = torch.rand(3, 5, 24, 40), torch.randn(3, 6)
    image = decoder(content, style)
    assert image.shape == (3, 2, 24, 40)
    assert 0 <= float(image.min()) <= float(image.max()) <= 1
    assert (decoder(content, style.flip(0)) - image)[0].abs().max() > 1e-3  # the style matters
    assert (decoder(content.flip(3), style) - image).abs().max() > 1e-3  # and so does the content


def test_film_layer_by_numpy():
    torch.manual_seed(0)
    block = FiLMDecoder(3, 4, 1, width=2).double().blocks[0]
    x, style = torch.rand(1, 3, 6, 6, dtype=torch.float64), torch.randn(1, 4, dtype=torch.float64)
    hidden = style.numpy() @ block.film[0].weight.detach().numpy().T + block.film[0].bias.detach().numpy()
    hidden = np.where(hidden > 0, hidden, 0.2 * hidden)
    scale, shift = np.split(
        (hidden @ block.film[2].weight.detach().numpy().T + block.film[2].bias.detach().numpy())[0], 2
    )
    first = F.leaky_relu(F.conv2d(x, block.first.weight, block.first.bias, padding=1), 0.2)
    second = F.conv2d(first, block.second.weight, block.second.bias, padding=1).detach().numpy()[0]
    second = (1 + scale[:, None, None]) * second + shift[:, None, None]
    wanted = first.detach().numpy()[0] + np.where(second > 0, second, 0.2 * second)
    np.testing.assert_allclose(block(x, style).detach().numpy()[0], wanted, rtol=1e-12)


def test_adain_sets_mean_and_deviation():
    torch.manual_seed(0)
    decoder = AdaINDecoder(3, 4, 1).double()
    content, style = torch.rand(1, 3, 16, 16, dtype=torch.float64), torch.randn(1, 4, dtype=torch.float64)
    seen = []
    decoder.second.register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    decoder(content, style)
    before = torch.where(seen[0] > 0, seen[0], seen[0] / 0.2)  # undo the leaky ReLU
    scale, shift = decoder.adain(style)[0].chunk(4)[:2]
    torch.testing.assert_close(before.mean(dim=(2, 3))[0], shift, atol=1e-9, rtol=0)
    torch.testing.assert_close(before.std(dim=(2, 3), correction=0)[0], (1 + scale).abs(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_logits_for_any_channels(network, method):
    net = network(method, in_channels=2, out_channels=3)
    x = torch.rand(2, 2, 32, 48)
    assert net(x).shape == (2, 3, 32, 48)
    parts = net(x, return_parts=True)
    torch.testing.assert_close(net.eval()(x), net(x, return_parts=True).logits)
    assert parts.reconstruction is None or parts.reconstruction.shape == x.shape
    assert (parts.reconstruction is not None) == (method in ("sdnet", "dgnet"))


@pytest.mark.parametrize("name", ["SegmentationUNet", "SDNet", "LDDGNet", "SAMLUNet", "DGNet"])
def test_inference_may_build_them_from_plain_values(name):
    network = build_network({"_target_": f"vmfseg.methods.{name}", "channels": [4, 8, 8], "out_channels": 3}, "network")
    assert {p.device.type for p in network.parameters()} == {"meta"}


@pytest.mark.parametrize("method", METHODS)
def test_weights_follow_the_seed_alone(network, method):
    first, again, other = (network(method, seed=s).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("method", METHODS)
def test_scripted_and_exported_networks_give_the_same(network, method):
    net, x = network(method).eval(), torch.rand(2, 1, 32, 32)
    wanted = net(x)
    torch.testing.assert_close(torch.jit.script(copy.deepcopy(net))(x), wanted)
    shapes = {"x": {0: torch.export.Dim("batch", min=1)}, "return_parts": None}
    program = torch.export.export(net, (x, False), dynamic_shapes=shapes).module()
    torch.testing.assert_close(program(x[:1], False), wanted[:1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("decoder", ["film", "adain", "spade"])
def test_sdnet_anatomy_is_binary_and_learns(network, decoder):
    net, x = network("sdnet", decoder=decoder), torch.rand(2, 1, 32, 32)
    torch.jit.script(net)
    parts = net(x, return_parts=True)
    assert set(parts.features.unique().tolist()) <= {0.0, 1.0}
    assert float(parts.features.sum(dim=1).max()) <= 1.0
    torch.testing.assert_close(parts.activations.sum(dim=1), torch.ones(2, 32, 32))
    parts.logits[:, 1].sum().backward()
    assert float(net.maps.weight.grad.abs().sum()) > 0  # straight through the rounding
    soft = network("sdnet", binary=False)(x, return_parts=True)
    torch.testing.assert_close(soft.features, soft.activations)


@pytest.mark.parametrize("method", ["sdnet", "lddg", "dgnet"])
def test_samples_have_mean_and_deviation_of_the_posterior(network, method):
    net = network(method).eval().double()
    x = torch.rand(1, 1, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        noise = torch.randn((400, *net.noise_shape(x)[1:]), dtype=torch.float64, generator=torch.manual_seed(0))
        parts = net(x.expand(400, -1, -1, -1), return_parts=True, noise=noise)
        at_mean = net(x, return_parts=True)
    sample = parts.features if method == "lddg" else parts.style
    centered = (sample - at_mean.mean) / (0.5 * at_mean.log_variance).exp()
    assert abs(float(centered.mean())) < 0.05  # the released code of LDDG shifts it by the deviation
    assert abs(float(centered.std()) - 1) < 0.05
    torch.testing.assert_close(at_mean.features if method == "lddg" else at_mean.style, at_mean.mean)


def test_dgnet_logits_are_content_maps(network):
    net, x = network("dgnet").eval(), torch.rand(2, 1, 16, 16)
    parts = net(x, return_parts=True)
    assert torch.equal(parts.logits, parts.features[:, :4])
    torch.testing.assert_close(parts.activations, parts.features.softmax(dim=1))


def test_saml_embeds_the_mean_of_a_region(network):
    net, x = network("saml").eval(), torch.rand(1, 1, 16, 16)
    region = torch.zeros(1, 1, 16, 16)
    region[..., 3, 5] = region[..., 8, 8] = 1
    maps = net.encoder.pyramid(x)
    fine = net.up(maps[0], maps[1])
    coarse = F.interpolate(maps[0], scale_factor=2, mode="bilinear")
    both = torch.cat([coarse, fine], dim=1)[0]
    wanted = net.embedding((both[:, 3, 5] + both[:, 8, 8]) / 2)
    torch.testing.assert_close(net(x, return_parts=True, regions=region).embeddings[0, 0], wanted)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LDDGNet(out_channels=8), "latent_channels must be more than the 8 classes"),
        (lambda: DGNet(out_channels=8), "content_channels must be more than the 8 classes"),
        (lambda: SDNet(channels=(4, 8), decoder="flim"), "Did you mean 'film'"),
        (lambda: DGNet(channels=(4, 8))(torch.zeros(1, 1, 15, 16)), "pad to \\(16, 16\\)"),
        (lambda: DGNet(channels=(4,)), "at least two"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()
