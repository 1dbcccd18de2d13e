# SPDX-License-Identifier: Apache-2.0
"""Presence labels, annotated classes, and labels that a cast would change in silence."""

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from vmfseg.transforms import AsClassesd
from vmfseg.transforms.annotation import annotated_classes, presence_labels
from vmfseg.utils import VmfError


def test_presence_equals_a_search_by_hand():
    label = np.random.default_rng(0).choice(6, size=(40, 1, 5, 5), p=[0.9, 0.04, 0.03, 0.015, 0.01, 0.005])
    got = presence_labels(torch.from_numpy(label), 6)
    expected = [[bool((sample == c).any()) for c in range(1, 6)] for sample in label]
    assert got.dtype == torch.bool
    assert got.tolist() == expected
    assert presence_labels(torch.from_numpy(label[3]), 6).tolist() == expected[3]


BAD = [
    pytest.param(torch.zeros(4, 8, 8), 4, r"label must have shape \(1, H, W\)", id="one-hot"),
    pytest.param(torch.full((1, 2, 2), 4), 4, r"label must be in 0 ... 3, got \[4\]", id="outside"),
    pytest.param(torch.full((1, 2, 2), -1), 4, r"label must be in 0 ... 3, got \[-1\]", id="negative"),
    pytest.param(torch.zeros(1, 2, 2), 1, "num_classes must be at least 2, got 1", id="one-class"),
]


@pytest.mark.parametrize(("label", "num_classes", "message"), BAD)
def test_presence_refuses(label, num_classes, message):
    with pytest.raises(ValueError, match=message):
        presence_labels(label, num_classes)


@pytest.mark.parametrize(
    ("annotated", "expected"),
    [
        (None, [True] * 4),
        ([1, 2], [True, True, True, False]),
        ([], [True, False, False, False]),
        ([3], [True, False, False, True]),
    ],
    ids=str,
)
def test_annotated_classes(annotated, expected):
    assert annotated_classes(annotated, 4).tolist() == expected


def test_annotated_class_out_of_range():
    with pytest.raises(ValueError, match=r"annotated must hold classes 0 ... 3, got 4"):
        annotated_classes([4], 4)


WRONG = [
    pytest.param(1.6, 4, "1.6", id="fraction"),
    pytest.param(-1.0, None, "-1", id="negative"),
    pytest.param(300.0, None, "300", id="above-uint8"),
    pytest.param(7.0, 4, "7", id="outside-classes"),
    pytest.param(float("nan"), 4, "nan", id="nan"),
]


@pytest.mark.parametrize(("value", "num_classes", "shown"), WRONG)
def test_labels_that_a_cast_would_change_are_refused(value, num_classes, shown):
    label = MetaTensor(torch.zeros(1, 3, 3, 2), meta={"filename_or_obj": "mask.nii.gz"})
    label[0, 1, 1] = value
    with pytest.raises(VmfError, match=rf"VMF153[\s\S]*mask\.nii\.gz[\s\S]*{shown} \(") as caught:
        AsClassesd("label", num_classes)({"label": label})
    assert str(caught.value).count("\n") <= 3


def test_good_labels_are_cast_and_keep_their_metadata():
    label = MetaTensor(torch.tensor([[[0.0, 3.0]]]), meta={"filename_or_obj": "mask.nii.gz"})
    out = AsClassesd("label", 4)({"label": label})["label"]
    assert out.dtype == torch.uint8
    assert out.tolist() == [[[0, 3]]]
    assert out.meta["filename_or_obj"] == "mask.nii.gz"
