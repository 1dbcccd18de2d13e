# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vmfseg.representation.equivariance import format_equivariance, measure_equivariance, separate
from vmfseg.representation.motions import Motion, default_motions, flip, rotate, scale, shift, turn

LABELS = {1: "disc", 2: "ring"}


class LatticeNet(nn.Module):
    """A two-scale network with stride-2 output and period 16, with circular padding and nearest upsampling."""

    def __init__(self, symmetric: bool, padding: str = "circular") -> None:
        super().__init__()
        self.padding = "constant" if padding == "zeros" else padding
        generator = torch.Generator().manual_seed(3)
        shapes = [(6, 1), (6, 6), (5, 12)]
        self.kernels = [torch.randn(*shape, 3, 3, generator=generator) for shape in shapes]
        if symmetric:
            self.kernels = [self._symmetrize(kernel) for kernel in self.kernels]

    @staticmethod
    def _symmetrize(kernel: torch.Tensor) -> torch.Tensor:
        turned = [torch.rot90(k, n, (2, 3)) for n in range(4) for k in (kernel, kernel.flip(3))]
        return torch.stack(turned).mean(dim=0)

    def _conv(self, x: torch.Tensor, index: int) -> torch.Tensor:
        return F.conv2d(F.pad(x, (1, 1, 1, 1), mode=self.padding), self.kernels[index])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = F.relu(self._conv(F.avg_pool2d(x, 2), 0))
        deep = F.interpolate(F.relu(self._conv(F.avg_pool2d(fine, 8), 1)), scale_factor=8, mode="nearest")
        logits = self._conv(torch.cat([fine, deep], dim=1), 2)
        return torch.softmax(4 * torch.sin(logits), dim=1)  # the sine keeps all channels in play without any training


