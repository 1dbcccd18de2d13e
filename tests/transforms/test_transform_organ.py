# SPDX-License-Identifier: Apache-2.0
"""Label maps of one organ: what is kept, what is taken off, and what a missing slice does."""

import numpy as np
import pytest
import torch
from monai.transforms import KeepLargestConnectedComponent

from vmfseg.transforms import KeepOrgand
from vmfseg.transforms.organ import largest_part


@pytest.fixture
def heart():
    """Return a stack with a ventricle in its wall, a slice without any label, and a spot beside the apex."""
    stack = np.zeros((20, 20, 8), np.uint8)
    stack[4:12, 4:12, 1:7] = 2
    stack[6:10, 6:10, 1:7] = 1
    organ = stack.copy()
    stack[16:18, 16:18, 0] = 1
    return stack, organ


def test_a_spot_elsewhere_is_taken_off_and_classes_stay(heart):
    stack, organ = heart
    np.testing.assert_array_equal(largest_part(stack), organ)
    np.testing.assert_array_equal(largest_part(organ), organ)


def test_without_reach_it_is_the_largest_component_of_monai(heart):
    stack, _ = heart
    stack[:, :, 3] = 0
    expected = KeepLargestConnectedComponent(independent=False)(torch.from_numpy(stack)[None])[0]
    np.testing.assert_array_equal(largest_part(stack, 0) > 0, expected.numpy() > 0)


@pytest.mark.parametrize(("empty", "kept"), [((3,), True), ((3, 4), True), ((2, 3, 4), False)])
def test_slices_without_a_label_do_not_cut_the_organ(heart, empty, kept):
    _, organ = heart
    organ[:, :, list(empty)] = 0
    assert (largest_part(organ) == organ).all() == kept


def test_the_transform_keeps_type_and_shape_and_leaves_its_input(heart):
    stack, organ = heart
    label = torch.from_numpy(stack)[None]
    found = KeepOrgand("pred", allow_missing_keys=True)({"pred": label, "other": 1})
    assert found["other"] == 1
    assert found["pred"].dtype == torch.uint8
    np.testing.assert_array_equal(found["pred"][0].numpy(), organ)
    assert label[0, 16, 16, 0] == 1
    assert not KeepOrgand("pred")({"pred": torch.zeros(1, 3, 3, 2)})["pred"].any()
    with pytest.raises(ValueError, match="reach must be"):
        KeepOrgand("pred", reach=-1)
