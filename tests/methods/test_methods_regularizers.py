# SPDX-License-Identifier: Apache-2.0
"""Penalties against closed forms, NumPy's singular values and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from vmfseg.methods.regularizers import gaussian_kl, hsic, low_rank


def test_kl_is_torchs_closed_form():
    torch.manual_seed(0)
    mean, log_variance = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    wanted = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(torch.zeros(3, 5).double(), 1.0))
    torch.testing.assert_close(gaussian_kl(mean, log_variance), wanted.sum(dim=1).mean())
    torch.testing.assert_close(gaussian_kl(mean, log_variance, "mean"), wanted.mean())
    # by hand: mean 1, variance e: (1 + e - 1 - 1) / 2
    torch.testing.assert_close(gaussian_kl(torch.ones(1, 1), torch.ones(1, 1)), torch.tensor((np.e - 1) / 2).float())
    assert float(gaussian_kl(torch.zeros(2, 4, 3, 3), torch.zeros(2, 4, 3, 3))) == 0.0


def test_rank_is_numpys_singular_value():
    torch.manual_seed(0)
    features = torch.randn(2, 6, 5, 7, dtype=torch.float64)
    matrix = features.permute(0, 2, 3, 1).reshape(-1, 6).numpy()
    for rank in (1, 4, 5):
        wanted = np.linalg.svd(matrix, compute_uv=False)[rank]
        torch.testing.assert_close(float(low_rank(features, rank, noise=0.0)), float(wanted))


def test_rank_samples_pixels_without_replacement():
    features = torch.arange(64.0, dtype=torch.float64).view(1, 1, 8, 8) ** torch.tensor([0, 1, 2]).view(1, 3, 1, 1)
    generator = torch.Generator().manual_seed(3)
    value = low_rank(features, 2, pixels=10, generator=generator, noise=0.0)
    chosen = torch.randperm(64, generator=torch.Generator().manual_seed(3))[:10].double().numpy()
    wanted = np.linalg.svd(np.stack([chosen**0, chosen, chosen**2], axis=1), compute_uv=False)[2]
    assert float(value) == pytest.approx(wanted, rel=1e-6)


def test_one_hot_maps_of_four_classes_have_no_fifth_singular_value():
    label = torch.randint(0, 4, (2, 12, 12), generator=torch.manual_seed(0))
    maps = torch.nn.functional.one_hot(label, 8).movedim(-1, 1).double()
    assert float(low_rank(maps, 4)) < 1e-4
    assert float(low_rank(maps, 3)) > 1.0


def test_rank_gradients_of_first_and_second_order():
    torch.manual_seed(0)
    features = torch.randn(1, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda f: low_rank(f, 2), features)
    assert torch.autograd.gradgradcheck(lambda f: low_rank(f, 2), features)


def test_a_large_weight_removes_the_extra_dimension_and_keeps_the_others():
    torch.manual_seed(0)
    maps = torch.randn(1, 8, 10, 10, requires_grad=True)
    optimizer = torch.optim.Adam([maps], 0.05)
    before = torch.linalg.svdvals(maps.detach().flatten(2)[0])
    for _ in range(300):
        optimizer.zero_grad()
        low_rank(maps, 4).backward()
        optimizer.step()
    after = torch.linalg.svdvals(maps.detach().flatten(2)[0])
    assert after[4] < 0.15 * before[4]
    assert after[3] > 0.5 * before[3]


def test_hsic_by_numpy():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 3)) * 4, rng.normal(size=(7, 2)) * 4

    def kernel(z):
        return np.exp(-((z[:, None] - z[None]) ** 2).sum(-1) / 50.0)

    center = np.eye(7) - 1 / 7
    wanted = np.trace(kernel(x) @ center @ kernel(y) @ center) / 6
    assert float(hsic(torch.tensor(x), torch.tensor(y))) == pytest.approx(wanted, rel=1e-12)
    assert float(hsic(torch.tensor(x), torch.tensor(x))) > 2 * wanted
    assert float(hsic(torch.zeros(1, 3), torch.zeros(1, 2))) == 0.0


def test_refusals():
    with pytest.raises(ValueError, match="rank must be between 1 and 3"):
        low_rank(torch.zeros(1, 4, 8, 8), 4)
    with pytest.raises(ValueError, match="more than 3 pixels"):
        low_rank(torch.zeros(1, 4, 1, 2), 3)
    with pytest.raises(ValueError, match="reduction"):
        gaussian_kl(torch.zeros(1), torch.zeros(1), "max")
