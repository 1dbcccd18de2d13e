# SPDX-License-Identifier: Apache-2.0
"""Copy-paste pixel by pixel."""

import math

import pytest
import torch

from vmfseg.transforms import BidirectionalCopyPaste
from vmfseg.transforms.copy_paste import paste_boxes


def test_boxes_have_the_area_and_the_aspect_and_lie_inside():
    boxes = paste_boxes((60, 90), range(300), area=(0.1, 0.3), aspect=(0.5, 2.0))
    for box in boxes[:, 0]:
        rows, columns = box.amax(dim=1).nonzero()[:, 0], box.amax(dim=0).nonzero()[:, 0]
        height, width = len(rows), len(columns)
        assert box.sum() == height * width == (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
        assert 0.09 < float(box.mean()) < 0.31
        assert 0.45 < (height / 60) / (width / 90) < 2.2
    covered = boxes.amax(dim=0)[0]
    assert float(covered.amax(dim=0).amin()) == float(covered.amax(dim=1).amin()) == 1  # up to every border
    assert float(boxes.mean(dim=(1, 2, 3)).std()) > 0.03


def test_images_labels_and_regions_are_pasted_alike_in_both_directions():
    own = {
        "image": torch.rand(3, 2, 12, 12),
        "label": torch.randint(1, 4, (3, 1, 12, 12)),
        "annotated": torch.tensor([[1, 1], [1, 0], [0, 1]]),
    }
    other = {"image": -torch.rand(5, 2, 12, 12), "label": torch.zeros(5, 1, 12, 12, dtype=torch.long)}
    other["trusted"] = torch.rand(5, 1, 12, 12) > 0.4
    mix = BidirectionalCopyPaste()
    image, pasted = mix(own, other, [1, 2, 3, 4, 5])
    boxes = paste_boxes((12, 12), [1, 2, 3, 4, 5])
    for k in range(5):
        inside = boxes[k, 0].bool()
        from_own = ~inside if k % 2 == 0 else inside
        for y in range(12):
            for x in range(12):
                source, part = (own, k % 3) if from_own[y, x] else (other, k)
                assert torch.equal(image[k, :, y, x], source["image"][part, :, y, x])
                assert pasted.label[k, 0, y, x] == source["label"][part, 0, y, x]
        assert torch.equal(pasted.own[k, 0].bool(), from_own)
        assert torch.equal(pasted.other[k, 0].bool(), ~from_own & other["trusted"][k, 0])
    assert torch.equal(pasted.own_annotated, own["annotated"][[0, 1, 2, 0, 1]])
    assert pasted.other_annotated is None
    assert pasted.other_weight == 0.5
    assert mix(own, other, [1, 2, 3, 4, 5], other_weight=1.0)[1].other_weight == 1.0


def test_the_box_of_the_source_is_two_thirds_of_each_side():
    box = paste_boxes((9, 12), [7], area=(4 / 9, 4 / 9), aspect=(1.0, 1.0))[0, 0]
    assert (int(box.amax(dim=1).sum()), int(box.amax(dim=0).sum())) == (6, 8)


@pytest.mark.parametrize("wrong", [{"area": (0.0, 0.4)}, {"aspect": (2.0, 1.0)}, {"other_weight": math.nan}])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        BidirectionalCopyPaste(**wrong)
