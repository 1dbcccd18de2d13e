# SPDX-License-Identifier: Apache-2.0
"""Batched augmentation against per-slice oracles, and its randomness against its definition."""

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import torch
from monai.transforms import Rotate

from vmfseg.transforms import BatchAugment

STRONG = {
    "translate": 10, "scale": (0.85, 1.15), "gamma": (0.6, 1.6), "contrast": (0.7, 1.3), "brightness": 0.1,
    "bias_field": 0.3, "fourier": 0.5, "noise": 0.05,
}  # fmt: skip
STILL = {"rotation": 0.0, "flip": 0.0, "blur_sigma": None}


def batch(size=(33, 40), count=4, seed=0):
    rng = np.random.default_rng(seed)
    image = scipy.ndimage.gaussian_filter(rng.random((count, 1, *size)), (0, 0, 1, 1)).astype(np.float32)
    label = np.zeros((count, 1, *size), np.uint8)
    label[:, :, 8:20, 10:30], label[:, :, 12:16, 14:22] = 1, 3
    return {"image": torch.from_numpy(image), "label": torch.from_numpy(label)}


@pytest.mark.parametrize("size", [(32, 32), (33, 40), (41, 28)], ids=str)
@pytest.mark.parametrize("angle", [0, 1, 17, 45, 90, -30])
def test_rotation_equals_scipy_and_monai_slice_by_slice(angle, size):
    data = batch(size)
    out = BatchAugment(rotation=(angle, angle), flip=0.0, blur_sigma=None)(data, range(4))
    for k in range(4):
        image, label = data["image"][k, 0].numpy(), data["label"][k, 0].numpy()
        expected = scipy.ndimage.rotate(image, angle, reshape=False, order=1, mode="grid-constant", cval=0.0)
        np.testing.assert_allclose(out["image"][k, 0].numpy(), expected, atol=2e-4)
        classes = scipy.ndimage.rotate(label, angle, reshape=False, order=0, mode="grid-constant", cval=0)
        assert (out["label"][k, 0].numpy() != classes).mean() < 0.02  # ties at pixel borders
        monai = Rotate(-np.deg2rad(angle), keep_size=True, padding_mode="zeros")(data["image"][k])
        np.testing.assert_allclose(out["image"][k, 0].numpy(), monai[0].numpy(), atol=2e-4)


@pytest.mark.parametrize("rotation", [0.0, (90, 90)], ids=["exact-path", "grid-path"])
def test_flips_are_flips(rotation):
    data = batch((32, 32), count=64)
    out = BatchAugment(rotation=rotation, flip=0.5, blur_sigma=None)(data, range(64))
    turned = torch.rot90(data["image"], 1 if rotation else 0, (2, 3))
    kinds = []
    for k in range(64):
        options = [turned[k], turned[k].flip(1), turned[k].flip(2), turned[k].flip(1, 2)]
        errors = [float((out["image"][k] - option).abs().max()) for option in options]
        assert min(errors) < 1e-4
        kinds.append(int(np.argmin(errors)))
    assert set(kinds) == {0, 1, 2, 3}


def test_label_stays_on_its_image():
    """Draw the label into the image: after augmentation the two still agree but for the blurred border."""
    data = batch((64, 64), count=32)
    data["label"] = (data["label"] > 0).to(torch.uint8)
    data["image"] = data["label"].float()
    moved = {key: STRONG[key] for key in ("translate", "scale")}
    out = BatchAugment(**moved, blur_sigma=(0.25, 0.5))(data, range(32))
    assert out["label"].dtype == torch.uint8
    disagree = ((out["image"] > 0.5) != (out["label"] > 0)).float().mean(dim=(1, 2, 3))
    assert disagree.max() < 0.01


