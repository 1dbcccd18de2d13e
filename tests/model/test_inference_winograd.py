# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from vmfseg.model.backends import TorchBackend
from vmfseg.model.deploy import deploy, even_size
from vmfseg.model.fast_convolution import MIN_CHANNELS, WinogradConv2d
from vmfseg.model.onnx_winograd import read_with_winograd
from vmfseg.networks import VMFNet


def conv(ins: int, outs: int, **kwargs) -> nn.Conv2d:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Conv2d(ins, outs, 3, **{"padding": 1, **kwargs})


def image(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("ins", "outs", "size"),
    [
        pytest.param(128, 128, (16, 16), id="whole-tiles"),
        pytest.param(128, 192, (17, 22), id="tiles-over-the-edge"),
        pytest.param(192, 128, (60, 75), id="several-blocks"),
    ],
)
def test_it_is_the_convolution_in_double_precision_up_to_rounding(ins, outs, size):
    plain, x = conv(ins, outs), image(2, ins, *size)
    with torch.no_grad():
        exact = nn.functional.conv2d(x.double(), plain.weight.double(), plain.bias.double(), padding=1)
        found = WinogradConv2d(plain)(x)
        error, direct = ((y - exact).abs().max().item() for y in (found, plain(x)))
    assert found.shape == exact.shape
    assert error < 8 * direct  # the points were chosen for that; the textbook's give 30


def test_a_slice_does_not_depend_on_its_neighbors_bit_for_bit():
    layer, x = WinogradConv2d(conv(128, 128)), image(5, 128, 24, 20)
    assert torch.equal(layer(x)[3:4], layer(x[3:4]))
    assert torch.equal(layer(x), layer(x.contiguous(memory_format=torch.channels_last)))


def test_images_of_a_few_tiles_go_the_plain_way():
    plain, x = conv(128, 128), image(2, 128, 12, 12)
    with torch.no_grad():
        assert torch.equal(WinogradConv2d(plain)(x), plain(x))


def test_images_whose_gradient_is_wanted_go_the_plain_way(wide):
    plain, x = conv(128, 128), image(1, 128, 24, 24).requires_grad_()
    layer = WinogradConv2d(plain)
    (found,) = torch.autograd.grad((layer(x) + x).square().sum(), x)
    (expected,) = torch.autograd.grad((plain(x) + x).square().sum(), x)
    torch.testing.assert_close(found, expected)
    scan = image(1, 1, 64, 48).requires_grad_()
    saliency = [torch.autograd.grad(net(scan).square().sum(), scan)[0] for net in (deploy(wide, portable=False), wide)]
    torch.testing.assert_close(*saliency, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(nn.Conv2d(256, 256, 3, padding=1, stride=2), id="stride"),
        pytest.param(nn.Conv2d(256, 256, 3, padding=2, dilation=2), id="dilation"),
        pytest.param(nn.Conv2d(256, 256, 3), id="no-padding"),
        pytest.param(nn.Conv2d(256, 256, 3, padding=1, padding_mode="reflect"), id="reflection"),
        pytest.param(nn.Conv2d(256, 256, 3, padding=1, groups=2), id="groups"),
        pytest.param(nn.Conv2d(256, 256, 1), id="1x1"),
        pytest.param(nn.Conv2d(MIN_CHANNELS - 1, 256, 3, padding=1), id="few-channels"),
        pytest.param(nn.Conv2d(256, 256, 3, padding=1).half(), id="half"),
        pytest.param(nn.ConvTranspose2d(256, 256, 3, padding=1), id="transposed"),
    ],
)
def test_other_layers_stay_as_they_are(other):
    assert not WinogradConv2d.fits(other)
    assert WinogradConv2d.fits(conv(256, 256))


@pytest.fixture(scope="module")
def wide() -> VMFNet:
    return VMFNet(channels=(16, 128, 128), hidden_channels=16, level=1, seed=0).eval()


