# SPDX-License-Identifier: Apache-2.0
import copy
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from contract_cases import NETWORKS, OTHER_NETWORK_EXPORTS, tensors
from torch import nn

import vmfseg.networks

CASES = [
    pytest.param(case, dims, id=f"{name}-{case.id}-{dims}d")
    for name, cases in NETWORKS.items()
    for case in cases
    for dims in case.dims
]
FIRST_CASES = [
    pytest.param(case, dims, id=f"{name}-{case.id}-{dims}d")
    for name, cases in NETWORKS.items()
    for case in (cases if name == "VMFNet" else cases[:1])
    for dims in (case.dims if case is cases[0] else (2,))
]
every_case = pytest.mark.parametrize(("case", "dims"), CASES)
first_cases = pytest.mark.parametrize(("case", "dims"), FIRST_CASES)  # where one case shows what all would
NETS = [pytest.param(case, id=case.id) for case in NETWORKS["VMFNet"]]


def assert_same(actual, expected, rtol=1e-5, atol=1e-6):
    actual, expected = tensors(actual), tensors(expected)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=rtol, atol=atol)


def test_every_export_has_a_contract_or_says_who_tests_it():
    assert set(NETWORKS) | set(OTHER_NETWORK_EXPORTS) == set(vmfseg.networks.__all__)
    for name in vmfseg.networks.__all__:
        export = getattr(vmfseg.networks, name)
        is_module = isinstance(export, type) and issubclass(export, nn.Module)
        assert is_module == (name in NETWORKS), f"{name} belongs in the other table"
    for name, file in OTHER_NETWORK_EXPORTS.items():
        assert name in (Path(__file__).parents[2] / file).read_text(), f"{file} does not mention {name}"


@pytest.mark.parametrize("name", NETWORKS)
def test_the_table_builds_what_it_says(name):
    for case in NETWORKS[name]:
        assert type(case.build(case.dims[0])).__name__ == name


@every_case
def test_every_parameter_gets_a_finite_gradient(case, dims):
    net, inputs = case.build(dims), case.inputs(dims)
    inputs[0].requires_grad_()
    outputs = tensors(net(*inputs, **case.kwargs))
    sum((out.float() - 0.3).square().sum() for out in outputs).backward()
    assert torch.isfinite(inputs[0].grad).all()
    assert inputs[0].grad.abs().max() > 0
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, f"{name} gets no gradient"
        assert torch.isfinite(parameter.grad).all(), f"{name} gets a gradient that is not finite"
        if name.endswith("weight"):  # a bias before a batch norm has a gradient of zero
            assert parameter.grad.abs().max() > 0, f"{name} gets a gradient of zero"


@every_case
def test_the_batch_is_the_first_axis_and_inputs_stay_as_they_were(case, dims):
    net, inputs = case.build(dims).eval(), case.inputs(dims)
    before = copy.deepcopy(inputs)
    whole = tensors(net(*inputs, **case.kwargs))
    for now, then in zip(inputs, before, strict=True):
        assert torch.equal(now, then)
    alone = tensors(net(inputs[0][:1], *inputs[1:], **case.kwargs))
    for both, one in zip(whole, alone, strict=True):
        if both.shape[0] == 2:  # the kernels among the parts have no batch axis
            torch.testing.assert_close(both[:1], one, rtol=1e-3, atol=1e-4)  # kappa and the logit amplify rounding


@every_case
def test_state_dict_round_trip(case, dims):
    net, inputs = case.build(dims), case.inputs(dims)
    net(*inputs, **case.kwargs)  # moves the running statistics off their start
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    buffer.seek(0)
    other = case.build(dims)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert_same(other.eval()(*inputs, **case.kwargs), net.eval()(*inputs, **case.kwargs), rtol=0, atol=0)


@first_cases
def test_scripted_equals_eager(case, dims):
    net, inputs = case.build(dims).eval(), case.inputs(dims)
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(net), buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    assert_same(loaded(*inputs), net(*inputs))
    assert_same(loaded(*inputs, **case.kwargs), net(*inputs, **case.kwargs))


@first_cases
def test_traced_equals_eager_also_at_another_size(case, dims):
    net, inputs = case.build(dims).eval(), case.inputs(dims)
    traced = torch.jit.trace(net, inputs)
    assert_same(traced(*inputs), net(*inputs))
    larger = (torch.cat([inputs[0], inputs[0].flip(2)], dim=2), *inputs[1:])
    assert_same(traced(*larger), net(*larger))


@first_cases
def test_exported_equals_eager(case, dims):
    net, inputs = case.build(dims).eval(), case.inputs(dims)
    exported = torch.export.export(net, inputs, case.kwargs).module()
    assert_same(exported(*inputs, **case.kwargs), net(*inputs, **case.kwargs))


@every_case
def test_float16_is_finite_and_near_float32(case, dims):
    net, inputs = case.build(dims).eval(), case.inputs(dims)
    with torch.no_grad():
        expected = tensors(net(*inputs, **case.kwargs))
        half = tensors(net.half()(*(value.half() for value in inputs), **case.kwargs))
    for h, e in zip(half, expected, strict=True):
        assert torch.isfinite(h).all()
        error = (h.float() - e).abs().mean() / e.abs().mean()  # the mean: a gate may flip where a cosine is near it
        assert error < 0.05


@every_case
def test_float16_autocast_trains_with_finite_gradients(case, dims):
    net, inputs = case.build(dims), case.inputs(dims)
    inputs[0].requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        outputs = tensors(net(*inputs, **case.kwargs))
        loss = sum((out.float() - 0.3).square().mean() for out in outputs)
    loss.backward()
    for out in outputs:
        assert torch.isfinite(out).all()
    for name, parameter in net.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name


def test_bfloat16_features_keep_the_kernels_finite_and_near_float32():
    # in a process of its own: on some machines bfloat16 products end in an illegal instruction
    code = """
import torch
from vmfseg.networks import VMFKernels
torch.manual_seed(0)
kernels, x = VMFKernels(8, 3), torch.randn(2, 8, 6, 6)
low = x.bfloat16().requires_grad_()
out = kernels(low)
out[:, 0].sum().backward()
assert out.dtype == torch.bfloat16 and torch.isfinite(out).all() and torch.isfinite(low.grad).all()
assert torch.isfinite(kernels.weight.grad).all()
torch.testing.assert_close(out.float(), kernels(low.float()), rtol=0, atol=4e-3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("case", "dims"), [(NETWORKS["VMFNet"][0], 2), (NETWORKS["VMFNet"][0], 3)], ids=["2d", "3d"])
def test_onnx_runtime_equals_eager_for_any_batch_size(case, dims, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    net = case.build(dims).eval()
    (image,) = case.inputs(dims)
    path = tmp_path / "net.onnx"
    batch = torch.export.Dim("batch", min=1, max=64)
    torch.onnx.export(
        net,
        (image,),
        str(path),
        dynamo=True,
        dynamic_shapes=({0: batch},),
        input_names=["image"],
        output_names=["logits"],
        verbose=False,
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for size in (1, 2, 5):
        images = torch.rand(size, *image.shape[1:])
        (logits,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(logits, net(images).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", NETS[:2])
def test_compiled_equals_eager(case):
    net, inputs = case.build(2).eval(), case.inputs(2)
    compiled = torch.compile(net, fullgraph=True)
    with torch.no_grad():
        assert_same(compiled(*inputs), net(*inputs), rtol=1e-4, atol=1e-5)
        assert_same(compiled(*inputs, **case.kwargs), net(*inputs, **case.kwargs), rtol=1e-4, atol=1e-5)
