# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import pickle

import pytest
import torch
from monai.data import MetaTensor
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from vmfseg.networks import VMFNet, convolution
from vmfseg.networks.convolution import MIN_CHANNELS, Conv3x3
from vmfseg.networks.winograd import filter_transform, tile_transforms


def layer(ins: int, outs: int) -> Conv3x3:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Conv3x3(ins, outs).to(memory_format=torch.channels_last)


def image(*shape: int) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    return x.to(memory_format=torch.channels_last) if x.ndim == 4 else x


def winograd(y: torch.Tensor) -> bool:
    return y.grad_fn is not None and y.grad_fn.name() == "_ConvolutionBackward"


def gradients(conv: nn.Conv2d, x: torch.Tensor, above: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The convolution of ``x`` and the gradients of ``(convolution * above).sum()``."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = conv(x)
    return y.detach(), *torch.autograd.grad(y, [x, conv.weight, conv.bias], above)


def test_one_tile_by_the_formula_itself():
    """The definition, with no blocks and no layout: 36 products for 16 outputs."""
    weight = image(5, 3, 3, 3)
    to_spectrum, to_pixels, _ = tile_transforms()
    tile = image(3, 6, 6)
    spectra = to_spectrum @ tile.flatten(1).T  # 36 × in
    products = torch.einsum("kc,kco->ko", spectra, filter_transform(weight))
    found = (to_pixels @ products).T.view(5, 4, 4)
    torch.testing.assert_close(found, F.conv2d(tile[None], weight)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("ins", "outs", "size"),
    [
        pytest.param(64, 64, (3, 28, 28), id="slices-in-one-block"),
        pytest.param(64, 80, (3, 26, 29), id="tiles-over-the-edge"),
        pytest.param(96, 64, (2, 75, 90), id="several-blocks"),
        pytest.param(128, 144, (5, 30, 33), id="all-three-ways"),
        pytest.param(144, 128, (1, 70, 81), id="all-three-ways-several-blocks"),
    ],
)
def test_the_convolution_and_its_gradients_are_those_of_double_precision_up_to_rounding(ins, outs, size):
    batch, *pixels = size
    conv, x, above = layer(ins, outs), image(batch, ins, *pixels), image(batch, outs, *pixels)
    assert winograd(conv(x))
    exact = gradients(copy.deepcopy(conv).double(), x.double(), above.double())
    plain = nn.Conv2d(ins, outs, 3, padding=1)
    plain.load_state_dict(conv.state_dict())
    direct = gradients(plain, x.contiguous(), above.contiguous())
    for name, found, other, truth in zip(
        ("y", "x", "weight", "bias"), gradients(conv, x, above), direct, exact, strict=True
    ):
        assert found.shape == truth.shape
        error, usual = ((value - truth).abs().max().item() for value in (found, other))
        assert error < 12 * usual, f"{name}: {error:.1e}, directly {usual:.1e}"
        assert error < 1e-5 * truth.abs().max().item(), name


def test_the_gradient_of_the_filters_is_more_exact_than_torchs_on_large_images():
    conv, x, above = layer(64, 64), image(2, 64, 160, 160), image(2, 64, 160, 160)
    exact, found = gradients(copy.deepcopy(conv).double(), x.double(), above.double())[2], gradients(conv, x, above)[2]
    torchs = torch.ops.aten.convolution_backward(
        above, x, conv.weight, [64], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    assert (found - exact).abs().max() < (torchs - exact).abs().max()


def plain_case(ins: int = 128, outs: int = 128, size: tuple[int, ...] = (1, 48, 48), learns: bool = True, **to):
    batch, *pixels = size
    return layer(ins, outs).requires_grad_(learns).to(**to), image(batch, ins, *pixels).to(**to)


@pytest.fixture
def no_winograd(monkeypatch):
    def refuse(*_):
        raise AssertionError("Winograd's way was taken")

    monkeypatch.setattr(convolution._Convolution, "forward", refuse)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(plain_case(ins=MIN_CHANNELS - 1), id="few-channels-in"),
        pytest.param(plain_case(outs=MIN_CHANNELS - 1), id="few-channels-out"),
        pytest.param(plain_case(size=(1, 44, 48)), id="few-tiles"),
        pytest.param(plain_case(dtype=torch.float64), id="double"),
        pytest.param(plain_case(memory_format=torch.contiguous_format), id="contiguous"),
        pytest.param(plain_case(learns=False), id="nothing-learns"),
        pytest.param((layer(128, 128), image(1, 128, 48, 48)[0]), id="unbatched"),
    ],
)
def test_elsewhere_it_is_the_plain_convolution(case, no_winograd):
    conv, x = case
    assert torch.equal(conv(x), F.conv2d(x, conv.weight, conv.bias, padding=1))


