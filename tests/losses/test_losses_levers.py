# SPDX-License-Identifier: Apache-2.0
"""Losses by region, consistency of views and the kernels' vote, by hand and by SciPy."""

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from vmfseg.losses import ActivationConsistencyLoss, MaskedCrossEntropyLoss, MaskedDiceLoss, VMFLoss
from vmfseg.losses.pseudo_labels import KernelVote, largest_components
from vmfseg.networks import VMFParts
from vmfseg.transforms.copy_paste import Pasted


def test_a_region_is_as_if_only_its_pixels_were_there():
    logits, label = torch.randn(1, 3, 4, 6), torch.randint(3, (1, 1, 4, 6))
    region = torch.zeros(1, 1, 4, 6)
    region[..., :2] = 1  # a region that is an image of its own
    for loss in (MaskedDiceLoss(), MaskedCrossEntropyLoss(), MaskedCrossEntropyLoss(class_weights=[0.1, 1.0, 2.0])):
        inside = loss(logits[..., :2], label[..., :2])
        assert torch.allclose(loss(logits, label, region=region), inside, atol=1e-6)
        assert torch.allclose(loss(logits, label, region=torch.ones_like(region)), loss(logits, label), atol=1e-6)
        assert float(loss(logits, label, region=torch.zeros_like(region))) == 0


def test_copy_paste_is_dice_and_cross_entropy_of_both_regions_by_their_weights():
    logits, label = torch.randn(2, 3, 8, 8, requires_grad=True), torch.randint(3, (2, 1, 8, 8))
    own = (torch.rand(2, 1, 8, 8) > 0.5).float()
    other = (1 - own) * (torch.rand(2, 1, 8, 8) > 0.3)
    some = torch.tensor([[True, True, True], [True, True, True]])
    loss = VMFLoss({"dice": 1.0}, extra_weights={"copy_paste": 2.0})
    parts = VMFParts(logits)
    terms = loss(parts, {"image": torch.zeros(2, 1, 8, 8), "pasted": Pasted(label, own, other, some, None, 0.25)})
    dice, entropy_loss = MaskedDiceLoss(), MaskedCrossEntropyLoss()
    parts_of = [dice(logits, label, region=r) + entropy_loss(logits, label, region=r) for r in (own, other)]
    assert list(terms) == ["copy_paste"]
    assert torch.allclose(terms["copy_paste"], 2 * (parts_of[0] + 0.25 * parts_of[1]))
    terms["copy_paste"].backward()
    outside = (own + other) == 0
    assert outside.any()
    assert float(logits.grad.masked_select(outside.expand_as(logits)).abs().max()) == 0


def test_consistency_is_the_mean_divergence_from_the_mean_which_has_no_gradient():
    views = [torch.rand(2, 5, 3, 4).softmax(dim=1).requires_grad_() for _ in range(3)]
    valid = torch.rand(2, 1, 3, 4) > 0.3
    loss = ActivationConsistencyLoss()(views, valid)
    arrays = np.stack([view.detach().double().numpy() for view in views])
    divergence = entropy(arrays, arrays.mean(axis=0)[None], axis=2).mean(axis=0)
    np.testing.assert_allclose(float(loss.detach()), divergence[valid[:, 0].numpy()].mean(), rtol=1e-5)
    loss.backward()
    a, mean = views[0].detach(), torch.stack(views).detach().mean(dim=0)
    expected = (a.log() - mean.log() + 1) / 3 / valid.sum() * valid
    torch.testing.assert_close(views[0].grad, expected, atol=1e-6, rtol=1e-4)
    with pytest.raises(ValueError, match="views must be"):
        ActivationConsistencyLoss()(views[:1])


def test_the_vote_counts_classes_by_kernel_and_needs_both_to_agree():
    vote = KernelVote(num_classes=3, num_kernels=4, threshold=0.9, decay=0.5)
    activations = [torch.rand(2, 4, 6, 6).softmax(dim=1) for _ in range(2)]
    labels = [torch.randint(3, (2, 1, 6, 6)) for _ in range(2)]
    table = np.zeros((3, 4))
    for a, y in zip(activations, labels, strict=True):
        vote.update(a, y)
        joint = np.array([[(a[:, j] * (y[:, 0] == c)).mean() for j in range(4)] for c in range(3)])
        table = 0.5 * table + 0.5 * joint
    np.testing.assert_allclose(vote.table.numpy(), table, rtol=1e-5)
    chance = table / table.sum(axis=0)
    probabilities = (20 * torch.rand(2, 3, 6, 6)).softmax(dim=1)
    got = vote(activations[0], probabilities)
    winner = np.einsum("nj,bjhw->bnhw", chance, activations[0].numpy()).argmax(axis=1)
    p = probabilities.numpy()
    assert np.array_equal(got[:, 0].numpy(), (p.max(axis=1) > 0.9) & (p.argmax(axis=1) == winner))
    assert 0 < int(got.sum()) < got.numel()


def test_images_that_lack_annotations_do_not_vote():
    vote = KernelVote(2, 2)
    a, y = torch.rand(2, 2, 4, 4), torch.randint(2, (2, 1, 4, 4))
    vote.update(a, y, torch.tensor([[True, False], [True, False]]))
    assert float(vote.table.abs().sum()) == 0
    vote.update(a, y, torch.tensor([[True, True], [True, False]]))
    alone = KernelVote(2, 2)
    alone.update(a[:1], y[:1])
    assert torch.equal(vote.table, alone.table)


def test_only_the_largest_component_of_each_class_stays():
    label = torch.zeros(2, 1, 8, 8, dtype=torch.long)
    label[0, 0, :3, :3], label[0, 0, 6, 6], label[0, 0, 5, 1:3] = 1, 1, 2
    label[0, 0, 3, 3] = 1  # touches the square by a corner
    expected = label.clone()
    expected[0, 0, 6, 6] = 0
    assert torch.equal(largest_components(label), expected)