@pytest.fixture(scope="module")
def data() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    maps = []
    for center in (30, 34):
        radius = torch.hypot(x - center, y - 33)
        maps.append((radius < 18).long() + (radius < 18).long() * (radius >= 10).long())
    labels = torch.stack(maps)[:, None]
    noise = torch.randn(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    return F.avg_pool2d(noise, 3, 1, 1) + 0.8 * labels, labels


def measure(net, data, motions):
    return {
        (row.test, row.motion, row.mask, row.fill): row
        for row in measure_equivariance(net, *data, LABELS, motions=motions)
    }


def test_a_symmetric_network_is_equivariant_to_flips_and_turns(data):
    motions = [flip(0), flip(1), turn(1), turn(2), turn(3)]
    rows = measure(LatticeNet(symmetric=True), data, motions)
    for motion in motions:
        row = rows["eq", motion.name, "foreground", None]
        assert row.error < 1e-5
        assert row.score > 1 - 1e-4
        assert row.agreement == 1.0
    free = measure(LatticeNet(symmetric=False), data, motions)
    assert min(free["eq", motion.name, "foreground", None].error for motion in motions) > 1e-2


def test_a_circular_network_is_exact_for_its_period_and_not_below(data):
    rows = measure(LatticeNet(symmetric=False), data, [shift(16), shift(1), shift(2)])
    assert rows["eq", "shift 16", "foreground", None].error == 0.0
    assert rows["eq", "shift 1", "foreground", None].error > 1e-3
    assert rows["eq", "shift 2", "foreground", None].error > 1e-3
    assert [rows["eq", f"shift {n}", "disc", None].family for n in (16, 2)] == ["exact", "aliasing"]


def test_identity_costs_nothing(data):
    identity = Motion("same", "exact", lambda x, stride: x)
    row = measure(LatticeNet(symmetric=False), data, [identity])["eq", "same", "foreground", None]
    assert (row.error, row.score, row.floor) == (0.0, 1.0, 0.0)


def test_shuffled_activations_score_chance(data):
    generator = torch.Generator().manual_seed(0)
    net = LatticeNet(symmetric=True)

    def shuffled(x: torch.Tensor) -> torch.Tensor:
        p = 20 * torch.log(net(x).flatten(2))
        return torch.softmax(p[:, :, torch.randperm(p.shape[2], generator=generator)], dim=1).unflatten(2, (32, 32))

    row = measure(shuffled, data, [flip(1)])["eq", "flip horizontal", "foreground", None]
    assert row.chance > 0.1
    assert abs(row.score) < 0.1


def test_a_collapsed_representation_is_undefined_not_perfect(data):
    def constant(x: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x), 4, x.shape[2] // 2, x.shape[3] // 2), 0.25)

    for row in measure_equivariance(constant, *data, LABELS, motions=[flip(1)]):
        assert (row.error, row.score) == (0.0, None)


def test_a_pointwise_network_does_not_see_what_is_separated_from_it(data):
    def pointwise(x: torch.Tensor) -> torch.Tensor:
        mean = F.avg_pool2d(x, 2)
        return torch.softmax(6 * torch.cat([mean, -mean, mean**2], dim=1), dim=1)

    rows = measure(pointwise, data, [turn(1)])
    for fill in ("local_mean", "zero"):
        assert rows["sep", "identity", "disc", fill].error == pytest.approx(0.0, abs=1e-6)
        assert rows["ce", "turn 90", "disc", fill].error == pytest.approx(0.0, abs=1e-6)
    wide = measure(LatticeNet(symmetric=True), data, [turn(1)])
    both = wide["ce", "turn 90", "disc", "zero"]
    parts = wide["eq", "turn 90", "disc", None].error + wide["sep", "identity", "disc", "zero"].error
    assert both.error > 1e-3
    assert both.interaction == pytest.approx(both.error - parts, abs=1e-9)


def test_channel_errors_sum_to_the_error(data):
    row = measure(LatticeNet(symmetric=False), data, [flip(0)])["eq", "flip vertical", "ring", None]
    assert len(row.channel_errors) == 5
    assert sum(row.channel_errors) == pytest.approx(row.error, abs=1e-6)


def test_error_equals_a_computation_by_hand(data):
    net = LatticeNet(symmetric=False)
    images, labels = data
    p, q = net(images.flip(3)), net(images).flip(3)
    inside = F.avg_pool2d((labels == 1).float(), 2) > 0.5
    core = torch.ones_like(inside)
    for dx in (-1, 0, 1):
        for dy in (-1, 0, 1):
            core &= torch.roll(inside, (dx, dy), (2, 3))
    core = core.flip(3)
    errors = [((p[b] - q[b]).abs().sum(0) / 2)[core[b, 0]].mean().item() for b in range(2)]
    row = measure(net, data, [flip(1)])["eq", "flip horizontal", "disc", None]
    assert row.error == pytest.approx(sum(errors) / 2, abs=1e-6)


def test_interpolated_motions_carry_their_floor(data):
    rows = measure(LatticeNet(symmetric=True), data, [scale(0.9), rotate(10)])
    for motion in ("scale 0.9", "rotate 10"):
        row = rows["eq", motion, "foreground", None]
        assert row.floor > 0
        assert row.n_images == 2


def test_a_mask_too_small_for_the_lattice_gives_no_figure(data):
    labels = torch.zeros_like(data[1])
    labels[:, :, 30:32, 30:32] = 1
    rows = measure_equivariance(LatticeNet(symmetric=True), data[0], labels, {1: "dot"}, motions=[flip(1)])
    assert {(row.n_images, row.error, row.score) for row in rows} == {(0, None, None)}


def test_rotation_and_scaling_go_the_right_way():
    image = torch.zeros(1, 1, 33, 33)
    image[0, 0, 16, 26] = 1.0
    turned = rotate(90).action(image, 1)
    assert torch.allclose(turned, torch.rot90(image, 1, (2, 3)), atol=1e-4) or torch.allclose(
        turned, torch.rot90(image, -1, (2, 3)), atol=1e-4
    )
    enlarged = scale(1.5).action(image, 1)
    assert int(enlarged.sum(dim=2).argmax()) == 31  # 16 + 1.5 * 10


@pytest.mark.parametrize("motion", default_motions(), ids=lambda motion: motion.name)
def test_every_motion_keeps_shape_and_inverts(motion):
    image = F.avg_pool2d(torch.randn(1, 2, 64, 64, generator=torch.Generator().manual_seed(1)), 9, 1, 4)
    moved = motion.action(image, 1)
    assert moved.shape == image.shape
    if motion.inverse is not None:
        back = motion.inverse(moved, 1)
        assert (back - image)[..., 16:-16, 16:-16].abs().mean() < 0.02


def test_local_mean_fills_with_the_surrounding():
    image = torch.full((1, 1, 40, 40), 2.0)
    image[..., 15:25, 15:25] = 9.0
    mask = (image == 9.0).float()
    assert torch.equal(separate(image, mask, "local_mean"), image)
    assert separate(image, mask, "zero").sum() == 900


def test_table_needs_the_matched_dice_and_rows_are_json(data):
    rows = measure_equivariance(LatticeNet(symmetric=True), *data, LABELS, motions=[flip(1)])
    text = format_equivariance(rows, 0.731)
    assert text.splitlines()[0] == "matched Dice 0.731; CE is undefined where chance < 0.1"
    assert len(text.splitlines()) == 3 + len(rows)
    json.dumps([row.as_dict() for row in rows], allow_nan=False)
    with pytest.raises(TypeError, match="matched_dice"):
        format_equivariance(rows)


def test_wrong_shapes_are_refused(data):
    with pytest.raises(ValueError, match="images and label_maps must have shapes"):
        measure_equivariance(LatticeNet(symmetric=True), data[0], data[1][:, :, :32], LABELS)