def test_without_a_gradient_or_in_lower_precision_it_is_the_plain_convolution(no_winograd):
    conv, x = layer(128, 128), image(1, 128, 48, 48)
    with torch.no_grad():
        assert torch.equal(conv(x), F.conv2d(x, conv.weight, conv.bias, padding=1))
    with torch.autocast("cpu", dtype=torch.float16):
        assert conv(x).dtype == torch.float16
    with pytest.raises(AssertionError, match="Winograd's way"):
        conv(x)


@pytest.mark.parametrize(("name", "value"), [("stride", (2, 2)), ("padding_mode", "circular"), ("dilation", (2, 2))])
def test_a_layer_that_is_changed_afterwards_does_what_torchs_would(name, value, no_winograd):
    conv, plain = layer(128, 128), nn.Conv2d(128, 128, 3, padding=1)
    plain.load_state_dict(conv.state_dict())
    for module in (conv, plain):
        setattr(module, name, value)
    x = image(1, 128, 48, 48)
    torch.testing.assert_close(conv(x), plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(48, 48), (45, 50)])
def test_what_follows_may_work_in_place(size):
    conv, x = layer(128, 128), image(1, 128, *size)
    y = conv(x)
    assert winograd(y)
    torch.relu_(y).sum().backward()
    found, conv.weight.grad = conv.weight.grad, None
    F.relu(conv(x)).sum().backward()
    assert torch.equal(found, conv.weight.grad)


def test_a_gradient_taken_under_autocast_is_the_same():
    conv, x = layer(128, 128), image(1, 128, 48, 48).requires_grad_()
    expected = torch.autograd.grad(conv(x).sum(), conv.weight)[0]
    with torch.autocast("cpu", dtype=torch.float16):
        with torch.autocast("cpu", enabled=False):
            y = conv(x)
        assert winograd(y)
        assert torch.equal(torch.autograd.grad(y.sum(), conv.weight)[0], expected)


def test_functional_gradients_are_the_same():
    conv, x = layer(128, 128), image(1, 128, 48, 48)
    conv(x).square().sum().backward()

    def loss(parameters):
        return torch.func.functional_call(conv, parameters, x).square().sum()

    found = torch.func.grad(loss)({name: p.detach() for name, p in conv.named_parameters()})
    torch.testing.assert_close(found["weight"], conv.weight.grad, rtol=1e-4, atol=1e-3)


