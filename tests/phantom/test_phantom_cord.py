# SPDX-License-Identifier: Apache-2.0
"""Cords: anatomy, raters and sites."""

import numpy as np
import pytest

from vmfseg.phantom.cord_scan import cord_name, scan_cord
from vmfseg.phantom.tissues import TISSUES

#: In-plane spacing and slice thickness per site, as distributed.
SPACING = {1: (0.5, 5.0), 2: (0.5, 5.0), 3: (0.25, 2.5), 4: (0.29, 5.0)}


@pytest.fixture(scope="module")
def scans():
    return [scan_cord(index, 0, size=None if index == 0 else 200) for index in range(4)]


def test_site_one_is_a_hundred_pixels_wide(scans):
    assert scans[0].image.shape == (100, 100, 3)
    np.testing.assert_allclose(np.linalg.norm(scans[0].affine[:3, :3], axis=0), (0.5, 0.5, 5.0), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(4))
def test_sites_have_their_resolution(index):
    scan = scan_cord(index, 0)
    inplane, thick = SPACING[index + 1]
    np.testing.assert_allclose(np.linalg.norm(scan.affine[:3, :3], axis=0), (inplane, inplane, thick), atol=1e-9)


def test_raters_differ_and_a_majority_exists(scans):
    for scan in scans:
        assert len(scan.masks) == 4
        masks = np.stack(scan.masks)
        assert set(np.unique(masks)) == {0, 1, 2}
        for a in range(4):
            for b in range(a):
                assert not np.array_equal(masks[a], masks[b])
                gray = masks[a] == 1, masks[b] == 1
                dice = 2 * (gray[0] & gray[1]).sum() / (gray[0].sum() + gray[1].sum())
                assert 0.6 < dice < 0.995
        agreed = (masks == 1).sum(axis=0) >= 3
        true = scan.factors == TISSUES["gray_matter"].code
        assert agreed.any(axis=(0, 1)).all()  # gray matter in every slice
        assert 2 * (agreed & true).sum() / (agreed.sum() + true.sum()) > 0.75


def test_gray_matter_lies_inside_the_cord(scans):
    for scan in scans:
        for mask in scan.masks:
            areas = [(mask == value).sum() for value in (1, 2)]
            assert 0.08 < areas[0] / sum(areas) < 0.45
        gray = np.argwhere(scan.factors == TISSUES["gray_matter"].code).mean(axis=0)
        white = np.argwhere(scan.factors == TISSUES["white_matter"].code).mean(axis=0)
        assert np.linalg.norm((scan.affine[:3, :3] @ (gray - white))[:2]) < 1.5


def test_cord_area_is_human(scans):
    for scan in scans:
        pixel = np.prod(np.linalg.norm(scan.affine[:3, :2], axis=0))
        area = (scan.masks[0] > 0).sum(axis=(0, 1)) * pixel
        assert (area > 55).all()
        assert (area < 120).all()


@pytest.mark.parametrize("name", ["csf", "white_matter", "gray_matter", "cortical_bone", "marrow", "muscle"])
def test_tissues_of_the_neck(scans, name):
    assert all((scan.factors == TISSUES[name].code).any() for scan in scans)


def test_contrast(scans):
    for scan in scans:
        level = {
            n: np.median(scan.image[scan.factors == TISSUES[n].code])
            for n in ("csf", "gray_matter", "white_matter", "cortical_bone")
        }
        assert level["csf"] > level["gray_matter"] > level["white_matter"] > 1.5 * level["cortical_bone"]


def test_labeled_and_unlabeled_subjects_in_turn():
    assert scan_cord(4, 0).masks == ()
    names = [cord_name(i) for i in range(80)]
    assert len(set(names)) == 80
    assert names[-4:] == [f"site{s}-sc20" for s in (1, 2, 3, 4)]


def test_levels_name_every_slice(scans):
    for scan in scans:
        assert len(scan.levels) == scan.image.shape[2]
        assert set(scan.levels) <= {f"C{k}" for k in range(1, 8)}


def test_reproducible():
    first, second = scan_cord(8, 1, 60), scan_cord(8, 1, 60)
    assert np.array_equal(first.image, second.image)
    assert all(np.array_equal(a, b) for a, b in zip(first.masks, second.masks, strict=True))
    assert not np.array_equal(first.image, scan_cord(8, 2, 60).image)
