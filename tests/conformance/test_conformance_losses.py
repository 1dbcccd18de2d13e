# SPDX-License-Identifier: Apache-2.0
"""Numbers of the paper and the reference code that the losses must give: groups 6 to 9 of the specification."""

import math

import numpy as np
import pytest
import torch
from monai.losses import DiceLoss

from vmfseg.losses import (
    CrossPseudoLoss,
    MaskedCrossEntropyLoss,
    MaskedDiceLoss,
    PresenceLoss,
    VMFClusteringLoss,
    VMFLoss,
)
from vmfseg.networks import VMFNet


def sigmoid(x):
    return 1 / (1 + np.exp(-x.astype(np.float64)))


# group 6 ------------------------------------------------------------------------------------------------------------


def naive_clustering(features, kernels):
    """Return 1 - max cosine, averaged over the positions of each image."""
    mu = kernels / np.linalg.norm(kernels, axis=1, keepdims=True)
    losses = []
    for image in features:
        values = []
        for position in np.ndindex(*image.shape[1:]):
            z = image[(slice(None), *position)]
            values.append(1 - max(mu @ z / np.linalg.norm(z)))
        losses.append(np.mean(values))
    return np.array(losses)


@pytest.mark.parametrize("size", [(4, 3), (2, 3, 2)], ids=["2d", "3d"])
def test_clustering_loss_equals_the_naive_loop(size):
    features, kernels = torch.randn(4, 5, *size), 3 * torch.randn(3, 5)
    expected = naive_clustering(features.double().numpy(), kernels.double().numpy())
    reference = VMFClusteringLoss("sum", one_minus=True)(features, kernels)
    assert reference.item() == pytest.approx(expected.sum(), abs=1e-5)
    assert VMFClusteringLoss()(features, kernels).item() == pytest.approx(expected.mean() - 1, abs=1e-5)
    np.testing.assert_allclose(VMFClusteringLoss("none", one_minus=True)(features, kernels), expected, atol=1e-5)


def test_the_sum_over_four_images_is_the_sum_of_the_four_single_values_and_four_times_the_mean():
    features, kernels = torch.rand(4, 5, 6, 6), torch.rand(3, 5)
    loss = VMFClusteringLoss("sum", one_minus=True)
    total = loss(features, kernels).item()
    assert total == pytest.approx(sum(loss(one[None], kernels).item() for one in features), abs=1e-5)
    assert total == pytest.approx(4 * VMFClusteringLoss("mean", one_minus=True)(features, kernels).item(), abs=1e-5)
    assert 0 <= total <= 4


@pytest.mark.parametrize("copies", [1, 3])
def test_the_mean_does_not_depend_on_the_batch_size(copies):
    features, kernels = torch.rand(2, 5, 6, 6), torch.rand(3, 5)
    once = VMFClusteringLoss()(features, kernels)
    torch.testing.assert_close(VMFClusteringLoss()(features.repeat(copies, 1, 1, 1), kernels), once)


def test_clustering_trains_the_kernels_and_never_the_encoder():
    net = VMFNet(channels=(4, 6, 8), num_kernels=3, hidden_channels=4)
    image = torch.rand(2, 1, 16, 16)
    terms = VMFLoss("unsupervised")(net(image, return_parts=True), {"image": image})
    assert set(terms) == {"clustering"}
    terms["clustering"].backward()
    assert net.kernels.weight.grad.abs().max() > 0
    others = [p.grad for name, p in net.named_parameters() if name != "kernels.weight"]
    assert others.count(None) == len(others)


# group 7 ------------------------------------------------------------------------------------------------------------


def naive_dice(probabilities, truth, squared, smooth=0.1):
    """Sum over the channels of one minus Dice, each pooled over the whole batch."""
    total = 0.0
    for n in range(probabilities.shape[1]):
        p, t = probabilities[:, n].ravel(), truth[:, n].ravel()
        below = (p**2).sum() + (t**2).sum() if squared else p.sum() + t.sum()
        total += 1 - (2 * (p * t).sum() + smooth) / (below + smooth)
    return total


@pytest.mark.parametrize("squared", [False, True], ids=["reference-code", "paper"])
@pytest.mark.parametrize("size", [(6, 5), (4, 3, 5)], ids=["2d", "3d"])
def test_dice_equals_numpy_and_monai(squared, size):
    logits, label = 2 * torch.randn(3, 4, *size), torch.randint(4, (3, 1, *size))
    truth = np.stack([(label[:, 0] == n).numpy() for n in range(4)], axis=1).astype(np.float64)
    loss = MaskedDiceLoss(squared_pred=squared)(logits, label).item()
    assert loss == pytest.approx(naive_dice(sigmoid(logits.numpy()), truth, squared), rel=1e-5)
    monai = DiceLoss(
        batch=True, reduction="sum", smooth_nr=0.1, smooth_dr=0.1, include_background=True, squared_pred=squared
    )
    assert loss == pytest.approx(monai(logits.sigmoid(), torch.from_numpy(truth).float()).item(), rel=1e-6)


