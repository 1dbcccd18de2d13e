# SPDX-License-Identifier: Apache-2.0
"""Presence labels, annotated classes, and labels that a cast would change in silence."""

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from vmfseg.transforms import AsClassesd
from vmfseg.transforms.annotation import annotated_classes
from vmfseg.transforms.annotation_text import parse_annotated
from vmfseg.transforms.presence_labels import presence_labels, tile_presence
from vmfseg.utils import VmfError


def test_presence_equals_a_search_by_hand():
    label = np.random.default_rng(0).choice(6, size=(40, 1, 5, 5), p=[0.9, 0.04, 0.03, 0.015, 0.01, 0.005])
    got = presence_labels(torch.from_numpy(label), 6)
    expected = [[bool((sample == c).any()) for c in range(1, 6)] for sample in label]
    assert got.dtype == torch.bool
    assert got.tolist() == expected
    assert presence_labels(torch.from_numpy(label[3]), 6).tolist() == expected[3]


def test_presence_of_tiles_equals_a_search_by_hand():
    label = np.random.default_rng(0).choice(3, size=(4, 1, 8, 12), p=[0.9, 0.06, 0.04])
    got = tile_presence(torch.from_numpy(label), 3, 4)
    assert got.shape == (4, 2, 2, 3)
    for b, n, i, j in np.ndindex(4, 2, 2, 3):
        assert bool(got[b, n, i, j]) == (n + 1 in label[b, 0, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4])
    with pytest.raises(ValueError, match="tile must be from 1 to the size of the image"):
        tile_presence(torch.from_numpy(label), 3, 9)


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


NAMED = {0: "background", 1: "LV", 2: "MYO", 3: "left atrium"}


@pytest.mark.parametrize(
    "value", ["1;2", "1,2", "1 2", "LV;MYO", "lv, myo", "LV 2", "[1, 2]", [1, 2], ("LV", 2), "0;1;2"]
)
def test_every_way_to_write_annotated_means_the_same(value):
    assert parse_annotated(value, NAMED) == [1, 2]


@pytest.mark.parametrize("value", ["", "  ", "[]", None, []])
def test_nothing_said_means_all_classes(value):
    assert parse_annotated(value, NAMED) is None


def test_names_of_several_words_and_wrong_names():
    assert parse_annotated("left atrium", NAMED) == [3]
    assert parse_annotated("LV;left atrium", NAMED) == [1, 3]
    with pytest.raises(ValueError, match=r"got 'MYA'. Did you mean 'MYO'"):
        parse_annotated("LV;MYA", NAMED)
    with pytest.raises(ValueError, match="got '9'"):
        parse_annotated("9", NAMED)
