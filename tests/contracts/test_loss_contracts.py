# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from contract_cases import LOSSES, AllTerms

import vmfseg.losses

CASES = [
    pytest.param(case, dims, id=f"{name}-{case.id}-{dims}d")
    for name, cases in LOSSES.items()
    for case in cases
    for dims in (2, 3)
]
every_case = pytest.mark.parametrize(("case", "dims"), CASES)


def test_every_export_has_a_contract():
    assert set(LOSSES) == set(vmfseg.losses.__all__)


@pytest.mark.parametrize("name", LOSSES)
def test_the_table_builds_what_it_says(name):
    for case in LOSSES[name]:
        loss = case.build()
        assert isinstance(loss.loss if isinstance(loss, AllTerms) else loss, getattr(vmfseg.losses, name))


@every_case
def test_gradcheck(case, dims):
    loss = case.build()
    arguments, differentiable = case.inputs(dims, torch.float64)

    def function(*values):
        filled = list(arguments)
        for position, value in zip(differentiable, values, strict=True):
            filled[position] = value
        return loss(*filled)

    assert torch.autograd.gradcheck(function, [arguments[k].requires_grad_() for k in differentiable])


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_forward_and_backward_are_finite_and_leave_the_inputs_alone(case, dims, dtype):
    loss = case.build()
    arguments, differentiable = case.inputs(dims, dtype)
    before = copy.deepcopy(arguments)
    for k in differentiable:
        arguments[k].requires_grad_()
    value = loss(*arguments)
    assert torch.isfinite(value).all()
    assert value.ndim == (1 if case.id == "none" else 0)
    value.sum().backward()
    for k in differentiable:
        assert torch.isfinite(arguments[k].grad).all()
        assert arguments[k].grad.abs().max() > 0
    for now, then in zip(arguments, before, strict=True):
        assert torch.equal(now, then)


@every_case
def test_float16_is_near_float64(case, dims):
    loss = case.build()
    arguments, _ = case.inputs(dims, torch.float64)
    half = [a.half() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments]
    torch.testing.assert_close(loss(*half).double(), loss(*arguments), rtol=0.02, atol=0.02)


@every_case
def test_state_dict_round_trip(case, dims):
    loss, other = case.build(), case.build()
    other.load_state_dict(loss.state_dict())
    arguments, _ = case.inputs(dims, torch.float32)
    assert torch.equal(loss(*arguments), other(*arguments))


@pytest.mark.parametrize("name", ["MaskedDiceLoss", "MaskedCrossEntropyLoss"])
@pytest.mark.parametrize("value", [60000.0, -60000.0, 0.0])
def test_float16_sums_over_a_large_batch_do_not_overflow(name, value):
    logits = torch.full((4, 4, 288, 288), value, dtype=torch.float16)
    loss = getattr(vmfseg.losses, name)()(logits, torch.zeros(4, 1, 288, 288))
    assert torch.isfinite(loss)
