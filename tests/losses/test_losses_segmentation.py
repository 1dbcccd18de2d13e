# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp

from vmfseg.losses import MaskedCrossEntropyLoss, MaskedDiceLoss

BOTH = pytest.mark.parametrize("loss", [MaskedDiceLoss(), MaskedCrossEntropyLoss()], ids=["dice", "cross-entropy"])
SOME = torch.tensor([[True, True, False, True]])  # class 2 was not annotated
ALL = torch.ones(1, 4, dtype=torch.bool)


def gradient(loss, logits, label, annotated):
    leaf = logits.clone().requires_grad_()
    loss(leaf, label, annotated).backward()
    return leaf.grad


@BOTH
def test_all_annotated_equals_no_annotation_flags(loss):
    logits, label = torch.randn(2, 4, 5, 5), torch.randint(4, (2, 1, 5, 5))
    assert torch.equal(loss(logits, label, torch.ones(2, 4)), loss(logits, label))


SPOTTED = torch.tensor([0, 1, 3, 0, 0, 1] * 6).view(1, 1, 6, 6)  # a label without the missing class


def test_dice_of_sigmoids_gives_no_gradient_to_a_missing_class_nor_to_the_background():
    grad = gradient(MaskedDiceLoss(), torch.randn(1, 4, 6, 6), SPOTTED, SOME)
    assert grad[:, [0, 2]].abs().max() == 0
    assert grad[:, [1, 3]].abs().amin(dim=(0, 2, 3)).min() > 0


def test_dice_of_a_softmax_never_pushes_a_missing_class_down_where_the_label_is_zero():
    zero = SPOTTED[0, 0] == 0
    grad = gradient(MaskedDiceLoss(softmax=True), torch.randn(1, 4, 6, 6), SPOTTED, SOME)
    assert grad[0, 2][zero].max() <= 0


def test_without_flags_dice_pushes_the_missing_class_down_everywhere():
    assert gradient(MaskedDiceLoss(), torch.randn(1, 4, 6, 6), SPOTTED, ALL)[0, 2].min() > 0


def test_dice_of_a_batch_pools_each_class_over_the_images_that_have_it():
    logits, label = torch.randn(2, 4, 5, 5), torch.randint(2, (2, 1, 5, 5))
    annotated = torch.tensor([[True, True, False, True], [True, True, True, True]])
    p = 1 / (1 + np.exp(-logits.double().numpy()))
    t = np.stack([label[:, 0].numpy() == n for n in range(4)], axis=1).astype(float)
    images = {0: [1], 1: [0, 1], 2: [1], 3: [0, 1]}
    expected = 0.0
    for n, chosen in images.items():
        a, b = p[chosen, n], t[chosen, n]
        expected += 1 - (2 * (a * b).sum() + 0.1) / ((a**2).sum() + (b**2).sum() + 0.1)
    assert MaskedDiceLoss()(logits, label, annotated).item() == pytest.approx(expected, rel=1e-5)


def test_a_class_that_no_image_has_costs_nothing():
    logits, label = torch.randn(1, 4, 4, 4), torch.zeros(1, 1, 4, 4)
    only_background = torch.tensor([[True, False, False, False]])
    assert MaskedDiceLoss()(logits, label, only_background).item() == 0


def test_cross_entropy_does_not_push_a_missing_class_down_where_the_label_is_zero():
    logits = torch.randn(1, 4, 6, 6)
    partly, fully = (gradient(MaskedCrossEntropyLoss(), logits, SPOTTED, flags) for flags in (SOME, ALL))
    zero = SPOTTED[0, 0] == 0
    assert partly[0, 2][zero].max() <= 0  # a step against the gradient never lowers it
    assert partly[0, 2][~zero].min() > 0  # what is known to be another class is not this one
    assert fully[0, 2][zero].min() > 0  # without the flags every step does
    assert partly[0, [1, 3]][:, zero].min() > 0  # annotated classes are still pushed down there


