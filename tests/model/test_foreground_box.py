# SPDX-License-Identifier: Apache-2.0
"""The box around the foreground against a search with numpy and scipy."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import ndimage

from vmfseg.model.foreground_box import box_files, box_overlap, foreground_box


@pytest.mark.parametrize("shape", [(12, 14), (9, 8, 5)])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_box_of_the_largest_connected_part(shape, seed):
    labels = np.random.default_rng(seed).choice(4, size=shape, p=[0.88, 0.06, 0.03, 0.03])
    corner = tuple(slice(2, 5) for _ in shape)
    labels[corner] = 2
    parts, _ = ndimage.label(labels > 0, structure=np.ones([3] * len(shape)))
    largest = np.argwhere(parts == np.bincount(parts.ravel())[1:].argmax() + 1)
    assert foreground_box(labels) == [[a, b + 1] for a, b in zip(largest.min(0), largest.max(0), strict=True)]


def test_nothing_has_no_box_and_overlaps_nothing():
    assert foreground_box(np.zeros((4, 4))) is None
    assert box_overlap(None, [[0, 1], [0, 1]]) == 0


def test_overlap_equals_that_of_masks():
    a, b = np.zeros((2, 20, 20), bool)
    a[3:9, 2:15], b[5:12, 1:10] = True, True
    assert box_overlap([[3, 9], [2, 15]], [[5, 12], [1, 10]]) == pytest.approx((a & b).sum() / (a | b).sum())
    assert box_overlap([[0, 1], [0, 1]], [[5, 6], [0, 1]]) == 0


def test_the_file_covers_all_frames_of_a_cine():
    labels = np.zeros((6, 6, 2, 2), np.uint8)
    labels[1:3, 1:3, 0, 0], labels[2:5, 2:3, 0, 1] = 1, 2
    prediction = SimpleNamespace(labels=labels, scan=SimpleNamespace(header=SimpleNamespace(shape=labels.shape)))
    content = json.loads(box_files(prediction, {0: "background", 1: "LV", 2: "MYO"})["box.json"])
    assert content["box"] == [[1, 5], [1, 3], [0, 1]]
    assert (content["around"], content["shape"]) == (["LV", "MYO"], [6, 6, 2])
