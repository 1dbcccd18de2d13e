# SPDX-License-Identifier: Apache-2.0
"""GIN and IPA against the formula in NumPy and SciPy."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from vmfseg.transforms import BatchAugment, GINAugment
from vmfseg.utils import derive_seed


@pytest.fixture
def images():
    return torch.from_numpy(np.random.default_rng(0).random((3, 1, 20, 26), dtype=np.float32))


def by_hand(image, seed):
    """Repeat the draws in their order; convolve by SciPy in double precision."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "gin"))
    torch.rand(1, generator=generator)
    channels = [image.astype(np.float64)]
    for layer in range(4):
        size = 1 + 2 * int(torch.randint(2, (1,), generator=generator))
        outputs = 1 if layer == 3 else 2
        weight = torch.randn(outputs, len(channels), size, size, generator=generator).double().numpy()
        shift = torch.randn(outputs, generator=generator).double().numpy()
        channels = [
            sum(scipy.ndimage.correlate(x, w, mode="nearest") for x, w in zip(channels, kernel, strict=True)) + bias
            for kernel, bias in zip(weight, shift, strict=True)
        ]
        if layer < 3:
            channels = [np.where(x > 0, x, 0.01 * x) for x in channels]
    alpha = float(torch.rand(1, generator=generator))
    mixed = alpha * channels[0] + (1 - alpha) * image
    return mixed * np.linalg.norm(image) / np.linalg.norm(mixed)


def test_gin_is_a_random_shallow_network_at_the_norm_of_the_image(images):
    out = GINAugment(prob=1.0)({"image": images}, [5, 6, 7])["image"]
    for image, seed, got in zip(images.numpy(), (5, 6, 7), out.numpy(), strict=True):
        np.testing.assert_allclose(got[0], by_hand(image[0], seed), atol=1e-4)


def test_ipa_blends_two_contrasts_and_never_leaves_what_lies_between(images):
    smooth = GINAugment(prob=1.0, patches=True, spacing=10)
    out = smooth({"image": images}, [5, 6, 7])["image"]
    plain = GINAugment(prob=1.0)({"image": images}, [5, 6, 7])["image"]
    field = smooth._field((20, 26), torch.Generator().manual_seed(1))[0]
    assert (float(field.min()), float(field.max())) == (0.0, 1.0)
    assert float((field[:, 1:] - field[:, :-1]).abs().max()) < 0.3  # control points 10 pixels apart: smooth
    assert not torch.allclose(out, plain)
    assert torch.isfinite(out).all()


def test_a_sample_depends_on_its_seed_alone_and_labels_stay(images):
    label = torch.ones(3, 1, 20, 26, dtype=torch.uint8)

    def chain(batch, seeds):
        return GINAugment(prob=0.6)(BatchAugment()(batch, seeds), seeds)

    out = chain({"image": images, "label": label, "domain": ["A", "B", "C"]}, [1, 2, 3])
    for k in range(3):
        alone = chain({"image": images[k : k + 1]}, [1 + k])
        assert torch.equal(alone["image"], out["image"][k : k + 1])
    assert torch.equal(out["label"], BatchAugment()({"image": images, "label": label}, [1, 2, 3])["label"])
    assert out["domain"] == ["A", "B", "C"]


def test_the_probability_is_kept():
    image = torch.rand(1, 1, 8, 8).expand(400, 1, 8, 8)
    out = GINAugment(prob=0.3)({"image": image}, list(range(400)))["image"]
    changed = (out != image).flatten(1).any(dim=1).float().mean()
    assert abs(float(changed) - 0.3) < 0.08
    assert GINAugment(prob=0.0)({"image": image}, [])["image"] is image


@pytest.mark.parametrize("wrong", [{"prob": 1.5}, {"layers": 0}, {"spacing": 0}])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        GINAugment(**wrong)
