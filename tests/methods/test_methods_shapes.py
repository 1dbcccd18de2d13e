# SPDX-License-Identifier: Apache-2.0
"""Shape terms of SAML against geometry, scipy and a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from vmfseg.methods.shape_terms import compactness, contours_and_rings, semi_hard_triplets

SIZE = 192


def smooth(inside):
    """A mask with an edge of some pixels; a hard edge has the length of its staircase."""
    return torch.tensor(ndimage.gaussian_filter(inside.astype(float), 2.0))[None]


def grid():
    y, x = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    return x, y


def test_compactness_orders_shapes_of_one_area():
    x, y = grid()
    area = math.pi * 30**2
    side = math.sqrt(area) / 2
    a, b = 2 * 30.0, 30.0 / 2  # an ellipse of 4 : 1
    outer = 45.0
    inner = math.sqrt(outer**2 - 30**2)
    r = np.hypot(x, y)
    shapes = {
        "disc": r < 30,
        "square": np.maximum(abs(x), abs(y)) < side,
        "ellipse": (x / a) ** 2 + (y / b) ** 2 < 1,
        "ring": (r < outer) & (r > inner),
    }
    found = {name: float(compactness(smooth(inside), length_factor=1.0)) for name, inside in shapes.items()}
    assert found["disc"] < found["square"] < found["ellipse"] < found["ring"]
    # by geometry, and the floor of 1e-4 a pixel under the square root adds to each length
    assert found["disc"] == pytest.approx(1.0, abs=0.05)
    assert found["square"] == pytest.approx((8 * side) ** 2 / (4 * math.pi * area), abs=0.1)
    assert found["ring"] == pytest.approx((2 * math.pi * (outer + inner)) ** 2 / (4 * math.pi * area), rel=0.1)


def test_compactness_by_hand():
    mask = torch.zeros(1, 4, 4, dtype=torch.float64)
    mask[0, 1, 1] = mask[0, 1, 2] = 1.0
    # differences over the 3 x 3 inner pixels: (1,1): 1, 1; (1,2): down 1; (2,1), (2,2): down -1; (1,3): right -1
    length = math.sqrt(2 + 1e-8) + 4 * math.sqrt(1 + 1e-8) + 4 * math.sqrt(1e-8)
    wanted = length**2 / (4 * math.pi * 2)
    assert float(compactness(mask, 1.0)) == pytest.approx(wanted, rel=1e-12)
    assert float(compactness(mask)) == pytest.approx(1e-4 * wanted, rel=1e-12)


def test_a_vanishing_mask_has_a_bounded_term():
    mask = torch.full((1, 32, 32), 1e-7, requires_grad=True)
    value = compactness(mask, 1.0).sum()
    value.backward()
    assert float(value) < 1.0
    assert bool(torch.isfinite(mask.grad).all())


def test_contours_and_rings_are_scipys():
    label = np.zeros((40, 40), int)
    label[5:20, 8:25] = 1
    label[22:35, 10:20] = 2
    label[0:3, 0:3] = 2  # at the border of the image
    regions = contours_and_rings(torch.tensor(label)[None, None], 3, ring=5)[0].bool().numpy()
    block, wide = np.ones((3, 3), bool), np.ones((11, 11), bool)
    for n in (1, 2):
        inside = label == n
        assert np.array_equal(regions[n - 1], inside & ~ndimage.binary_erosion(inside, block))
        assert np.array_equal(regions[n + 1], ndimage.binary_dilation(inside, wide) & ~inside)


def triplets_by_loops(points, kinds, margin):
    losses = []
    for a in range(len(points)):
        for p in range(len(points)):
            if a == p or kinds[a] != kinds[p]:
                continue
            near = ((points[a] - points[p]) ** 2).sum()
            others = [((points[a] - points[n]) ** 2).sum() for n in range(len(points)) if kinds[n] != kinds[a]]
            farther = [d for d in others if d > near]
            losses.append(max(0.0, margin + near - (min(farther) if farther else max(others))))
    return np.mean(losses)


@pytest.mark.parametrize("seed", range(5))
def test_triplets_by_loops(seed):
    rng = np.random.default_rng(seed)
    points, kinds = rng.normal(size=(9, 4)) * 3, rng.integers(0, 2, size=9)
    kinds[:3] = 0, 0, 1
    wanted = triplets_by_loops(points, kinds, 10.0)
    assert float(semi_hard_triplets(torch.tensor(points), torch.tensor(kinds), 10.0)) == pytest.approx(
        wanted, rel=1e-12
    )


def test_triplets_of_separated_groups_are_zero():
    points = torch.cat([torch.randn(4, 3), torch.randn(4, 3) + 100.0])
    assert float(semi_hard_triplets(points, torch.tensor([0] * 4 + [1] * 4))) == 0.0
    assert float(semi_hard_triplets(points[:4], torch.zeros(4))) == 0.0  # no negative
    assert float(semi_hard_triplets(points[3:5], torch.tensor([0, 1]))) == 0.0  # no pair
