# SPDX-License-Identifier: Apache-2.0
"""Copy-paste and further views in the trainers, against the parts called by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from monai.networks.nets import UNet

from vmfseg.engines import CopyPasteLever, CrossPseudoTrainer, SemiSupervisedTrainer, ViewsLever
from vmfseg.engines.levers import move
from vmfseg.losses import ActivationConsistencyLoss, VMFLoss
from vmfseg.losses.pseudo_labels import largest_components
from vmfseg.networks import network_parts
from vmfseg.transforms import BidirectionalCopyPaste, GINAugment
from vmfseg.utils import derive_seed

TERMS = {"dice": 1.0, "cross_entropy": 1.0}


def trainer(net, data, levers, epochs=1, **weights):
    loss = VMFLoss(TERMS, extra_weights=weights)
    return SemiSupervisedTrainer(
        "cpu", epochs, data, net, torch.optim.SGD(net.parameters(), 0.05), loss, levers=levers, accumulation_steps=2
    )


def outputs(engine):
    """Return the terms of every iteration."""
    from monai.engines.utils import IterationEvents

    seen = []
    engine.add_event_handler(
        IterationEvents.MODEL_COMPLETED,
        lambda e: seen.append({k: float(v) for k, v in e.state.output.items() if k in VMFLoss.TERMS}),
    )
    engine.run()
    return seen


def test_unlabelled_batches_are_mixed_with_the_labelled_one_and_the_teachers_masks(vmf_net, batches):
    net, data = vmf_net(), batches((True, False), size=4)
    twin, loss = copy.deepcopy(net), VMFLoss(TERMS, extra_weights={"copy_paste": 1.0})
    seen = outputs(trainer(net, data, [CopyPasteLever([net], warm_up=0.0, seed=3)], copy_paste=1.0))
    assert [sorted(terms) for terms in seen] == [["cross_entropy", "dice"], ["copy_paste"]]
    # by hand: the teacher is still the network as it began
    with torch.no_grad():
        masks = largest_components(twin.eval()(data[1]["image"]).argmax(dim=1, keepdim=True))
    seeds = [derive_seed(3, 2, "copy-paste", k) for k in range(4)]
    image, pasted = BidirectionalCopyPaste()(data[0], {"image": data[1]["image"], "label": masks}, seeds)
    twin.train()
    twin(data[0]["image"])  # moves the running statistics, as the first batch did
    expected = loss.copy_paste(twin(image), pasted)
    assert seen[1]["copy_paste"] == pytest.approx(float(expected), rel=1e-5)


def test_labelled_images_of_another_domain_are_pasted_first(vmf_net, batches):
    net, data = vmf_net(), batches((True, False), size=4)
    data[0]["domain"] = ["A", "A", "B", "B"]
    lever = CopyPasteLever([net], warm_up=1.0)
    engine = trainer(net, data, [lever], copy_paste=1.0)
    mixed = []
    lever.mix = _Spy(lever.mix, mixed)
    engine.run()
    ((own, other, weight),) = mixed
    assert weight == 1.0
    for k, domain in enumerate(data[0]["domain"]):
        place = next(p for p in range(4) if torch.equal(other["image"][k], own["image"][p]))
        assert data[0]["domain"][place] != domain
        assert torch.equal(other["label"][k], own["label"][place])


class _Spy:
    def __init__(self, mix, calls):
        self.mix, self.calls = mix, calls

    def __call__(self, own, other, seeds, other_weight=None):
        self.calls.append((own, other, other_weight))
        return self.mix(own, other, seeds, other_weight)


def test_any_monai_network_takes_copy_paste_and_views_but_not_the_vote(batches):
    net = UNet(spatial_dims=2, in_channels=1, out_channels=4, channels=(4, 8), strides=(2,))
    levers = [CopyPasteLever([net], warm_up=0.0, confidence=0.3), ViewsLever(GINAugment(prob=1.0))]
    seen = outputs(trainer(net, batches((True, False, True, False), size=3), levers, copy_paste=1.0, consistency=0.1))
    assert sorted(seen[1]) == ["consistency", "copy_paste"]
    assert all(value == value and value >= 0 for terms in seen for value in terms.values())
    with pytest.raises(ValueError, match="kernel_vote must be false"):
        CopyPasteLever([net], kernel_vote=True)
    with pytest.raises(ValueError, match="joint must be false"):
        levers[0].before(None, {"image": torch.zeros(1), "labeled": torch.tensor([True])})


def test_views_compare_the_activations_of_the_moved_image_with_the_moved_activations(vmf_net, batches):
    net, (batch,) = vmf_net().eval(), batches((False,), size=3)
    lever = ViewsLever(None, rotation=30.0, scale=0.2, seed=5)
    engine = trainer(net, [batch], [])
    engine.state.iteration = 7
    parts = network_parts(net, batch["image"])
    out = lever.after(engine, net, parts, batch)
    matrices = lever._matrices(3, 5, 7, "views")
    expected = network_parts(net, move(batch["image"], matrices)).activations
    torch.testing.assert_close(out["views"][1], expected)
    torch.testing.assert_close(out["views"][0], move(parts.activations, matrices))
    angle = torch.atan2(matrices[:, 1, 0], matrices[:, 0, 0])
    assert float(angle.abs().max()) <= torch.pi / 6
    assert 0 < float(out["valid"].float().mean()) <= 1
    inside = out["views"][0].sum(dim=1, keepdim=True)[out["valid"]]
    torch.testing.assert_close(inside, torch.ones_like(inside), atol=2e-3, rtol=0)


def test_a_network_of_single_pixels_is_consistent_under_motions(batches):
    """A 1 x 1 convolution commutes with motions up to interpolation: the term is near zero, and is not for 3 x 3."""
    (batch,) = batches((False,), size=2)
    smooth = {"image": torch.nn.functional.avg_pool2d(batch["image"], 5, 1, 2)}
    found = []
    for size in (1, 3):
        net = torch.nn.Conv2d(1, 3, size, padding=size // 2)
        with torch.no_grad():
            net.weight.zero_()
            net.weight[0, 0, size // 2, -1], net.weight[1, 0, -1, size // 2] = 9.0, -9.0
            net.weight[0, 0, size // 2, 0] -= 9.0 * (size > 1)  # a derivative along the rows is none after a turn
        lever = ViewsLever(None, rotation=90.0)
        engine = trainer(net, [smooth], [])
        engine.state.iteration = 1
        out = lever.after(engine, net, network_parts(net, smooth["image"]), smooth)
        found.append(float(ActivationConsistencyLoss()(out["views"], out["valid"]).detach()))
    assert found[0] < 1e-3 < found[1]


def test_labelled_batches_are_left_out_of_the_views_unless_asked_for(vmf_net, batches):
    for which, expected in (("unlabeled", [False, True]), ("all", [True, True])):
        net = vmf_net()
        levers = [ViewsLever(GINAugment(prob=1.0), batches=which)]
        seen = outputs(trainer(net, batches((True, False)), levers, consistency=1.0, clustering=1.0))
        assert ["consistency" in terms for terms in seen] == expected


def test_a_trainer_restored_between_epochs_goes_on_bit_for_bit(vmf_net, batches, same, snapshot):
    def build(net):
        levers = [
            CopyPasteLever([net], warm_up=0.3, kernel_vote=True, confidence=0.3),
            ViewsLever(GINAugment(1.0), 20.0),
        ]
        data = batches((True, False, True, False), size=3)
        return trainer(net, data, levers, epochs=3, copy_paste=1.0, consistency=0.1), levers[0]

    whole = vmf_net()
    engine, lever = build(whole)
    kept = {}
    engine.add_event_handler(
        _epoch(2),
        lambda _: kept.update(net=snapshot(whole), lever=copy.deepcopy(lever.state_dict())),
    )
    engine.run()
    resumed = vmf_net(seed=9)
    resumed.load_state_dict(kept["net"])
    engine, lever = build(resumed)
    lever.load_state_dict(kept["lever"])
    engine.state.epoch, engine.state.iteration = 2, 8
    engine.run()
    assert not same(snapshot(resumed), snapshot(whole))
    assert float(lever.vote.table.sum()) > 0


def _epoch(number):
    from ignite.engine import Events

    return Events.EPOCH_COMPLETED(once=number)


def test_two_networks_that_teach_each_other_share_mixed_images(vmf_net, batches):
    nets = [vmf_net(0, reconstruct=False), vmf_net(1, reconstruct=False)]
    engine = CrossPseudoTrainer(
        nets,
        [torch.optim.SGD(net.parameters(), 0.01) for net in nets],
        device="cpu",
        max_epochs=1,
        train_data_loader=batches((True, False), size=3),
        loss_function=VMFLoss({**TERMS, "cross_pseudo": 0.1}, extra_weights={"copy_paste": 1.0}),
        levers=[CopyPasteLever(nets, warm_up=0.0)],
    )
    engine.run()
    assert {"copy_paste", "copy_paste'", "cross_pseudo", "cross_pseudo'"} <= set(engine.state.output)
