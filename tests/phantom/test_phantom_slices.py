# SPDX-License-Identifier: Apache-2.0
"""Endless slices: purity, form, orientation, and the geometry of what is drawn."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch.utils.data import DataLoader

from vmfseg.phantom import PhantomSlices
from vmfseg.phantom.cord_slices import draw_cord_exam
from vmfseg.phantom.heart_slices import SliceChoice, draw_heart_exam
from vmfseg.phantom.pathology import GROUPS
from vmfseg.phantom.relaxation import CODES
from vmfseg.utils import numpy_rng

SMALL = {"pixdim": 2.4, "size": 72}


@pytest.mark.parametrize(("kind", "pixdim"), [("hearts", 2.5), ("cords", 0.6)])
def test_an_item_is_a_slice_in_slice_space(kind, pixdim):
    for size in (64, (64, 80)):
        item = PhantomSlices(kind, seed=1, pixdim=pixdim, size=size)[5]
        shape = (1, 64, 64) if size == 64 else (1, 64, 80)
        assert item["image"].shape == item["label"].shape == shape
        assert item["image"].dtype == torch.float32
        assert item["label"].dtype == torch.uint8
        assert 0 <= item["image"].min() <= item["image"].max() <= 1
        assert set(item["label"].unique().tolist()) <= {0, 1, 2, 3}
        assert all(isinstance(item[key], str) for key in ("domain", "subject", "sample"))


@pytest.mark.parametrize(("kind", "pixdim"), [("hearts", 2.4), ("cords", 0.6)])
def test_workers_and_order_do_not_matter(kind, pixdim):
    slices = PhantomSlices(kind, seed=3, length=6, pixdim=pixdim, size=72)
    alone = torch.stack([slices[i]["image"] for i in reversed(range(6))]).flip(0)
    batches = list(DataLoader(slices, batch_size=3, num_workers=2))
    assert torch.equal(torch.cat([batch["image"] for batch in batches]), alone)
    assert torch.equal(torch.cat([batch["label"] for batch in batches])[2], slices[2]["label"])


def test_items_have_no_end_and_seeds_differ():
    slices = PhantomSlices("hearts", seed=0, length=2, **SMALL)
    far = slices[2**31 - 1]["image"]
    assert not torch.equal(far, slices[2**31 - 2]["image"])
    assert not torch.equal(far, PhantomSlices("hearts", seed=1, **SMALL)[2**31 - 1]["image"])
    assert len(slices) == 2
    for bad in (-1, 2**31):
        with pytest.raises(IndexError):
            slices[bad]


@pytest.mark.parametrize(
    "arguments",
    [{"kind": "livers"}, {"lost": 1.5}, {"papillary": "both"}, {"gin": 2.0}, {"tight": -0.1}, {"size": 4}],
)
def test_arguments_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        PhantomSlices(**arguments)


def test_intensities_are_clipped_at_the_percentiles_of_the_slice():
    slices = PhantomSlices("hearts", seed=2, tight=0.0, **SMALL)
    shares = []
    for number in range(10):
        image = slices[number]["image"].numpy()
        shares.append((float((image == 0).mean()), float((image == 1).mean())))
    exact = [abs(high - 0.005) < 0.001 and abs(low - 0.005) < 0.001 for low, high in shares]
    assert sum(exact) >= 4  # the others stand for scans whose field of view is larger than the grid


def test_lost_orientation_only_turns_and_mirrors():
    plain = PhantomSlices("hearts", seed=4, tight=0.0, **SMALL)
    turned = PhantomSlices("hearts", seed=4, tight=0.0, lost=1.0, **SMALL)
    seen = set()
    for number in range(12):
        label, other = plain[number]["label"][0], turned[number]["label"][0]
        ways = [torch.rot90(image, k) for image in (label, label.flip(0)) for k in range(4)]
        found = [k for k, way in enumerate(ways) if torch.equal(way, other)]
        assert found
        if len(found) == 1:
            seen.add(found[0])
    assert len(seen) >= 4


def test_tight_fields_of_view_are_zero_outside():
    item = PhantomSlices("hearts", seed=5, tight=1.0, **SMALL)[1]
    dark = (item["image"][0] == 0).all(dim=0) | (item["image"][0] == 0).all(dim=1)
    assert dark.any()
    assert not item["label"][0][:, (item["image"][0] == 0).all(dim=0)].any()


def test_random_contrast_keeps_the_label():
    plain, other = (PhantomSlices("hearts", seed=6, tight=0.0, gin=gin, **SMALL) for gin in (0.0, 1.0))
    change = []
    for number in range(6):
        assert torch.equal(plain[number]["label"], other[number]["label"])
        change.append(float((plain[number]["image"] - other[number]["image"]).abs().mean()))
    assert min(change) > 0
    assert max(change) > 0.03


@pytest.fixture(scope="module")
def exams():
    return [draw_heart_exam(numpy_rng("exams", number)) for number in range(50)]


def middle(exam, share, beat=0.0, convention="cavity"):
    heart = exam.scene.ventricles
    base = heart.base_at(beat)
    choice = SliceChoice(base + share * (heart.base + heart.length - base), beat, (0.0, 0.0))
    return exam.label(choice, (220, 220), 1.0, convention)


def test_the_wall_encloses_the_cavity(exams):
    for exam in exams:
        for share in (0.15, 0.5, 0.8):
            label = middle(exam, share)
            grown = ndimage.binary_dilation(label == 1)
            assert set(np.unique(label[grown])) <= {1, 2}


def test_sizes_follow_published_ranges(exams):
    """Kawel 2012: normal walls 5.3 +- 0.9 and 6.3 +- 1.1 mm at the middle; cavities are 40 to 60 mm wide."""
    normal = [exam for exam in exams if exam.scene.ventricles.group == "NOR"]
    assert len(normal) >= 8
    walls, radii, apex = [], [], []
    for exam in normal:
        area = [np.count_nonzero(np.isin(middle(exam, 0.5), part)) for part in ([1], [1, 2])]
        inner, outer = (np.sqrt(a / np.pi) for a in area)
        walls.append(outer - inner)
        radii.append(inner)
        low = [np.sqrt(np.count_nonzero(np.isin(middle(exam, 0.85), part)) / np.pi) for part in ([1], [1, 2])]
        apex.append(low[1] - low[0])
    assert 5.0 < np.mean(walls) < 7.2
    assert min(walls) > 3.5
    assert max(walls) < 10
    assert min(radii) > 19
    assert max(radii) < 31
    assert np.mean(apex) < np.mean(walls)


def test_hearts_of_all_groups_eject(exams):
    for exam in exams:
        areas = [np.count_nonzero(middle(exam, 0.4, beat) == 1) for beat in (0.0, 1.0)]
        assert areas[1] < areas[0]
        walls = [np.count_nonzero(middle(exam, 0.4, beat) == 2) for beat in (0.0, 1.0)]
        assert walls[1] > 0.8 * walls[0]


def test_groups_come_with_their_share():
    found = [draw_heart_exam(numpy_rng("groups", k)).scene.ventricles.group for k in range(150)]
    assert sum(group.share for group in GROUPS.values()) == pytest.approx(1)
    assert set(found) >= {"NOR", "HCM", "DCM", "IHD", "HHD"}
    assert 0.2 < found.count("NOR") / len(found) < 0.45


def test_papillaries_count_to_the_wall_if_asked(exams):
    for exam in exams[:10]:
        cavity, wall = middle(exam, 0.5), middle(exam, 0.5, convention="wall")
        assert (wall == 1).sum() < (cavity == 1).sum()
        assert np.array_equal(wall == 3, cavity == 3)
        assert np.array_equal(np.isin(wall, (1, 2)), np.isin(cavity, (1, 2)))


def test_the_right_ventricle_lies_on_the_septal_side(exams):
    """In the picture the right ventricle is on the left, whatever the rotation within 45 degrees."""
    for exam in exams:
        label = middle(exam, 0.4)
        left = np.argwhere(label == 1).mean(axis=0)
        assert np.argwhere(label == 3).mean(axis=0)[0] < left[0]


@pytest.fixture(scope="module")
def cords():
    return [draw_cord_exam(numpy_rng("cords", number)) for number in range(50)]


def test_cords_have_published_sizes(cords):
    """Kato 2012: 78 +- 9 (men) and 74 +- 9 mm2 (women) at C5; gray matter takes about a sixth."""
    labels = [cord.label(4.5, (160, 160), 0.25) for cord in cords]
    area = np.array([np.count_nonzero(label) for label in labels]) / 16
    gray = np.array([np.count_nonzero(label == 1) for label in labels]) / 16
    assert 70 < area.mean() < 90
    assert 6 < area.std() < 16
    assert 0.12 < (gray / area).mean() < 0.25


def test_gray_matter_lies_in_white_matter(cords):
    for cord in cords[:25]:
        for level in (1.5, 4.0, 6.5):
            label = cord.label(level, (200, 200), 0.24)
            assert ndimage.label(label == 1, np.ones((3, 3)))[1] <= 3
            rim = ndimage.binary_dilation(label == 1, iterations=1) & (label == 0)
            assert rim.sum() <= 0.1 * (label == 1).sum()


def test_cords_are_widest_in_the_enlargement(cords):
    def width(cord, level):
        return np.ptp(np.argwhere(cord.label(level, (160, 160), 0.25) > 0)[:, 0])

    assert all(width(cord, 3.8) > width(cord, 6.5) for cord in cords[:10])


def test_fluid_is_brighter_or_as_bright_as_white_matter(cords):
    ratios = []
    for cord in cords:
        signal = np.abs(cord.table[:, :, cord.table.shape[2] // 2]).mean(axis=0)
        ratios.append(signal[CODES["csf"]] / signal[CODES["white_matter"]])
        assert 1.07 < signal[CODES["gray_matter"]] / signal[CODES["white_matter"]] < 1.41
    assert min(ratios) < 1.2
    assert max(ratios) > 2.3
