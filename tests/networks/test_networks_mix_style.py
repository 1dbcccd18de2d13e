# SPDX-License-Identifier: Apache-2.0
"""MixStyle: styles come from the batch, shapes stay, and a restarted training draws the same."""

import torch

from vmfseg.methods import SegmentationUNet
from vmfseg.networks import VMFNet
from vmfseg.networks.mix_style import MixStyle


def test_each_image_gets_statistics_between_its_own_and_those_of_another():
    x = torch.randn(6, 3, 16, 16) * torch.rand(6, 3, 1, 1) + torch.randn(6, 3, 1, 1)
    y = MixStyle(prob=1.0, alpha=0.5).train()(x)
    mean, new = x.mean(dim=(2, 3)), y.mean(dim=(2, 3))
    deviation, wide = x.std(dim=(2, 3), correction=0), y.std(dim=(2, 3), correction=0)
    shape = (x - mean[..., None, None]) / deviation[..., None, None]
    torch.testing.assert_close((y - new[..., None, None]) / wide[..., None, None], shape, atol=1e-3, rtol=1e-3)
    changed = 0
    for b in range(6):
        fits = []
        for other in range(6):
            # one share must explain the mean and the deviation of every channel
            away = torch.cat([mean[other] - mean[b], deviation[other] - deviation[b]])
            moved = torch.cat([new[b] - mean[b], wide[b] - deviation[b]])
            share = float((moved @ away) / (away @ away)) if other != b else 0.0
            fits.append(-1e-4 <= share <= 1 + 1e-4 and torch.allclose(moved, share * away, atol=1e-3))
        assert any(fits)
        changed += not fits[b]
    assert changed >= 2


def test_the_draws_go_on_after_a_restart_and_stop_in_evaluation():
    x = torch.rand(4, 1, 16, 16)
    one = VMFNet(channels=(4, 8), num_kernels=3, hidden_channels=4, seed=0, mix_style=0.8).train()
    one(x)
    other = VMFNet(channels=(4, 8), num_kernels=3, hidden_channels=4, seed=1, mix_style=0.8).train()
    other.load_state_dict(one.state_dict())
    assert [torch.equal(one(x), other(x)) for _ in range(5)] == [True] * 5
    counts = {name: int(value) for name, value in one.state_dict().items() if name.endswith("batches")}
    assert list(counts.values()) == [6, 6]
    plain = VMFNet(channels=(4, 8), num_kernels=3, hidden_channels=4, seed=0)
    plain.load_state_dict({k: v for k, v in one.state_dict().items() if k not in counts})
    assert torch.equal(one.eval()(x), plain.eval()(x))


def test_networks_with_it_can_be_scripted():
    x = torch.rand(2, 1, 16, 16)
    for net in (SegmentationUNet(channels=(4, 8, 8), seed=0, mix_style=0.5),
                VMFNet(channels=(4, 8), num_kernels=3, hidden_channels=4, seed=0, mix_style=0.5)):  # fmt: skip
        net.eval()
        assert torch.allclose(torch.jit.script(net)(x), net(x), atol=1e-6)
