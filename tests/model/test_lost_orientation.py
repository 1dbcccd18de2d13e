# SPDX-License-Identifier: Apache-2.0
"""Scans without orientation: the way back of every turn, and the choice by what the network finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vmfseg.model.deploy import Explained
from vmfseg.model.lost_orientation import Turn, choose_turn, is_orientation_lost

TURNS = [Turn(quarters, mirrored) for mirrored in (False, True) for quarters in range(4)]


@pytest.mark.parametrize("turn", TURNS, ids=str)
def test_a_turn_is_that_of_numpy_and_has_a_way_back(turn):
    maps = torch.rand(2, 3, 6, 6)
    oracle = maps.numpy()[:, :, ::-1] if turn.mirrored else maps.numpy()
    np.testing.assert_array_equal(turn(maps).numpy(), np.rot90(oracle, turn.quarters, (2, 3)))
    assert torch.equal(turn.undo(turn(maps)), maps)
    back = turn.undo_parts(Explained(turn(maps), None, turn(maps[:, :1])))
    assert torch.equal(back.logits, maps)
    assert back.activations is None
    assert torch.equal(back.log_likelihood, maps[:, :1])


def corner_finder(image):
    """Return logits of a network that knows bright pixels only where they are in the upper left corner."""
    bright = image.clone()
    bright[..., 8:, :] = 0
    bright[..., :, 8:] = 0
    return torch.cat([torch.full_like(bright, 0.5), bright], dim=1) * 8


@pytest.mark.parametrize("turn", TURNS, ids=str)
def test_the_turn_that_shows_most_is_chosen(turn):
    upright = torch.zeros(5, 1, 16, 16)
    upright[..., 1:3, 2:7] = 1.0  # seen from one side only
    upright[..., 9:, 9:] = 0.7
    lost = turn.undo(upright)
    found = choose_turn(lost, corner_finder)
    scores = {str(t): float((corner_finder(t(lost)).argmax(1) > 0).sum()) for t in TURNS}
    assert scores[str(found)] == max(scores.values())


def test_the_header_holds_unless_another_turn_is_clearly_better():
    everywhere = torch.ones(3, 1, 16, 16)
    assert choose_turn(everywhere, corner_finder) == Turn()
    assert choose_turn(torch.zeros(3, 1, 16, 16), corner_finder) == Turn()
    assert choose_turn(torch.rand(3, 1, 16, 24), corner_finder).quarters in (0, 2)


def test_an_affine_along_the_axes_has_lost_its_orientation():
    angle = np.deg2rad(1.0)
    tilted = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    assert is_orientation_lost(np.eye(4))
    assert is_orientation_lost(np.diag([-1.2, 1.2, 8.0, 1.0]))
    assert is_orientation_lost(np.array([[0, 0, 8.0], [1.2, 0, 0], [0, 1.2, 0]]))
    assert not is_orientation_lost(tilted * [1.2, 1.2, 8.0])
