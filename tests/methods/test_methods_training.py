# SPDX-License-Identifier: Apache-2.0
"""Trainers of the compared methods: they learn, resume bit for bit, and augment across domains."""

from __future__ import annotations

import copy

import pytest
import torch

from vmfseg.methods import SDNet

METHODS = ("unet", "sdnet", "lddg", "saml", "dgnet")


def state_of(made):
    return copy.deepcopy({"network": made.network.state_dict(), "optimizer": made.optimizer.state_dict()})


@pytest.mark.parametrize("method", METHODS)
def test_stopped_training_goes_on_bit_for_bit(network, trainer, batch, method):
    data = [batch(seed) for seed in range(3)]
    whole = trainer(method, network(method), data, epochs=2)
    whole.run()

    first = trainer(method, network(method), data, epochs=1)
    first.run()
    kept = state_of(first)
    torch.manual_seed(99)  # whatever the global generator does
    net = network(method, seed=5)
    net.load_state_dict(kept["network"])
    second = trainer(method, net, data, epochs=2)
    second.optimizer.load_state_dict(kept["optimizer"])
    second.load_state_dict({"epoch_length": 3, "max_epochs": 2, "iteration": 3})
    second.run()
    assert second.state.iteration == 6
    a, b = whole.network.state_dict(), second.network.state_dict()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


@pytest.mark.parametrize("method", METHODS)
def test_every_parameter_is_moved(network, trainer, batch, method):
    net = network(method)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    trainer(method, net, [batch(seed) for seed in range(2)]).run()
    assert [name for name, p in net.named_parameters() if torch.equal(p, before[name])] == []


@pytest.mark.parametrize("method", ["sdnet", "dgnet"])
def test_unlabelled_and_mixed_batches(network, trainer, batch, method):
    made = trainer(method, network(method), [batch(labeled=0)])
    made.run()
    assert {"reconstruction", "style", "kl"} <= set(made.state.output)
    assert not {"dice", "fa_dice", "meta_dice"} & set(made.state.output)
    made = trainer(method, network(method), [batch(domains="AABBCABC", labeled=5)])
    made.run()
    assert {"dice", "reconstruction"} <= set(made.state.output)
    assert made.state.output["pred"].shape == (8, 4, 16, 16)
    assert bool(torch.isfinite(made.state.output["loss"]))


def test_logits_of_the_meta_passes_keep_the_order_of_the_batch(network, trainer, batch):
    data, net = batch(), network("dgnet")
    made = trainer("dgnet", net, [data], outer_weight=0.0, step_size=1e-12)
    made.state.iteration = 1
    logits, _ = made.compute_terms(data)
    torch.testing.assert_close(logits, net(data["image"]), atol=1e-5, rtol=1e-5)  # instance norm: image by image


def test_with_a_tiny_inner_step_the_meta_test_loss_is_the_ordinary_one(network, loss, trainer, batch):
    data, net = batch(), network("dgnet")
    made = trainer("dgnet", net, [data], step_size=1e-12)
    made.state.iteration = 1
    _, terms = made.compute_terms(data)
    from vmfseg.methods.domains import meta_split, take

    part = {**take(data, meta_split(data["domain"], 0, 1)[1]), "draw": (0, 1)}
    plain = loss("dgnet")(made.run_network(part, "meta-test"), part)
    for name in ("dice", "cross_entropy", "reconstruction", "domain"):
        torch.testing.assert_close(terms[f"meta_{name}"], plain[name], atol=1e-5, rtol=1e-5)


def test_factor_augmentation_waits_and_then_happens(network, trainer, batch):
    seen = []
    made = trainer("sdnet", network("sdnet"), [batch(0), batch(1)], warm_up=1)
    from monai.engines import IterationEvents

    made.add_event_handler(IterationEvents.MODEL_COMPLETED, lambda e: seen.append("fa_dice" in e.state.output))
    made.run()
    assert seen == [False, True]
    assert {"fa_dice", "fa_cross_entropy", "fa_reconstruction", "fa_style"} <= set(made.state.output)
    assert "fa_kl" not in made.state.output


def test_augmented_images_have_own_anatomy_and_foreign_style(network, trainer, batch):
    net = network("sdnet")
    data = batch(domains="ABB")
    made = trainer("sdnet", net, [data])
    made.state.iteration = 3
    mixed = made.augmented(data, 2)
    net.eval()
    with torch.no_grad():
        anatomy = net.encode_anatomy(data["image"])[0]
        styles = net.encode_style(anatomy, data["image"])[0]
        for i, partners in ((0, (1, 2)), (1, (0,))):
            options = [net.decode(anatomy[i : i + 1], styles[j : j + 1]) for j in partners]
            assert any(torch.allclose(mixed[i : i + 1], option, atol=1e-6) for option in options)
    assert torch.equal(mixed, made.augmented(data, 2))
    alone = made.augmented(batch(domains="AAA"), 2)  # no other domain: a style of the prior
    assert alone.shape == (2, 1, 16, 16)


def test_a_frozen_generator_can_make_the_augmented_images(network, trainer, batch):
    generator = network("sdnet", seed=7)
    before = copy.deepcopy(generator.state_dict())
    made = trainer("sdnet", network("sdnet"), [batch()], generator=generator)
    made.run()
    assert isinstance(made.generator, SDNet)
    assert all(torch.equal(before[name], value) for name, value in made.generator.state_dict().items())
    assert not any(p.requires_grad for p in made.generator.parameters())


@pytest.mark.slow
def test_domain_head_learns_scanners_with_different_gains(network, trainer):
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(40):
        image = torch.rand(6, 1, 16, 16, generator=generator)
        gain = torch.tensor([0.3, 0.6, 1.0, 0.3, 0.6, 1.0]).view(6, 1, 1, 1)
        data.append({"image": image * gain, "domain": [*"ABCABC"]})
    net = network("dgnet")
    trainer("dgnet", net, data, rate=3e-3, epochs=3, second_order=False).run()
    hits = [net(b["image"], return_parts=True).domain_logits.argmax(1).tolist() == [0, 1, 2, 0, 1, 2] for b in data]
    assert sum(hits) / len(hits) > 0.9