def test_only_copies_that_stay_here_have_it(wide):
    x = image(3, 1, 64, 48)
    here, portable = deploy(wide, portable=False), deploy(wide)
    assert sum(isinstance(module, WinogradConv2d) for module in here.modules()) == 4
    assert not any(isinstance(module, WinogradConv2d) for module in (*portable.modules(), *wide.modules()))
    with torch.no_grad():
        torch.testing.assert_close(here(x), wide(x), rtol=1e-4, atol=1e-5)


def test_onnx_runtime_gets_the_same_function_and_the_file_stays_plain(wide, tmp_path):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    path, x = tmp_path / "wide.onnx", image(3, 1, 72, 64)  # 72 / 2 = 36 and 72 / 4 = 18: not whole tiles
    torch.onnx.export(
        deploy(wide).to(memory_format=torch.contiguous_format),
        (x,),
        str(path),
        dynamo=True,
        external_data=False,
        dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1)}},
        verbose=False,
    )
    before = path.read_bytes()
    content = read_with_winograd(path)
    assert path.read_bytes() == before

    def products(model) -> int:
        return sum(node.op_type == "MatMul" for node in model.graph.node)

    def layers(model) -> int:
        return sum(node.op_type == "Conv" for node in model.graph.node)

    plain, changed = onnx.load(str(path)), onnx.load_from_string(content)
    onnx.checker.check_model(changed)
    assert layers(plain) - layers(changed) == 4
    assert products(changed) - products(plain) == 12
    answers = []
    for model in (before, content):
        session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
        answers.append([session.run(None, {session.get_inputs()[0].name: x[:k].numpy()})[0] for k in (1, 3)])
    for one, other in zip(*answers, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def test_an_onnx_file_with_nothing_to_gain_is_taken_as_it_is(tmp_path):
    pytest.importorskip("onnx")
    path = tmp_path / "narrow.onnx"
    torch.onnx.export(
        conv(8, 8).eval(), (image(1, 8, 32, 32),), str(path), dynamo=True, external_data=False, verbose=False
    )
    assert read_with_winograd(path) == path.read_bytes()


def test_a_convolution_whose_bias_is_computed_stays(tmp_path):
    onnx = pytest.importorskip("onnx")
    helper, array = onnx.helper, onnx.numpy_helper.from_array
    plain = conv(128, 128)
    nodes = [
        helper.make_node("Identity", ["b"], ["bias"]),
        helper.make_node("Conv", ["x", "w", "bias"], ["y"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
    ]
    sides = [1, 128, 32, 32]
    graph = helper.make_graph(
        nodes,
        "computed bias",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, sides)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, sides)],
        [array(plain.weight.detach().numpy(), "w"), array(plain.bias.detach().numpy(), "b")],
    )
    path = tmp_path / "computed.onnx"
    onnx.save(helper.make_model(graph), str(path))
    assert read_with_winograd(path) == path.read_bytes()


def test_a_layer_that_it_cannot_stand_for_is_refused_and_none_is_replaced_twice(wide):
    with pytest.raises(ValueError, match="conv must be 3 x 3 with stride 1"):
        WinogradConv2d(conv(128, 128, stride=2))
    ready = deploy(deploy(wide, portable=False), portable=False)
    assert sum(isinstance(module, WinogradConv2d) for module in ready.modules()) == 4


def test_lower_precision_around_it_does_not_reach_it():
    plain, x = conv(128, 128), image(1, 128, 20, 20)
    layer = WinogradConv2d(plain)
    with torch.autocast("cpu", dtype=torch.float16):
        found = layer(x)
    assert found.dtype == torch.float32
    assert torch.equal(found, layer(x))


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_a_wide_network_does_not_depend_on_the_batch_size(wide, batch_size):
    slices, backend = image(5, 1, 64, 48), TorchBackend(wide)
    parts = torch.cat([backend(part).logits for part in slices.split(even_size(5, batch_size))])
    assert torch.equal(parts, backend(slices).logits)
