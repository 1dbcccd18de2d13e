# SPDX-License-Identifier: Apache-2.0
"""Hidden patches, and a motion map that moves with its image."""

import pytest
import torch

from vmfseg.transforms import BatchAugment, PatchMask


def test_whole_patches_are_hidden_in_the_drawn_share_and_the_target_is_the_image():
    image = torch.rand(400, 1, 32, 32) + 0.1
    out = PatchMask(ratio=0.6, size=8)({"image": image}, seeds=range(400))
    assert torch.equal(out["target"], image)
    patches = (out["image"] == 0).float().unfold(2, 8, 8).unfold(3, 8, 8).mean(dim=(-1, -2))
    assert set(patches.unique().tolist()) == {0.0, 1.0}
    assert float(patches.mean()) == pytest.approx(0.3, abs=0.02)  # the mean of U(0, 0.6)
    assert torch.equal(out["image"][out["image"] != 0], image[out["image"] != 0])


def test_a_sample_depends_on_its_seed_alone():
    image = torch.rand(3, 1, 20, 20)
    mask = PatchMask(BatchAugment(), ratio=0.9, size=8)
    both, alone = mask({"image": image}, [1, 2, 3]), mask({"image": image[1:2]}, [2])
    assert torch.equal(both["image"][1:2], alone["image"])


@pytest.mark.parametrize("arguments", [{"ratio": 1.5}, {"size": 0}])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        PatchMask(**arguments)


def test_motion_moves_with_the_image_and_keeps_its_values():
    still = BatchAugment(rotation=(-40, 40), flip=0.5, blur_sigma=None, integer_angles=False, scale=(0.8, 1.2))
    restyling = BatchAugment(
        rotation=(-40, 40),
        flip=0.5,
        blur_sigma=None,
        integer_angles=False,
        scale=(0.8, 1.2),
        gamma=(0.4, 0.5),
        prob=1.0,
    )
    image = torch.rand(4, 1, 16, 16)
    out = restyling({"image": image, "motion": image.clone()}, seeds=[1, 2, 3, 4])
    torch.testing.assert_close(out["motion"], still({"image": image}, seeds=[1, 2, 3, 4])["image"])
    assert not torch.allclose(out["motion"], out["image"])