def test_cross_entropy_adds_the_probabilities_of_background_and_missing_classes():
    logits = torch.randn(2, 4, 3, 3)
    label = torch.randint(4, (2, 1, 3, 3))
    label[0][label[0] == 2] = 0
    annotated = torch.tensor([[True, True, False, True], [True, True, True, True]])
    log_p = log_softmax(logits.double().numpy(), axis=1)
    total = 0.0
    for b, i, j in np.ndindex(2, 3, 3):
        y = int(label[b, 0, i, j])
        pooled = [0, 2] if (b == 0 and y == 0) else [y]
        column = log_p[b, :, i, j]
        # classes that the image lacks share the background's probability, so no mass is lost
        total -= logsumexp(column[pooled])
    assert MaskedCrossEntropyLoss()(logits, label, annotated).item() == pytest.approx(total / 18, rel=1e-5)


def test_class_weights_are_torchs():
    logits, label, weights = torch.randn(2, 4, 5, 5), torch.randint(4, (2, 1, 5, 5)), [0.1, 1.0, 2.0, 3.0]
    log_p = log_softmax(logits.double().numpy(), axis=1)
    y = label[:, 0].numpy()
    picked = np.take_along_axis(log_p, y[:, None], axis=1)[:, 0]
    w = np.array(weights)[y]
    expected = -(w * picked).sum() / w.sum()
    assert MaskedCrossEntropyLoss(class_weights=weights)(logits, label).item() == pytest.approx(expected, rel=1e-5)


@BOTH
@pytest.mark.parametrize(
    ("label", "message"),
    [
        (torch.full((1, 1, 4, 4), 4), r"label must hold class numbers from 0 to 3, got values from 4 to 4\. Map the"),
        (torch.full((1, 1, 4, 4), 255.0), r"label must hold class numbers from 0 to 3, got values from 255 to 255"),
        (torch.full((1, 1, 4, 4), -1), r"label must hold class numbers from 0 to 3, got values from -1 to -1"),
        (torch.full((1, 1, 4, 4), 0.5), r"label must hold class numbers from 0 to 3, got fractional values\. Map"),
        (torch.full((1, 1, 4, 4), torch.nan), r"label must hold class numbers from 0 to 3, got"),
        (
            torch.zeros(1, 4, 4, 4),
            r"label must have shape \(1, 1, 4, 4\), one class number a position, got \(1, 4, 4, 4\)",
        ),
        (torch.zeros(1, 4, 4), r"label must have shape \(1, 1, 4, 4\), .* got \(1, 4, 4\)\. Pass class numbers"),
        (torch.zeros(1, 1, 8, 8), r"label must have shape \(1, 1, 4, 4\), .* got \(1, 1, 8, 8\)"),
    ],
    ids=["unknown", "255", "negative", "fractional", "nan", "one-hot", "no-channel", "other-size"],
)
def test_bad_labels_are_refused(loss, label, message):
    with pytest.raises(ValueError, match=message):
        loss(torch.zeros(1, 4, 4, 4), label)


@BOTH
@pytest.mark.parametrize("shape", [(4,), (1, 3), (2, 4), (1, 4, 1)])
def test_flags_of_another_shape_are_refused(loss, shape):
    with pytest.raises(ValueError, match=r"annotated must have shape \(1, 4\), .* got \(.*\)\. Pass None if every"):
        loss(torch.zeros(1, 4, 4, 4), torch.zeros(1, 1, 4, 4), torch.ones(shape))


@BOTH
def test_a_label_of_a_class_that_was_not_annotated_is_refused_not_infinite(loss):
    label = torch.zeros(1, 1, 4, 4)
    label[0, 0, 1, 1] = 2
    with pytest.raises(ValueError, match=r"label must hold only annotated classes, got class 2 in image 0, .* Correct"):
        loss(torch.zeros(1, 4, 4, 4), label, SOME)


def test_bad_arguments_are_named():
    with pytest.raises(
        ValueError, match=r"on must be one of logits, probabilities, got 'logit'\. Did you mean 'logits'"
    ):
        MaskedCrossEntropyLoss("logit")
    with pytest.raises(ValueError, match=r"class_weights must be one weight for each of the 4 classes, got 3\. Backgr"):
        MaskedCrossEntropyLoss(class_weights=[1.0, 1.0, 1.0])(torch.zeros(1, 4, 4, 4), torch.zeros(1, 1, 4, 4))