def test_cross_entropy_of_the_reference_code_has_a_floor():
    label = torch.randint(4, (2, 1, 8, 8))
    perfect = torch.nn.functional.one_hot(label[:, 0], 4).movedim(-1, 1) * 200.0 - 100.0
    loss = MaskedCrossEntropyLoss("probabilities")
    assert round(loss(perfect, label).item(), 4) == 0.7437
    assert round(loss(torch.zeros(2, 4, 8, 8), label).item(), 4) == 1.3863
    assert math.log(1 + 3 / math.e) == pytest.approx(0.7437, abs=5e-5)
    assert MaskedCrossEntropyLoss()(perfect, label).item() == pytest.approx(0.0, abs=1e-6)


# group 8 ------------------------------------------------------------------------------------------------------------


def test_cross_pseudo_dice_equals_numpy():
    student, teacher = torch.randn(2, 4, 6, 5), torch.randn(2, 4, 6, 5)
    truth = (sigmoid(teacher.numpy()) > 0.5).astype(np.float64)
    expected = naive_dice(sigmoid(student.numpy()), truth, squared=False)
    assert CrossPseudoLoss(squared_pred=False)(student, teacher).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("channel", range(4))
def test_channel_c_of_the_teacher_teaches_channel_c_only(channel):
    student, teacher = torch.randn(2, 4, 6, 6), torch.randn(2, 4, 6, 6)
    other = teacher.clone()
    other[:, channel] *= -1
    gradients = []
    for teaching in (teacher, other):
        leaf = student.clone().requires_grad_()
        CrossPseudoLoss()(leaf, teaching).backward()
        gradients.append(leaf.grad)
    changed = (gradients[0] != gradients[1]).flatten(2).any(dim=2).any(dim=0)
    assert changed.tolist() == [n == channel for n in range(4)]


def test_no_gradient_reaches_the_teacher_and_swapping_the_networks_swaps_the_losses():
    a, b = torch.randn(2, 4, 6, 6, requires_grad=True), torch.randn(2, 4, 6, 6, requires_grad=True)
    loss = CrossPseudoLoss()
    pair = loss(a, b), loss(b, a)
    pair[0].backward()
    assert b.grad is None
    assert a.grad.abs().max() > 0
    assert loss(a, b).item() == pair[0].item() != pair[1].item() == loss(b, a).item()


# group 9 ------------------------------------------------------------------------------------------------------------


def test_presence_is_the_mean_absolute_difference():
    prediction, truth = torch.randn(4, 3), torch.randint(2, (4, 3))
    expected = np.abs(prediction.numpy() - truth.numpy()).mean()
    assert PresenceLoss()(prediction, truth).item() == pytest.approx(expected, rel=1e-6)
    p = sigmoid(prediction.numpy())
    entropy = -(truth.numpy() * np.log(p) + (1 - truth.numpy()) * np.log(1 - p)).mean()
    assert PresenceLoss("bce")(prediction, truth).item() == pytest.approx(entropy, rel=1e-5)


@pytest.mark.parametrize(("predicted", "given"), [((4, 1), (4, 3)), ((4, 3), (4, 1)), ((4, 3), (3,)), ((4, 1), (4,))])
def test_presence_never_broadcasts(predicted, given):
    with pytest.raises(ValueError, match=r"presence must have the shape of the prediction .* got .* Use a head with"):
        PresenceLoss()(torch.zeros(predicted), torch.zeros(given))


# weights of the paper -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "labelled", "unlabelled"),
    [
        ("unsupervised", {"clustering": 1}, {"clustering": 1}),
        ("weak", {"presence": 1, "clustering": 1}, {"presence": 1, "clustering": 1}),
        ("vmfnet", {"dice": 1, "reconstruction": 1, "clustering": 1}, {"reconstruction": 1, "clustering": 1}),
        ("vmfpseudo", {"dice": 1, "clustering": 1, "cross_pseudo": 0.1}, {"clustering": 1, "cross_pseudo": 0.1}),
        ("vmfweak", {"dice": 1, "presence": 0.5, "clustering": 1}, {"presence": 0.5, "clustering": 1}),
    ],
)
def test_terms_and_weights_of_the_five_settings(setting, labelled, unlabelled):
    net = VMFNet(channels=(4, 6, 8), num_kernels=3, hidden_channels=4, presence="masks", presence_channels=1).eval()
    image, label = torch.rand(2, 1, 64, 64), torch.randint(4, (2, 1, 64, 64))
    presence, partner = torch.randint(2, (2, 3)), torch.randn(2, 4, 64, 64)
    parts = net(image, return_parts=True)
    raw = {
        "dice": MaskedDiceLoss()(parts.logits, label),
        "reconstruction": (parts.reconstruction - image).abs().mean(),
        "clustering": VMFClusteringLoss()(parts.features, parts.kernels),
        "presence": (parts.presence - presence).abs().mean(),
        "cross_pseudo": CrossPseudoLoss()(parts.logits, partner),
    }
    loss = VMFLoss(setting)
    batch = {"image": image, "presence": presence, "partner": partner}
    for given, expected in (({"label": label}, labelled), ({}, unlabelled)):
        terms = loss(parts, {**batch, **given})
        assert set(terms) == set(expected)
        for name, weight in expected.items():
            assert terms[name].item() == pytest.approx(weight * raw[name].item(), rel=1e-5)
