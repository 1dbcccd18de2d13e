# SPDX-License-Identifier: Apache-2.0
"""Whole subjects and pictures of endless slices."""

import matplotlib.image
import nibabel as nib
import numpy as np
import pytest

from vmfseg.phantom import draw_subject
from vmfseg.phantom.__main__ import main


@pytest.fixture(scope="module")
def heart():
    return draw_subject("hearts", 4, fov=190.0)


def test_a_heart_has_two_phases_of_one_stack(heart):
    assert list(heart.images) == list(heart.labels) == ["ED", "ES"]
    assert len({volume.shape for volume in (*heart.images.values(), *heart.labels.values())}) == 1
    voxel = abs(np.linalg.det(heart.affine[:3, :3])) / 1000
    cavity = [np.count_nonzero(heart.labels[phase] == 1) * voxel for phase in ("ED", "ES")]
    assert 40 < cavity[0] < 420
    assert cavity[1] < cavity[0]


def test_the_affine_says_where_base_and_apex_are(heart):
    """The apex lies to the left, in front of and below the base, and the right ventricle in front or to the right."""
    label = heart.labels["ED"]
    world = {k: nib.affines.apply_affine(heart.affine, np.argwhere(label == k)) for k in (1, 3)}
    slices = np.argwhere(label == 1)[:, 2]
    base, apex = (world[1][slices == k].mean(axis=0) for k in (slices.min(), slices.max()))
    toward = apex - base
    assert toward[0] < 0
    assert toward[1] > 0
    assert toward[2] < 0
    side = world[3].mean(axis=0) - world[1].mean(axis=0)
    assert side[0] + side[1] > 0


def test_subjects_are_functions_of_their_number():
    first, again, other = (draw_subject("cords", k, fov=36.0) for k in (1, 1, 2))
    assert np.array_equal(first.images[""], again.images[""])
    assert np.array_equal(first.affine, again.affine)
    assert first.images[""].shape != other.images[""].shape or not np.array_equal(first.images[""], other.images[""])


def test_a_cord_lies_along_the_body():
    cord = draw_cord()
    direction = cord.affine[:3, 2] / np.linalg.norm(cord.affine[:3, 2])
    assert direction[2] > 0.9
    assert nib.aff2axcodes(cord.affine) == ("L", "P", "S")
    assert set(np.unique(cord.labels[""])) == {0, 1, 2}


def draw_cord(**arguments):
    return draw_subject("cords", 7, fov=40.0, **arguments)


def test_lost_orientation_keeps_voxels_and_spacing():
    known, lost = draw_cord(), draw_cord(orientation="lost")
    assert np.array_equal(np.sort(known.images[""].ravel()), np.sort(lost.images[""].ravel()))
    assert np.count_nonzero(lost.affine - np.diag(np.diag(lost.affine))) == 0
    assert np.allclose(np.sort(np.diag(lost.affine)[:3]), np.sort(np.linalg.norm(known.affine[:3, :3], axis=0)))


def test_saved_files_hold_the_subject(tmp_path):
    cord = draw_cord()
    (row,) = cord.save(tmp_path)
    image, label = nib.load(tmp_path / row["image"]), nib.load(tmp_path / row["label"])
    assert np.allclose(image.affine, cord.affine, atol=1e-3)
    assert np.array_equal(np.asarray(image.dataobj), cord.images[""])
    assert np.array_equal(np.asarray(label.dataobj), cord.labels[""])
    assert row["subject"] == "cords-0-7"


def test_montage_draws_phantom_and_scans(tmp_path):
    draw_cord().save(tmp_path / "scans")
    main(["cords", str(tmp_path / "plain.png"), "--rows", "1", "--columns", "2", "--labels"])
    main(["cords", str(tmp_path / "both.png"), "--rows", "1", "--columns", "2", "--real", str(tmp_path / "scans")])
    plain, both = (matplotlib.image.imread(tmp_path / f"{name}.png") for name in ("plain", "both"))
    assert both.shape[0] > 1.5 * plain.shape[0]
    assert both[: both.shape[0] // 2, ..., :3].max() > 0.8
