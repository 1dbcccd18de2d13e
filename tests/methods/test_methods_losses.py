# SPDX-License-Identifier: Apache-2.0
"""Losses of the compared methods: terms by NumPy, their weights, and which batches give which."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from vmfseg.methods import DGNetLoss, LDDGLoss, MethodLoss, MethodParts, SAMLLoss, SDNetLoss
from vmfseg.methods.shape_terms import compactness, semi_hard_triplets


def parts_of(seed=0, batch=3, classes=4, **kwargs):
    torch.manual_seed(seed)
    logits = torch.randn(batch, classes, 8, 8, dtype=torch.float64)
    return MethodParts(logits, **kwargs)


def dice_by_numpy(logits, label, squared, softmax=False, smooth=0.1):
    logits = logits.numpy()
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) if softmax else 1 / (1 + np.exp(-logits))
    total = 0.0
    for n in range(logits.shape[1]):
        y = (label.numpy()[:, 0] == n).astype(float)
        q = p[:, n]
        bottom = (q**2).sum() + (y**2).sum() if squared else q.sum() + y.sum()
        total += 1 - (2 * (q * y).sum() + smooth) / (bottom + smooth)
    return total


@pytest.mark.parametrize(("squared", "softmax"), [(False, False), (True, False), (False, True)])
def test_dice_and_cross_entropy_by_numpy(squared, softmax):
    parts = parts_of()
    label = torch.randint(0, 4, (3, 1, 8, 8), generator=torch.manual_seed(1))
    terms = MethodLoss({"dice": 2.0, "cross_entropy": 3.0}, squared_pred=squared, softmax=softmax)(
        parts, {"image": torch.zeros(3, 1, 8, 8), "label": label}
    )
    assert float(terms["dice"]) == pytest.approx(2 * dice_by_numpy(parts.logits, label, squared, softmax), rel=1e-9)
    scores = parts.logits.numpy()
    log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    wanted = -np.take_along_axis(log_p, label.numpy(), axis=1).mean()
    assert float(terms["cross_entropy"]) == pytest.approx(3 * wanted, rel=1e-9)


def test_lddg_terms():
    torch.manual_seed(0)
    mean, log_variance, sample = (torch.randn(3, 8, 8, 8, dtype=torch.float64) for _ in range(3))
    parts = parts_of(features=sample, mean=mean, log_variance=log_variance)
    batch = {"image": torch.zeros(3, 1, 8, 8), "draw": (0, 1)}
    terms = LDDGLoss(pixels=10_000)(parts, batch)
    m, v = mean.numpy(), np.exp(log_variance.numpy())
    assert float(terms["kl"]) == pytest.approx(0.01 * 0.5 * (m**2 + v - np.log(v) - 1).mean(), rel=1e-9)
    values = np.linalg.svd(np.moveaxis(sample.numpy(), 1, -1).reshape(-1, 8), compute_uv=False)
    assert float(terms["rank"]) == pytest.approx(0.001 * values[4], rel=1e-5)  # the fifth, for four classes
    assert set(terms) == {"kl", "rank"}  # no label, no Dice
    again, other = (float(LDDGLoss(pixels=50)(parts, {**batch, "draw": (0, n)})["rank"]) for n in (1, 2))
    assert again == float(LDDGLoss(pixels=50)(parts, batch)["rank"]) != other


def test_sdnet_terms():
    image, made = torch.rand(2, 1, 8, 8, dtype=torch.float64), torch.rand(2, 1, 8, 8, dtype=torch.float64)
    mean, log_variance = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double(), torch.zeros(2, 2).double()
    parts = parts_of(
        batch=2, reconstruction=made, mean=mean, log_variance=log_variance, style=mean, style_again=mean + 0.25
    )
    terms = SDNetLoss()(parts, {"image": image})
    assert float(terms["reconstruction"]) == pytest.approx(np.abs((image - made).numpy()).mean())
    assert float(terms["style"]) == pytest.approx(0.25)
    assert float(terms["kl"]) == pytest.approx(0.01 * (0.5 * 1 + 0.5 * 4) / 2)  # half squares, mean of two images
    assert set(terms) == {"reconstruction", "style", "kl"}


def dgnet_parts():
    torch.manual_seed(0)
    content = torch.randn(3, 8, 8, 8, dtype=torch.float64)
    codes = torch.randn(3, 16, dtype=torch.float64)
    return MethodParts(
        content[:, :4], content, content.softmax(dim=1), reconstruction=torch.rand(3, 1, 8, 8).double(), mean=codes,
        log_variance=torch.zeros_like(codes), style=codes, style_again=codes + 1,
        domain_logits=torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]).double(),
    )  # fmt: skip


def test_dgnet_terms():
    parts, image = dgnet_parts(), torch.rand(3, 1, 8, 8).double()
    batch = {"image": image, "domain": ["A", "B", "B"], "draw": (0, 1)}
    loss = DGNetLoss(["A", "B"], pixels=10_000)
    terms = loss(parts, batch)
    assert set(terms) == {"reconstruction", "style", "kl", "hsic", "domain", "rank"}
    assert float(terms["style"]) == pytest.approx(0.1)
    codes = parts.style.numpy()
    assert float(terms["kl"]) == pytest.approx(0.1 * 0.5 * (codes**2).sum(1).mean())
    wanted = [math.log(2), math.log(math.e + 1), math.log(1 + math.exp(-2))]
    assert float(terms["domain"]) == pytest.approx(np.mean(wanted))
    rows = np.moveaxis(parts.activations.numpy(), 1, -1).reshape(-1, 8)
    assert float(terms["rank"]) == pytest.approx(0.1 * np.linalg.svd(rows, compute_uv=False)[4], rel=1e-5)
    label = torch.randint(0, 4, (3, 1, 8, 8), generator=torch.manual_seed(1))
    test = loss(parts, {**batch, "label": label, "meta_train": None})
    assert set(test) == {"dice", "cross_entropy", "reconstruction", "domain"}
    assert float(test["dice"]) == pytest.approx(5 * dice_by_numpy(parts.logits, label, False), rel=1e-9)


def test_saml_terms():
    label = torch.zeros(2, 1, 16, 16, dtype=torch.long)
    label[:, :, 2:8, 2:8], label[:1, :, 9:14, 9:14] = 1, 2
    torch.manual_seed(0)
    made = [
        MethodParts(torch.randn(2, 3, 16, 16, dtype=torch.float64), embeddings=torch.randn(2, 4, 16).double())
        for _ in range(2)
    ]
    regions = torch.ones(2, 4, 16, 16)
    regions[1, [1, 3]] = 0  # the second image has no class 2
    batch = {"image": torch.zeros(2, 1, 16, 16), "label": label, "regions": regions}
    loss = SAMLLoss(compact=[[1], [1, 2]])
    train = loss(made[0], batch)
    assert set(train) == {"dice"}
    assert float(train["dice"]) == pytest.approx(dice_by_numpy(made[0].logits, label, False) / 3, rel=1e-9)
    test = loss(made[1], {**batch, "meta_train": (made[0], batch)})
    p = made[1].logits.softmax(dim=1)
    wanted = (compactness(p[:, 1]).sum() + compactness(p[:, 1] + p[:, 2]).sum()) / 2
    assert float(test["compactness"]) == pytest.approx(float(wanted), rel=1e-9)
    e = torch.cat([made[0].embeddings, made[1].embeddings])
    first = semi_hard_triplets(torch.cat([e[:, 0], e[:, 2]]), torch.tensor([0] * 4 + [1] * 4))
    second = semi_hard_triplets(torch.cat([e[[0, 2], 1], e[[0, 2], 3]]), torch.tensor([0, 0, 1, 1]))
    assert float(test["smoothness"]) == pytest.approx(0.005 * float(first + second) / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LDDGLoss({"rnak": 1.0}), "Did you mean 'rank'"),
        (lambda: LDDGLoss()(parts_of(), {"image": torch.zeros(3, 1, 8, 8)}), "without mean"),
        (lambda: SDNetLoss({"clustering": 1.0}), "must name terms"),
        (lambda: DGNetLoss(["A"]), "at least two"),
        (
            lambda: DGNetLoss(["A", "B"])(dgnet_parts(), {"image": torch.zeros(3, 1, 8, 8), "domain": ["A", "B", "C"]}),
            "got 'C'",
        ),
        (
            lambda: DGNetLoss([*"ABC"])(dgnet_parts(), {"image": torch.zeros(3, 1, 8, 8), "domain": ["A", "B", "C"]}),
            "num_domains of DGNet must be at least 3",
        ),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
