# SPDX-License-Identifier: Apache-2.0
"""CrossPseudoTrainer against two steps written by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from ignite.engine import Events
from monai.engines.utils import IterationEvents
from torch.nn import functional as F

from vmfseg.engines import CrossPseudoTrainer
from vmfseg.losses import VMFLoss


def _trainer(nets, data, loss, lr=0.1, **kwargs):
    optimizers = [torch.optim.SGD(net.parameters(), lr) for net in nets]
    return CrossPseudoTrainer(
        nets, optimizers, device="cpu", max_epochs=1, train_data_loader=data, loss_function=loss, **kwargs
    )


def _pseudo_dice(student, teacher):
    """Soft Dice of every channel with the thresholded mask of the same channel, summed."""
    p, mask = torch.sigmoid(student), (torch.sigmoid(teacher) > 0.5).float()
    terms = []
    for n in range(student.shape[1]):
        overlap = (p[:, n] * mask[:, n]).sum()
        terms.append(1 - (2 * overlap + 0.1) / ((p[:, n] ** 2).sum() + mask[:, n].sum() + 0.1))
    return torch.stack(terms).sum()


def test_both_networks_learn_from_the_other_by_their_own_loss_only(vmf_net, batches, snapshot):
    nets = [vmf_net(0), vmf_net(1)]
    twins = copy.deepcopy(nets)
    batch = batches((False,))[0]
    trainer = _trainer(nets, [batch], VMFLoss({"cross_pseudo": 1.0, "reconstruction": 0.5}))
    trainer.run()

    parts = [twin.train()(batch["image"], return_parts=True) for twin in twins]
    losses = []
    for own, other in ((0, 1), (1, 0)):
        pseudo = _pseudo_dice(parts[own].logits, parts[other].logits.detach())
        losses.append(pseudo + 0.5 * F.l1_loss(parts[own].reconstruction, batch["image"]))
    for twin, loss in zip(twins, losses, strict=True):
        parameters = [p for p in twin.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)  # of its own loss alone
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter -= 0.1 * gradient
    for net, twin in zip(nets, twins, strict=True):
        for name, value in snapshot(net).items():
            torch.testing.assert_close(value, twin.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)
    torch.testing.assert_close(trainer.state.output["loss"], sum(losses).detach())


def test_no_gradient_reaches_the_teacher(vmf_net, batches):
    nets = [vmf_net(0), vmf_net(1)]
    seen = []

    class OneSided(VMFLoss):
        def forward(self, parts, batch):
            assert not batch["partner"].requires_grad
            terms = super().forward(parts, batch)
            seen.append(parts)
            return terms if len(seen) == 1 else {"nothing": 0.0 * parts.logits.detach().sum().requires_grad_()}

    trainer = _trainer(nets, batches((False,)), OneSided({"cross_pseudo": 1.0}))
    trainer.run()
    assert any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in nets[0].parameters())
    assert all(p.grad is None or not bool(p.grad.any()) for p in nets[1].parameters())


@pytest.mark.parametrize("channel", range(4))
def test_channel_c_teaches_channel_c(channel):
    """The teacher claims everything for one class; the loss falls where the student does the same, nowhere else."""
    teacher = torch.full((1, 4, 8, 8), -9.0)
    teacher[:, channel] = 9.0
    loss = VMFLoss({"cross_pseudo": 1.0}).cross_pseudo
    values = []
    for claimed in range(4):
        student = torch.full((1, 4, 8, 8), -9.0)
        student[:, claimed] = 9.0
        values.append(float(loss(student, teacher)))
    assert min(range(4), key=values.__getitem__) == channel
    assert values[channel] < 0.01 < 1.9 < min(v for n, v in enumerate(values) if n != channel)


def test_swapping_the_networks_swaps_the_losses(vmf_net, batches, snapshot, same):
    data, outputs, ends = batches((True,)), [], []
    for order in ((0, 1), (1, 0)):
        nets = [vmf_net(seed) for seed in order]
        trainer = _trainer(nets, data, VMFLoss("vmfpseudo"))
        trainer.run()
        outputs.append(trainer.state.output)
        ends.append({seed: snapshot(net) for seed, net in zip(order, nets, strict=True)})
    terms = [key for key in outputs[0] if key.endswith("'")]
    assert {"dice'", "cross_pseudo'"} <= set(terms)
    for key in terms:
        assert torch.equal(outputs[0][key], outputs[1][key[:-1]])
        assert torch.equal(outputs[0][key[:-1]], outputs[1][key])
    for seed in (0, 1):
        assert same(ends[0][seed], ends[1][seed]) == []


def test_the_first_network_is_the_one_of_monais_handlers_and_events_fire_once(vmf_net, batches):
    nets, fired = [vmf_net(0), vmf_net(1)], []
    trainer = _trainer(nets, batches((True, False)), VMFLoss("vmfpseudo"))
    for event in IterationEvents:
        trainer.add_event_handler(event, lambda _engine, name: fired.append(name), event.name)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: fired.append(sorted(engine.state.output)))
    trainer.run()
    assert trainer.network is nets[0]
    assert trainer.optimizer is trainer.optimizers[0]
    order = ["FORWARD_COMPLETED", "LOSS_COMPLETED", "BACKWARD_COMPLETED", "MODEL_COMPLETED"]
    assert fired[:4] == order
    assert fired[5:9] == order
    assert "dice" in fired[4]
    assert "dice" not in fired[9]
    assert "cross_pseudo" in fired[9]


@pytest.mark.parametrize("count", [1, 3])
def test_other_than_two_networks_are_refused(vmf_net, batches, count):
    nets = [vmf_net(i) for i in range(count)]
    with pytest.raises(ValueError, match=f"two different ones each, got {count} and {count}"):
        _trainer(nets, batches(), VMFLoss("vmfpseudo"))


def test_a_network_cannot_teach_itself(vmf_net, batches):
    net = vmf_net()
    with pytest.raises(ValueError, match="two different ones"):
        _trainer([net, net], batches(), VMFLoss("vmfpseudo"))
