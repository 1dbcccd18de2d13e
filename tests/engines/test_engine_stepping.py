# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation, precision by device, and the order of epochs."""

from __future__ import annotations

import copy

import pytest
import torch
from ignite.engine import Events

from vmfseg.engines import CrossPseudoTrainer, SemiSupervisedTrainer
from vmfseg.engines.stepping import Stepper, run_to_end
from vmfseg.handlers import GradientClipHandler


def _train(net, data, loss, **kwargs):
    trainer = SemiSupervisedTrainer("cpu", 1, data, net, torch.optim.SGD(net.parameters(), 0.5), loss, **kwargs)
    trainer.run()
    return trainer


@pytest.mark.parametrize("steps", [2, 4])
def test_accumulation_equals_the_big_batch(plain_net, mean_loss, batches, steps):
    small = batches((True,) * 4)
    big = [
        {key: torch.cat([batch[key] for batch in small[i : i + steps]]) for key in ("image", "label")}
        for i in range(0, 4, steps)
    ]
    net, twin = plain_net(), plain_net()
    _train(net, small, mean_loss, accumulation_steps=steps)
    _train(twin, big, mean_loss)
    for (name, a), b in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7, msg=name)


def test_an_epochs_end_closes_an_incomplete_accumulation(plain_net, mean_loss, batches, snapshot, same):
    net, changes = plain_net(), []
    data = batches((True,) * 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    trainer = SemiSupervisedTrainer("cpu", 2, data, net, optimizer, mean_loss, accumulation_steps=2)
    state = {"weights": snapshot(net)}

    def note(engine):
        now = snapshot(net)
        changes.append(bool(same(state["weights"], now)))
        state["weights"] = now

    trainer.add_event_handler(Events.ITERATION_COMPLETED, note)
    trainer.run()
    assert changes == [False, True, True] * 2


@pytest.mark.parametrize("cross", [False, True], ids=["one network", "two networks"])
def test_the_clip_acts_on_the_accumulated_gradient(plain_net, mean_loss, batches, cross):
    data = batches((True,) * 2)
    nets = [plain_net(0), plain_net(1)]
    for net in nets:
        net.requires_grad_(True)
    optimizers = [torch.optim.SGD(net.parameters(), 1.0) for net in nets]
    clip, kwargs = GradientClipHandler(0.01), {"accumulation_steps": 2}
    before = copy.deepcopy(nets[0])
    if cross:
        trainer = CrossPseudoTrainer(
            nets, optimizers, device="cpu", max_epochs=1, train_data_loader=data, loss_function=mean_loss,
            train_handlers=[clip], **kwargs,
        )  # fmt: skip
    else:
        trainer = SemiSupervisedTrainer(
            "cpu", 1, data, nets[0], optimizers[0], mean_loss, train_handlers=[clip], **kwargs
        )
    trainer.run()

    losses = [sum(mean_loss(before(b["image"], True), b).values()) for b in data]
    gradients = torch.autograd.grad(sum(losses) / 2, list(before.parameters()))
    for old, new, gradient in zip(before.parameters(), nets[0].parameters(), gradients, strict=True):
        torch.testing.assert_close(new, old - gradient.clamp(-0.01, 0.01), rtol=1e-5, atol=1e-7)
    assert any(bool((g.abs() > 0.01).any()) for g in gradients)


@pytest.mark.parametrize("steps", [0, -1])
def test_bad_accumulation_is_named(steps):
    with pytest.raises(ValueError, match=f"accumulation_steps must be at least 1, got {steps}"):
        Stepper(torch.device("cpu"), False, None, steps)


@pytest.mark.parametrize(
    ("device", "amp", "kwargs", "enabled", "scaled"),
    [
        pytest.param("cpu", True, {}, False, False, id="cpu needs a dtype"),
        pytest.param("cpu", True, {"dtype": torch.bfloat16}, True, False, id="cpu with dtype"),
        pytest.param("cuda", True, {}, True, True, id="cuda"),
        pytest.param("cuda", False, {}, False, False, id="off"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*CUDA is not available.*")
def test_precision_follows_the_device(device, amp, kwargs, enabled, scaled):
    stepper = Stepper(torch.device(device), amp, kwargs, 1)
    assert stepper.amp == enabled
    assert stepper.scaler.is_enabled() == (scaled and torch.cuda.is_available())


class CountingLoader:
    """Yields the epoch it was told and the position."""

    def __init__(self, length):
        self.length, self.epoch, self.seen = length, 0, []

    def __len__(self):
        return self.length

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        epoch = self.epoch
        for position in range(self.length):
            self.seen.append((epoch, position))
            yield {"image": torch.full((1, 1, 4, 4), epoch + position / 10)}


def test_every_epoch_reads_the_loader_anew_although_it_is_longer(plain_net, mean_loss):
    loader, net = CountingLoader(5), plain_net()
    trainer = SemiSupervisedTrainer(
        "cpu", 3, loader, net, torch.optim.SGD(net.parameters(), 0.1), mean_loss, epoch_length=2
    )
    trainer.run()
    assert loader.seen == [(epoch, position) for epoch in (1, 2, 3) for position in (0, 1)]


def test_a_finished_trainer_is_not_run_again(plain_net, mean_loss, batches, snapshot, same):
    net = plain_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    trainer = SemiSupervisedTrainer("cpu", 2, batches(), net, optimizer, mean_loss)
    trainer.state.epoch, trainer.state.iteration = 2, 6
    before = snapshot(net)
    run_to_end(trainer)
    assert same(before, snapshot(net)) == []
    trainer.state.epoch, trainer.state.iteration = 1, 3
    run_to_end(trainer)
    assert (trainer.state.epoch, trainer.state.iteration) == (2, 6)
    assert same(before, snapshot(net))
