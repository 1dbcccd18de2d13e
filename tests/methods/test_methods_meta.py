# SPDX-License-Identifier: Apache-2.0
"""Meta-gradients against finite differences in double precision, and what the split by domain does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from vmfseg.methods import MetaTrainer
from vmfseg.methods.domains import domains_of, from_another_domain, meta_split, take
from vmfseg.methods.meta import inner_step


class Curved(nn.Module):
    """A small smooth network, without batch norm."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 2, 1)

    def forward(self, x, return_parts=False):
        from vmfseg.methods import MethodParts

        logits = self.second(torch.tanh(self.first(x)))
        return MethodParts(logits) if return_parts else logits


class Squares:
    """A smooth loss; meta-test images have another one."""

    def __call__(self, parts, batch):
        if "meta_train" in batch:
            return {"fit": (parts.logits - 1).square().mean() + 0.1 * parts.logits.pow(4).mean()}
        return {"fit": (parts.logits - batch["label"]).square().mean()}


def objective(network, train, test, step_size, fixed=None):
    """The outer objective, written out without any trainer; ``fixed`` holds the inner gradient constant."""
    names = [name for name, _ in network.named_parameters()]
    loss = Squares()(network(train["image"], return_parts=True), train)["fit"]
    gradients = torch.autograd.grad(loss, list(network.parameters())) if fixed is None else fixed
    moved = copy.deepcopy(network)
    with torch.no_grad():
        for name, gradient in zip(names, gradients, strict=True):
            moved.get_parameter(name).sub_(step_size * gradient)
    after = Squares()(moved(test["image"], return_parts=True), {**test, "meta_train": None})["fit"]
    return float(loss.detach()) + float(after.detach()), gradients


def numerical(network, train, test, step_size, fixed=None, eps=1e-5):
    gradients = []
    for p in network.parameters():
        flat, numbers = p.data.view(-1), []
        for i in range(len(flat)):
            old = float(flat[i])
            flat[i] = old + eps
            high = objective(network, train, test, step_size, fixed)[0]
            flat[i] = old - eps
            low = objective(network, train, test, step_size, fixed)[0]
            flat[i] = old
            numbers.append((high - low) / (2 * eps))
        gradients.append(torch.tensor(numbers, dtype=torch.float64).view_as(p))
    return gradients


@pytest.mark.parametrize("second_order", [True, False])
def test_meta_gradient_is_that_of_finite_differences(second_order):
    network = Curved().double()
    generator = torch.Generator().manual_seed(1)
    batch = {
        "image": torch.rand(4, 1, 5, 5, generator=generator, dtype=torch.float64),
        "label": torch.rand(4, 1, 5, 5, generator=generator, dtype=torch.float64),
        "domain": ["A", "B", "A", "B"],
    }
    trainer = MetaTrainer(
        device="cpu", max_epochs=1, train_data_loader=[batch], network=network, loss_function=Squares(),
        optimizer=torch.optim.SGD(network.parameters(), 0.0), step_size=0.5, second_order=second_order, seed=0,
    )  # fmt: skip
    trainer.state.iteration = 1
    _, terms = trainer.compute_terms(batch)
    torch.stack(list(terms.values())).sum().backward()
    train, test = (take(batch, index) for index in meta_split(batch["domain"], 0, 1))
    value, inner = objective(network, train, test, 0.5)
    assert float(sum(terms.values()).detach()) == pytest.approx(value, rel=1e-12)
    # first order: the inner gradient stays what it is while the parameters are varied
    wanted = numerical(network, train, test, 0.5, None if second_order else inner)
    other = numerical(network, train, test, 0.5, inner if second_order else None)
    for p, right, wrong in zip(network.parameters(), wanted, other, strict=True):
        torch.testing.assert_close(p.grad, right, atol=1e-8, rtol=1e-6)
        assert not torch.allclose(p.grad, wrong, atol=1e-5)


def test_inner_step_by_hand():
    w, b = torch.tensor([3.0, 4.0], requires_grad=True), torch.tensor(1.0, requires_grad=True)
    moved = inner_step(w.square().sum(), {"w": w, "b": b}, step_size=0.1, max_norm=5.0)
    torch.testing.assert_close(moved["w"], w - 0.1 * torch.tensor([3.0, 4.0]))  # (6, 8) has norm 10, clipped to 5
    assert moved["b"] is b
    constant = inner_step(w.square().sum(), {"w": w}, step_size=0.1, second_order=False)["w"]
    torch.testing.assert_close(torch.autograd.grad(constant.sum(), w)[0], torch.ones(2))