def test_translation_moves_whole_pixels_within_its_bound():
    data = batch((40, 40), count=200)
    data["image"] = torch.zeros(200, 1, 40, 40)
    data["image"][:, 0, 20, 20] = 1.0
    out = BatchAugment(**{**STILL, "translate": 6})(data, range(200))["image"]
    assert (out.amax(dim=(1, 2, 3)) > 0.999).all()
    places = out.flatten(1).argmax(dim=1)
    shifts = torch.stack([places // 40 - 20, places % 40 - 20])
    assert set(shifts[0].tolist()) == set(shifts[1].tolist()) == set(range(-6, 7))


def test_scale_magnifies():
    data = batch((41, 41), count=1)
    data["image"] = torch.zeros(1, 1, 41, 41)
    data["image"][0, 0, 15:26, 15:26] = 1.0  # 11 pixels wide
    out = BatchAugment(**{**STILL, "scale": (2.0, 2.0)})(data, [0])["image"][0, 0]
    assert int((out[20] > 0.5).sum()) in (21, 22, 23)


class Angles(BatchAugment):
    def angles(self, count):
        from vmfseg.transforms.augment import _draw

        generators = [torch.Generator().manual_seed(k * 7919 + 1) for k in range(count)]
        draws = _draw(generators)
        turn = self._matrices(draws, torch.zeros(count, 2, dtype=torch.bool))
        return torch.rad2deg(torch.atan2(turn[:, 0, 1], turn[:, 0, 0])), draws


def test_angles_are_whole_and_uniform_from_0_to_90():
    angles, _ = Angles().angles(9100)
    whole = angles.round()
    torch.testing.assert_close(angles, whole, atol=1e-3, rtol=0)
    counts = np.bincount(whole.int().numpy(), minlength=91)
    assert len(counts) == 91
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_any_angle_is_uniform_too():
    angles, _ = Angles(integer_angles=False).angles(3000)
    assert scipy.stats.kstest(angles.numpy() / 90, "uniform").pvalue > 1e-3


def test_flips_and_blur_have_the_stated_distribution():
    _, draws = Angles().angles(4000)
    for column in (draws.flip[:, 0], draws.flip[:, 1]):
        assert scipy.stats.binomtest(int((column < 0.5).sum()), 4000).pvalue > 1e-3
    impulse = torch.zeros(500, 1, 9, 9)
    impulse[:, 0, 4, 4] = 1.0
    out = BatchAugment(rotation=0.0, flip=0.0)({"image": impulse}, range(500))["image"]
    ratio = (out[:, 0, 4, 5] / out[:, 0, 4, 4]).double()  # exp(-1 / (2 sigma^2))
    sigma = torch.sqrt(-0.5 / ratio.log())
    assert 0.25 <= sigma.min() <= sigma.max() <= 1.2501
    assert scipy.stats.kstest((sigma.numpy() - 0.25), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("augment", [BatchAugment(), BatchAugment(**STRONG)], ids=["reference", "strong"])
def test_a_sample_does_not_depend_on_its_batch(augment):
    data, seeds = batch(count=6), [11, 12, 13, 14, 15, 16]
    whole = augment(data, seeds)
    for pick in ([3], [5, 0], [4, 2, 1]):
        part = augment({key: value[pick] for key, value in data.items()}, [seeds[k] for k in pick])
        assert torch.equal(part["image"], whole["image"][pick])
        assert torch.equal(part["label"], whole["label"][pick])


def test_one_effect_does_not_change_the_draws_of_another():
    data, seeds = batch(), range(4)
    plain = BatchAugment()(data, seeds)
    noisy = BatchAugment(noise=0.05, gamma=(0.5, 2.0))(data, seeds)
    assert torch.equal(plain["label"], noisy["label"])
    assert not torch.equal(plain["image"], noisy["image"])


EFFECTS = [
    pytest.param({"gamma": (0.5, 2.0)}, id="gamma"),
    pytest.param({"contrast": (0.5, 1.5)}, id="contrast"),
    pytest.param({"brightness": 0.2}, id="brightness"),
    pytest.param({"bias_field": 0.4}, id="bias"),
    pytest.param({"fourier": 0.8}, id="fourier"),
    pytest.param({"fourier": 0.8, "fourier_mode": "mix"}, id="fourier-mix"),
    pytest.param({"noise": 0.1}, id="noise"),
]


@pytest.mark.parametrize("effect", EFFECTS)
def test_each_strong_effect_changes_about_half_of_the_images_and_no_label(effect):
    data = batch(count=60)
    out = BatchAugment(**STILL, **effect)(data, range(60))
    changed = ((out["image"] - data["image"]).abs().amax(dim=(1, 2, 3)) > 1e-4).float().mean()
    assert 0.25 < changed < 0.75
    assert torch.equal(out["label"], data["label"])
    assert 0 <= out["image"].min() <= out["image"].max() <= 1
    never = BatchAugment(**STILL, **effect, prob=0.0)(data, range(60))["image"]
    torch.testing.assert_close(never, data["image"], atol=1e-5, rtol=0)


def test_the_input_is_left_alone_and_other_keys_pass():
    data = batch()
    before = {key: value.clone() for key, value in data.items()}
    out = BatchAugment(**STRONG)({**data, "domain": ["A"] * 4}, range(4))
    assert out["domain"] == ["A"] * 4
    assert all(torch.equal(data[key], before[key]) for key in before)


def test_an_unlabeled_batch_stays_unlabeled():
    assert set(BatchAugment()({"image": batch()["image"]}, range(4))) == {"image"}


BAD = [
    pytest.param({"flip": 1.5}, "flip must be a probability from 0 to 1, got 1.5", id="flip"),
    pytest.param({"blur_sigma": (1.0, 0.5)}, "blur_sigma must be", id="blur"),
    pytest.param({"blur_kernel": 4}, "blur_kernel must be odd", id="kernel"),
    pytest.param({"rotation": float("nan")}, "rotation must be a largest angle", id="rotation"),
    pytest.param({"rotation": (0.2, 0.8)}, "must span a whole number", id="no-whole-angle"),
    pytest.param({"scale": (0.0, 1.0)}, "scale must be", id="scale"),
    pytest.param({"noise": -1.0}, r"noise must be zero \(off\) or positive, got -1.0", id="noise"),
    pytest.param({"fourier_mode": "mixx"}, "Did you mean 'mix'", id="mode"),
    pytest.param({"fourier": 2.0, "fourier_mode": "mix"}, "fourier must be at most 1", id="mix"),
]


@pytest.mark.parametrize(("kwargs", "message"), BAD)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        BatchAugment(**kwargs)


@pytest.mark.parametrize(
    ("data", "seeds", "message"),
    [
        pytest.param(
            {"image": torch.rand(2, 1, 8, 8, 3)}, [0, 1], r"image must be floating point of shape", id="volume"
        ),
        pytest.param({"image": torch.zeros(2, 1, 8, 8).int()}, [0, 1], r"image must be floating point", id="int"),
        pytest.param({"image": torch.rand(2, 1, 8, 8)}, [0], "one seed for each of 2 samples, got 1", id="seeds"),
        pytest.param({"image": torch.rand(1, 1, 2, 8)}, [0], "larger than half the blur kernel", id="tiny"),
        pytest.param(
            {"image": torch.rand(1, 1, 8, 8), "label": torch.zeros(1, 4, 8, 8)},
            [0],
            "label must have the shape",
            id="lab",
        ),
    ],
)
def test_bad_batches(data, seeds, message):
    with pytest.raises(ValueError, match=message):
        BatchAugment()(data, seeds)
