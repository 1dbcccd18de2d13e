# SPDX-License-Identifier: Apache-2.0
"""SemiSupervisedTrainer against MONAI's own trainer and against steps written by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from ignite.engine import Events
from monai.engines import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.networks.nets import UNet
from torch.nn import functional as F

from vmfseg.engines import SemiSupervisedTrainer
from vmfseg.losses import VMFLoss

EVENTS = (
    Events.STARTED,
    Events.EPOCH_STARTED,
    Events.ITERATION_STARTED,
    IterationEvents.FORWARD_COMPLETED,
    IterationEvents.LOSS_COMPLETED,
    IterationEvents.BACKWARD_COMPLETED,
    IterationEvents.MODEL_COMPLETED,
    Events.ITERATION_COMPLETED,
    Events.EPOCH_COMPLETED,
    Events.COMPLETED,
)


def _log_events(trainer):
    seen = []
    for event in EVENTS:
        trainer.add_event_handler(event, lambda engine, name: seen.append((name, engine.state.iteration)), event.name)
    return seen


def test_events_fire_in_the_order_of_monais_trainer(plain_net, mean_loss, batches):
    data = batches((True, True))
    logs = []
    for cls, loss in (
        (SupervisedTrainer, lambda y, t: F.mse_loss(y[:, :1], t.float())),
        (SemiSupervisedTrainer, mean_loss),
    ):
        net = plain_net()
        trainer = cls("cpu", 2, data, net, torch.optim.SGD(net.parameters(), 0.1), loss)
        logs.append(_log_events(trainer))
        trainer.run()
    assert logs[0] == logs[1]
    assert len(logs[0]) == 1 + 2 * (2 + 2 * 6) + 1


@pytest.mark.parametrize("labeled", [True, False], ids=["labeled", "unlabeled"])
def test_one_step_equals_a_step_written_by_hand(vmf_net, batches, snapshot, same, labeled):
    net = vmf_net()
    twin = copy.deepcopy(net)
    batch = batches((labeled,))[0]
    trainer = SemiSupervisedTrainer("cpu", 1, [batch], net, torch.optim.SGD(net.parameters(), 0.1), VMFLoss("vmfnet"))
    trainer.run()

    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    twin.train()
    features = twin.encoder(batch["image"])
    activations = twin.kernels(features)
    logits = twin.head(activations)
    image = twin.composer(activations, twin.kernels.unit_kernels())
    unit = F.normalize(twin.kernels.weight, dim=1)
    cosine = torch.einsum("jf,bfp->bjp", unit, F.normalize(features.detach().flatten(2), dim=1))
    loss = (batch["image"] - image).abs().mean() - cosine.amax(dim=1).mean()
    if labeled:
        truth = F.one_hot(batch["label"][:, 0], 4).movedim(-1, 1).float()
        p = torch.sigmoid(logits)
        overlap, size = (p * truth).sum((0, 2, 3)), (p**2).sum((0, 2, 3)) + truth.sum((0, 2, 3))
        loss = loss + (1 - (2 * overlap + 0.1) / (size + 0.1)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not labeled:
        assert all(p.grad is None for p in twin.head.parameters())
    for name, value in snapshot(net).items():
        torch.testing.assert_close(value, twin.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)
    torch.testing.assert_close(trainer.state.output["loss"], loss.detach())
    moved = set(same(snapshot(net), snapshot(vmf_net())))
    assert any(n.startswith("encoder.") for n in moved)
    assert any(n.startswith("head.") and n.endswith("weight") for n in moved) == labeled


def test_an_unlabeled_batch_has_no_dice_and_no_label(vmf_net, batches):
    net, outputs = vmf_net(), []
    data = batches((True, False))
    trainer = SemiSupervisedTrainer("cpu", 1, data, net, torch.optim.SGD(net.parameters(), 0.1), VMFLoss("vmfnet"))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: outputs.append(dict(engine.state.output)))
    trainer.run()
    first, second = outputs
    assert {"dice", "label", "reconstruction", "clustering", "loss", "pred", "image"} <= first.keys()
    assert second.keys() == first.keys() - {"dice", "label"}
    for output in outputs:
        terms = sum(output[k] for k in ("dice", "reconstruction", "clustering") if k in output)
        torch.testing.assert_close(output["loss"], terms)
        assert not output["loss"].requires_grad


def test_a_joint_batch_uses_the_label_of_its_first_images_only(vmf_net, batches):
    labeled, unlabeled = batches((True, False))
    joint = {"image": torch.cat([labeled["image"], unlabeled["image"]]), "label": labeled["label"]}
    net = vmf_net()
    twin = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    trainer = SemiSupervisedTrainer("cpu", 1, [joint], net, optimizer, VMFLoss({"dice": 1.0}))
    trainer.run()
    logits = twin.train()(joint["image"])[:2]
    truth = F.one_hot(joint["label"][:, 0], 4).movedim(-1, 1).float()
    p = torch.sigmoid(logits)
    dice = 1 - (2 * (p * truth).sum((0, 2, 3)) + 0.1) / ((p**2).sum((0, 2, 3)) + truth.sum((0, 2, 3)) + 0.1)
    torch.testing.assert_close(trainer.state.output["dice"], dice.sum().detach())


def test_a_plain_monai_loader_gives_supervised_training(vmf_net):
    from monai.data import DataLoader, Dataset

    generator = torch.Generator().manual_seed(1)
    rows = [
        {"image": torch.rand(1, 16, 16, generator=generator), "label": torch.ones(1, 16, 16, dtype=torch.long)}
        for _ in range(4)
    ]
    net, losses = vmf_net(), []
    loader = DataLoader(Dataset(rows), batch_size=2)
    trainer = SemiSupervisedTrainer(
        "cpu", 15, loader, net, torch.optim.Adam(net.parameters(), 0.01), VMFLoss({"cross_entropy": 1.0})
    )
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: losses.append(float(engine.state.output["loss"])))
    trainer.run()
    assert losses[-1] < 0.8 * losses[0]
    assert trainer.state.iteration == 30


def test_a_loss_without_any_term_is_refused(vmf_net, batches):
    net = vmf_net()
    trainer = SemiSupervisedTrainer(
        "cpu", 1, batches((False,)), net, torch.optim.SGD(net.parameters(), 0.1), VMFLoss({"dice": 1.0})
    )
    with pytest.raises(ValueError, match="at least one term for every batch, got none"):
        trainer.run()


def test_all_of_the_batch_reaches_the_loss(plain_net, batches):
    batch = {**batches((True,))[0], "presence": torch.ones(2, 3, dtype=torch.bool), "weight": torch.ones(2)}
    seen = {}

    def loss(parts, given):
        seen.update(given)
        return {"fit": parts.logits.mean()}

    net = plain_net()
    SemiSupervisedTrainer("cpu", 1, [batch], net, torch.optim.SGD(net.parameters(), 0.1), loss).run()
    assert seen.keys() == batch.keys()
    assert torch.equal(seen["presence"], batch["presence"])
    assert seen["sample"] == batch["sample"]


def test_a_network_of_monai_learns_from_labelled_batches(batches):
    """Logits alone: the terms that need no part apply, and equal a step of MONAI's own trainer."""
    net = UNet(2, 1, 4, (4, 8), (2,), norm=None)
    twin = copy.deepcopy(net)
    batch = batches((True,))[0]
    loss = VMFLoss({"cross_entropy": 1.0})
    SemiSupervisedTrainer("cpu", 1, [batch], net, torch.optim.SGD(net.parameters(), 0.1), loss).run()
    SupervisedTrainer(
        "cpu", 1, [batch], twin, torch.optim.SGD(twin.parameters(), 0.1),
        lambda logits, label: F.cross_entropy(logits, label[:, 0]),
    ).run()  # fmt: skip
    for (name, ours), theirs in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=name)


class Doubled(SemiSupervisedTrainer):
    """A method with an objective of its own."""

    def compute_terms(self, batch):
        logits = self.network(batch["image"])
        return logits, {"own": 2 * logits.square().mean()}


def test_a_method_overrides_the_terms_and_inherits_the_rest(plain_net, batches, snapshot, same):
    net, outputs = plain_net(), []
    before = snapshot(net)
    trainer = Doubled(
        "cpu", 1, batches((False,) * 4), net, torch.optim.SGD(net.parameters(), 0.1), None, accumulation_steps=2
    )
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: outputs.append(dict(engine.state.output)))
    fired = _log_events(trainer)
    trainer.run()
    assert [sorted(output) for output in outputs] == [["image", "loss", "own", "pred"]] * 4
    assert torch.equal(outputs[0]["loss"], outputs[0]["own"])
    assert torch.equal(outputs[0]["own"], outputs[0]["own"].detach())
    assert same(before, snapshot(net))
    assert len(fired) == 1 + 2 + 4 * 6 + 1