@pytest.mark.parametrize("method", ["saml", "dgnet"])
def test_inner_step_lowers_the_meta_train_loss(network, loss, trainer, batch, method):
    net = network(method)
    made = trainer(method, net, [batch()], step_size=1e-2, second_order=False)
    data = {**batch(), "draw": (0, 1)}
    if method == "saml":
        data["regions"] = torch.ones(6, 6, 16, 16)
    made.state.iteration = 1
    objective = loss(method)

    def value(parameters=None):
        return torch.stack(list(objective(made.run_network(data, "x", parameters), data).values())).sum()

    before = value()
    moved = inner_step(before, made.inner_parameters(), 1e-3, second_order=False)
    assert float(value(moved).detach()) < float(before.detach())


@pytest.mark.parametrize("method", ["saml", "dgnet"])
def test_without_outer_weight_it_is_plain_training(network, loss, trainer, batch, method):
    data, kwargs = batch(), {"outer_weight": 0.0, "step_size": 1e-3, "optimizer": torch.optim.SGD}
    net = network(method)
    made = trainer(method, net, [data], **kwargs)
    made.run()
    train, _ = meta_split(data["domain"], 0, 1)
    plain = network(method)
    optimizer = torch.optim.SGD(plain.parameters(), 1e-3)
    other = trainer(method, plain, [data], **kwargs)
    other.state.iteration = 1
    part = {**take(data, train), "draw": (0, 1)}
    if method == "saml":
        part["regions"] = torch.zeros(len(train), 6, 16, 16)
    plain.train()
    terms = loss(method)(other.run_network(part, "meta-train"), part)
    torch.stack(list(terms.values())).sum().backward()
    optimizer.step()
    for (name, a), b in zip(net.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5, msg=name)


def test_dgnets_inner_step_leaves_the_u_net_alone(network, trainer, batch):
    made = trainer("dgnet", network("dgnet"), [batch()])
    names = list(made.inner_parameters())
    assert "content.last.weight" in names
    assert not [name for name in names if name.startswith(("content.downs", "content.ups"))]
    everything = trainer("dgnet", network("dgnet"), [batch()], inner=[])
    assert len(everything.inner_parameters()) == len(list(everything.network.parameters()))


def test_second_order_works_with_wide_filters_next_to_each_other(network, trainer, batch):
    data = {**batch(size=64)}
    data["domain"] = [*"ABCABC"]
    net = network("saml", width=64).to(memory_format=torch.channels_last)
    small = take(data, [0, 1, 2])
    made = trainer("saml", net, [small], second_order=True)
    made.run()
    assert all(bool(torch.isfinite(p).all()) for p in net.parameters())


def test_split_is_reproducible_and_visits_every_domain():
    domains = [*"ABCAB"]
    chosen = set()
    for iteration in range(30):
        train, test = meta_split(domains, 5, iteration)
        assert (train, test) == meta_split(domains, 5, iteration)
        assert sorted(train + test) == [0, 1, 2, 3, 4]
        assert len({domains[i] for i in test}) == 1
        assert not {domains[i] for i in train} & {domains[i] for i in test}
        chosen.add(domains[test[0]])
    assert chosen == {"A", "B", "C"}
    assert meta_split(["A", "A"], 0) == ([0, 1], [])


def test_partners_are_of_another_domain():
    domains = [*"AABBC"]
    for iteration in range(20):
        for own, partner in zip(domains, from_another_domain(domains, 5, 0, iteration), strict=True):
            assert partner is not None
            assert domains[partner] != own


def test_one_domain_alone_is_trained_on_as_it_is(network, trainer, batch):
    made = trainer("dgnet", network("dgnet"), [batch(domains="AAA")])
    made.run()
    assert not [name for name in made.state.output if name.startswith("meta_")]


def test_refusals(network, trainer, batch):
    with pytest.raises(ValueError, match="inner must name parameters"):
        trainer("dgnet", network("dgnet"), [batch()], inner=["nothing"])
    with pytest.raises(ValueError, match="one domain for each image"):
        domains_of({"image": torch.zeros(2, 1, 4, 4), "domain": ["A"]})
    with pytest.raises(ValueError, match="step_size must be positive"):
        trainer("saml", network("saml"), [batch()], step_size=0.0)
    with pytest.raises(ValueError, match="labelled batches only"):
        trainer("saml", network("saml"), [batch(labeled=0)]).run()
