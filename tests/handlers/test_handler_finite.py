# SPDX-License-Identifier: Apache-2.0
"""FiniteHandler: the first NaN stops the run before it reaches the weights."""

from __future__ import annotations

import pytest
import torch
from monai.data import MetaTensor
from monai.engines import SupervisedTrainer

from vmfseg.handlers import FiniteHandler, GradientClipHandler
from vmfseg.utils import VmfError
from vmfseg.utils.checks import check_finite
from vmfseg.utils.errors import find_vmf_error


def _refusal(one):
    with pytest.raises(VmfError) as caught:
        one.run()
    assert caught.value.code == "VMF296"
    assert caught.value.exit_code == 3
    return caught.value


def test_a_good_training_is_left_alone(trainer, line):
    net = line()
    one = trainer(net, train_handlers=[FiniteHandler()])
    one.run()
    assert one.state.iteration == 9
    assert float(net.weight.detach()) != 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_image_is_named_alone(trainer, line, images, value):
    data = images(3)
    data[1]["image"][1, 0, 0, 0] = value
    net = line()
    one = trainer(net, data, train_handlers=[FiniteHandler()])
    weight = []
    one.add_event_handler(one.last_event_name or "ITERATION_COMPLETED", lambda _e: weight.append(net.weight.item()))
    refusal = _refusal(one)
    assert refusal.subject == "B/s1/1/1"
    assert "iteration 2" in refusal.rule
    assert net.weight.item() == weight[0]  # as the first, good iteration left it
    assert len(weight) == 1


def test_a_bad_loss_names_the_term_and_the_batch(trainer, line):
    def loss(parts, *_args, **_kwargs):
        return {"fit": parts.logits.mean(), "log": torch.log(-parts.logits).mean()}

    net = line()
    refusal = _refusal(trainer(net, loss=loss, train_handlers=[FiniteHandler()]))
    assert refusal.subject == "B/s0/1/0, B/s0/1/1"
    assert "the loss is not finite in iteration 1; the last checkpoint is good" in refusal.rule
    assert refusal.found == "loss, log"
    assert net.weight.item() == 1.0


@pytest.mark.parametrize("clipped", [False, True], ids=["alone", "before the clip"])
def test_an_infinite_gradient_names_the_layer(trainer, line, clipped):
    def loss(parts, *_args, **_kwargs):
        return {"root": (parts.logits - parts.logits.detach()).abs().sqrt().mean()}  # 0 with slope infinity

    net = line()
    handlers = [FiniteHandler(), GradientClipHandler(0.1)] if clipped else [FiniteHandler()]
    refusal = _refusal(trainer(net, loss=loss, train_handlers=handlers))
    assert "a gradient is not finite in iteration 1" in refusal.rule
    assert refusal.found == "layer weight"
    assert net.weight.item() == 1.0


def test_a_layer_that_finds_it_first_is_quoted_and_other_errors_pass(trainer, line):
    def loss(parts, *_args, **_kwargs):
        check_finite("features", parts.logits / 0, "Lower the learning rate.")

    refusal = _refusal(trainer(line(), loss=loss, train_handlers=[FiniteHandler()]))
    assert refusal.found == "features must be finite, got 8 NaN or infinite values of 8"
    assert refusal.subject == "B/s0/1/0, B/s0/1/1"

    def broken(*_args, **_kwargs):
        raise ValueError("something else")

    with pytest.raises(ValueError, match="something else"):
        trainer(line(), loss=broken, train_handlers=[FiniteHandler()]).run()


def test_it_works_on_monais_trainer_and_names_files(line):
    image = MetaTensor(torch.full((1, 1, 2, 2), float("nan")), meta={"filename_or_obj": ["scan7.nii.gz"]})
    net = line()
    one = SupervisedTrainer(
        "cpu", 1, [{"image": image, "label": torch.zeros(1, 1, 2, 2)}], net,
        torch.optim.SGD(net.parameters(), 0.1), torch.nn.MSELoss(), train_handlers=[FiniteHandler()],
    )  # fmt: skip
    assert _refusal(one).subject == "scan7.nii.gz"


def test_the_refusal_is_found_in_what_other_libraries_make_of_it(trainer, line, images):
    data = images(1)
    data[0]["image"][:] = float("nan")
    refusal = _refusal(trainer(line(), data, train_handlers=[FiniteHandler()]))
    assert find_vmf_error(RuntimeError(f"Failed to evaluate: {refusal}")).subject == "B/s0/1/0, B/s0/1/1"