def test_graphs_are_traced_through_the_plain_convolution(no_winograd):
    conv, x = layer(128, 128), image(1, 128, 48, 48)
    with torch.no_grad():
        expected = conv(x)
    torch.testing.assert_close(torch.fx.symbolic_trace(conv)(x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.export.export(conv, (x,)).module()(x), expected, rtol=1e-5, atol=1e-5)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert conv(mode.from_tensor(x)).shape == expected.shape


def test_only_what_is_asked_for_gets_a_gradient():
    conv, x = layer(64, 64), image(1, 64, 48, 48)
    conv(x).sum().backward()
    assert x.grad is None
    once = conv.weight.grad.clone()
    conv(x).sum().backward()
    torch.testing.assert_close(conv.weight.grad, 2 * once)
    assert conv.weight.grad.is_contiguous(memory_format=torch.channels_last)
    frozen, y = layer(64, 64).requires_grad_(False), x.clone().requires_grad_()
    out = frozen(y)
    assert winograd(out)
    out.sum().backward()
    assert y.grad is not None
    assert frozen.weight.grad is None


def test_two_runs_give_the_same_bytes():
    conv, x, above = layer(128, 128), image(2, 128, 60, 52), image(2, 128, 60, 52)
    for one, other in zip(gradients(conv, x, above), gradients(conv, x, above), strict=True):
        assert torch.equal(one, other)


def test_images_of_monai_are_as_good_as_plain_ones_and_keep_their_metadata():
    conv, x, above = layer(128, 128), image(2, 128, 48, 50), image(2, 128, 48, 50)
    scan = MetaTensor(x, affine=torch.diag(torch.tensor([2.0, 3.0, 4.0, 1.0])), meta={"filename_or_obj": "scan.nii"})
    y = conv(scan)
    assert y.grad_fn.next_functions[0][0].name() == "_ConvolutionBackward"
    assert y.meta["filename_or_obj"] == "scan.nii"
    assert torch.equal(y.affine, scan.affine)
    for one, other in zip(gradients(conv, scan, above), gradients(conv, x, above), strict=True):
        assert torch.equal(torch.as_tensor(one), other)


def test_first_use_in_inference_mode_does_not_spoil_training():
    tile_transforms.cache_clear()
    with torch.inference_mode():
        tile_transforms()
    conv, x = layer(128, 128), image(1, 128, 48, 48)
    conv(x).sum().backward()
    assert not tile_transforms()[0].is_inference()
    assert conv.weight.grad.isfinite().all()


def test_it_is_copied_pickled_scripted_and_compiled_like_any_layer():
    conv, x = layer(64, 64), image(1, 64, 48, 48)
    y = conv(x)
    for other in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        assert torch.equal(other(x), y)
    assert set(conv.state_dict()) == set(nn.Conv2d(64, 64, 3).state_dict())
    (expected,) = torch.autograd.grad(y.square().mean(), conv.weight)
    for other in (torch.jit.script(conv), torch.compile(conv, fullgraph=True, backend="aot_eager")):
        found = other(x)
        torch.testing.assert_close(found, y, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(torch.autograd.grad(found.square().mean(), conv.weight)[0], expected)


def test_the_gradients_of_a_whole_network_are_about_as_exact_as_torchs():
    """Against double precision, the median error over the parameters of a network with both ways in it."""
    net = VMFNet(channels=(64, 128, 128), hidden_channels=64, level=1, seed=0)
    x = image(3, 72, 72)[:, None]
    paths: list[bool] = []
    for module in net.modules():
        if isinstance(module, Conv3x3):
            module.register_forward_hook(lambda _, __, y: paths.append(winograd(y)))

    def found(network: VMFNet, x: torch.Tensor) -> list[torch.Tensor]:
        parts = network(x, return_parts=True)
        loss = parts.logits.square().mean() + (parts.reconstruction - x).abs().mean()
        return [g for g in torch.autograd.grad(loss, list(network.parameters()), allow_unused=True) if g is not None]

    exact = found(copy.deepcopy(net).double(), x.double())
    plain = found(copy.deepcopy(net), x)
    assert not any(paths)
    ours = found(net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last))
    assert sum(paths) >= 8

    def median_error(values: list[torch.Tensor]) -> float:
        scale = max(g.abs().max().item() for g in exact)
        errors = [
            ((a - b).norm() / b.norm().clamp_min(1e-6 * scale)).item() for a, b in zip(values, exact, strict=True)
        ]
        return sorted(errors)[len(errors) // 2]

    assert median_error(ours) < 6 * median_error(plain)  # 4.2 was measured with one thread
