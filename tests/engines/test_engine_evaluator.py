# SPDX-License-Identifier: Apache-2.0
"""VMFEvaluator and SliceBatchInferer."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import Events
from monai.engines import SupervisedEvaluator
from monai.engines.utils import IterationEvents

from vmfseg.engines import VMFEvaluator
from vmfseg.model import SliceBatchInferer


def _last(evaluator):
    outputs = []
    evaluator.add_event_handler(
        IterationEvents.MODEL_COMPLETED, lambda engine: outputs.append(dict(engine.state.output))
    )
    evaluator.run()
    return outputs


def test_without_parts_it_is_monais_evaluator(vmf_net, batches):
    net, data = vmf_net(), batches((True, True))
    ours = _last(VMFEvaluator(device="cpu", val_data_loader=data, network=net, decollate=False))
    theirs = _last(SupervisedEvaluator(device="cpu", val_data_loader=data, network=net, decollate=False))
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys() == {"image", "label", "pred"}
        assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize(
    ("kwargs", "extra"),
    [
        pytest.param({}, {"reconstruction"}, id="vmfnet"),
        pytest.param({"reconstruct": False}, set(), id="no composer"),
        pytest.param({"presence": "masks", "presence_channels": 2}, {"reconstruction", "presence"}, id="presence"),
    ],
)
def test_parts_are_those_that_the_network_makes(vmf_net, batches, kwargs, extra):
    net = vmf_net(**kwargs)
    batch = {"image": batches((False,))[0]["image"].repeat(1, 1, 4, 4)}  # a presence head needs 64 pixels
    output = _last(
        VMFEvaluator(return_parts=True, device="cpu", val_data_loader=[batch], network=net, decollate=False)
    )[0]
    assert output.keys() == {"image", "pred", "activations", "features"} | extra
    with torch.no_grad():
        parts = net.eval()(batch["image"], return_parts=True)
    for name in {"activations", "features"} | extra:
        assert torch.equal(output[name], getattr(parts, name))
    assert torch.equal(output["pred"], parts.logits)


def test_the_mode_of_the_network_is_given_back_and_nothing_is_recorded(vmf_net, batches):
    net, seen = vmf_net().train(), []
    evaluator = VMFEvaluator(device="cpu", val_data_loader=batches((True,)), network=net, decollate=False)
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: seen.append(engine.state.output["pred"]))
    evaluator.run()
    assert net.training
    assert not seen[0].requires_grad


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 8, 100])
def test_the_result_does_not_depend_on_the_batch_size(vmf_net, batch_size):
    net = vmf_net().eval()
    volume = torch.rand(2, 1, 16, 16, 5, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        got = SliceBatchInferer(batch_size)(volume, net)
        for b in range(2):
            for d in range(5):  # slice d of volume b alone is slice d of the result
                alone = net(volume[b : b + 1, ..., d])[0]
                torch.testing.assert_close(got[b, ..., d], alone, rtol=1e-4, atol=1e-5)
    assert got.shape == (2, 4, 16, 16, 5)


def test_parts_of_a_volume_keep_the_order_of_slices(vmf_net):
    net = vmf_net(presence="masks", presence_channels=2).eval()
    volume = torch.rand(1, 1, 64, 64, 3, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        parts = SliceBatchInferer(2)(volume, net, return_parts=True)
        single = net(volume[..., 1], return_parts=True)
    shapes = {name: tuple(value.shape) for name, value in parts._asdict().items() if value is not None}
    assert shapes["activations"] == (1, 4, 32, 32, 3)
    assert shapes["presence"] == (1, 3, 3)
    assert shapes["kernels"] == single.kernels.shape
    for name in ("logits", "features", "activations", "reconstruction", "presence"):
        torch.testing.assert_close(getattr(parts, name)[..., 1], getattr(single, name), rtol=1e-4, atol=1e-5)


def test_a_batch_of_slices_is_left_alone(vmf_net):
    net, x = vmf_net().eval(), torch.rand(3, 1, 16, 16)
    with torch.no_grad():
        assert torch.equal(SliceBatchInferer(2)(x, net), net(x))


def test_bad_arguments_are_named(vmf_net):
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        SliceBatchInferer(0)
    with pytest.raises(ValueError, match=r"inputs must have shape BCHWD or BCHW, got \(16, 16\)"):
        SliceBatchInferer()(torch.zeros(16, 16), vmf_net())
