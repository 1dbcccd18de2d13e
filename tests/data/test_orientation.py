# SPDX-License-Identifier: Apache-2.0
"""How slices lie: the storage of a file does not matter, its place in the patient does."""

from __future__ import annotations

import itertools

import nibabel as nib
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from vmfseg.data import Datalist, verify_datalist
from vmfseg.data.datalist import Row
from vmfseg.data.orientation import Pose, class_direction, orientation_findings, pose_change, slice_frame, stack_array

LABELS = {0: "background", 1: "LV", 2: "RV"}
SHAPE = (24, 20, 6)


def affine_of(directions: np.ndarray, spacing=(1.2, 1.2, 8.0)) -> np.ndarray:
    affine = np.eye(4)
    affine[:3, :3] = directions * np.asarray(spacing)
    return affine


def turned(degrees: float, axis: str = "z") -> np.ndarray:
    return Rotation.from_euler(axis, degrees, degrees=True).as_matrix()


#: Short-axis planes of two sites, a few degrees from each other: the nearest axis of the first in-plane axis is right
#: for one and anterior for the other, and points the opposite way along the same line.
NEAR_RIGHT = np.array([[0.8, 0.0, 0.6], [-0.6, 0.0, 0.8], [0.0, 1.0, 0.0]])
NEAR_ANTERIOR = np.array([[0.6, 0.0, 0.8], [-0.8, 0.0, 0.6], [0.0, 1.0, 0.0]])


def test_all_48_ways_to_store_a_scan_have_one_frame_and_one_stack():
    image = nib.Nifti1Image(np.random.default_rng(0).random(SHAPE, np.float32), affine_of(turned(20)))
    frame, stack = slice_frame(image.affine, SHAPE), stack_array(image.get_fdata(dtype=np.float32), image.affine)
    for order in itertools.permutations(range(3)):
        for flips in itertools.product((1, -1), repeat=3):
            other = image.as_reoriented(np.array(list(zip(order, flips, strict=True)), float))
            np.testing.assert_allclose(slice_frame(other.affine, other.shape), frame, atol=1e-9)
            np.testing.assert_array_equal(stack_array(other.get_fdata(dtype=np.float32), other.affine), stack)


@pytest.mark.parametrize("degrees", [0.0, 12.0, -33.0, 44.0])
def test_a_turn_in_the_plane_and_a_tilt_of_it_are_told_apart(degrees):
    usual = slice_frame(affine_of(np.eye(3)), SHAPE)
    tilt, turn, mirrored = pose_change(usual, slice_frame(affine_of(turned(degrees)), SHAPE))
    assert (round(tilt, 3), round(turn, 3), mirrored) == (0.0, abs(degrees), False)
    tilt, turn, mirrored = pose_change(usual, slice_frame(affine_of(turned(degrees, "x")), SHAPE))
    assert (round(tilt, 3), round(turn, 3), mirrored) == (abs(degrees), 0.0, False)


def test_oblique_planes_near_45_degrees_come_out_mirrored():
    one, other = (slice_frame(affine_of(d), SHAPE) for d in (NEAR_RIGHT, NEAR_ANTERIOR))
    tilt, _, mirrored = pose_change(one, other)
    assert mirrored
    assert tilt == pytest.approx(np.degrees(np.arccos(0.96)), abs=1e-4)  # of the normals (.6, .8) and (.8, .6)


HEADERS = [
    pytest.param(np.eye(3), [], id="alike"),
    pytest.param(turned(20), [], id="within the augmentation"),
    pytest.param(turned(40), ["turned by about 40 degrees against"], id="turned"),
    pytest.param(turned(80, "x"), ["in another plane than"], id="another plane"),
]


@pytest.mark.parametrize(("directions", "expected"), HEADERS)
def test_domains_whose_headers_differ_are_named(directions, expected):
    poses = [Pose("usual", f"u{k}", slice_frame(affine_of(np.eye(3)), SHAPE), {}) for k in range(3)]
    # thick along the third axis of the array, whatever its direction
    poses += [Pose("other", f"o{k}", slice_frame(affine_of(directions), SHAPE), {}) for k in range(2)]
    found = list(orientation_findings(poses, LABELS))
    assert [(finding.code, finding.subject) for finding in found] == [("VMF243", "other")] * len(expected)
    for finding, text in zip(found, expected, strict=True):
        assert f"2 of 2 scans (o0, o1) lie {text} those of usual" in finding.message


def test_a_mirrored_domain_is_named():
    frames = [slice_frame(affine_of(d), SHAPE) for d in (NEAR_RIGHT, NEAR_RIGHT, NEAR_ANTERIOR)]
    poses = [Pose(name, name, frame, {}) for name, frame in zip("abc", frames, strict=True)]
    (finding,) = orientation_findings(poses, LABELS)
    assert (finding.code, finding.subject) == ("VMF243", "c")
    assert "mirrored against those of" in finding.message


def hearts(angle: float) -> np.ndarray:
    """LV at the center, RV in the direction ``angle`` from it."""
    x, y = np.meshgrid(np.arange(40) - 20, np.arange(40) - 20, indexing="ij")
    label = np.where(np.hypot(x, y) < 5, 1, 0)
    center = 11 * np.cos(np.radians(angle)), 11 * np.sin(np.radians(angle))
    label[np.hypot(x - center[0], y - center[1]) < 5] = 2
    return np.repeat(label[..., None], 6, axis=2).astype(np.float32)


@pytest.mark.parametrize("angle", [0.0, 75.0, 200.0])
def test_the_direction_between_structures_is_that_of_their_centers(angle):
    ((pair, direction),) = class_direction(hearts(angle), (1.0, 1.0)).items()
    assert pair == (1, 2)
    np.testing.assert_allclose(direction, (np.cos(np.radians(angle)), np.sin(np.radians(angle))), atol=0.03)


def test_concentric_structures_have_no_direction():
    x, y = np.meshgrid(np.arange(40) - 20, np.arange(40) - 20, indexing="ij")
    rings = np.where(np.hypot(x, y) < 5, 1, np.where(np.hypot(x, y) < 9, 2, 0))
    assert class_direction(np.repeat(rings[..., None], 3, axis=2).astype(np.float32), (1.0, 1.0)) == {}


def test_verify_finds_a_site_whose_pixels_are_turned_under_a_header_that_says_nothing(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for k, (domain, quarters) in enumerate([("a", 0), ("a", 0), ("b", 0), ("c", 1), ("c", 1)]):
        label = np.rot90(hearts(5.0 * k), quarters)
        for name, array in ((f"{k}.nii.gz", rng.integers(0, 99, label.shape)), (f"{k}_gt.nii.gz", label)):
            nib.save(nib.Nifti1Image(array.astype(np.int16), np.diag([1.2, 1.2, 8.0, 1.0])), tmp_path / name)
        rows.append(Row(image=f"{k}.nii.gz", label=f"{k}_gt.nii.gz", domain=domain, subject=str(k)))
    findings = verify_datalist(Datalist("demo", tmp_path, LABELS, tuple(rows)))
    assert [(f.severity, f.code, f.subject) for f in findings] == [("warning", "VMF244", "c")]
    assert "RV lies in another direction from LV than in b, by " in findings[0].message


def cords(angle: float) -> np.ndarray:
    """A flat cord with gray matter at its center, its long axis at ``angle``."""
    x, y = np.meshgrid(np.arange(40) - 20, np.arange(40) - 20, indexing="ij")
    along, across = (x * np.cos(a) + y * np.sin(a) for a in np.radians([angle, angle + 90]))
    label = np.where(np.hypot(along / 12, across / 8) < 1, 2, 0)
    label[np.hypot(x, y) < 3] = 1
    return np.repeat(label[..., None], 3, axis=2).astype(np.float32)


@pytest.mark.parametrize("angle", [0.0, 30.0, 90.0, 170.0])
def test_concentric_structures_that_are_not_round_have_a_long_axis(angle):
    ((pair, direction),) = class_direction(cords(angle), (1.0, 1.0)).items()
    assert pair == (2, 2)
    np.testing.assert_allclose(direction, (np.cos(np.radians(2 * angle)), np.sin(np.radians(2 * angle))), atol=0.05)


@pytest.mark.parametrize(("angle", "turned_by"), [(0.0, None), (170.0, None), (40.0, None), (90.0, "90 degrees")])
def test_a_site_whose_cords_are_turned_is_named(angle, turned_by):
    frame = slice_frame(affine_of(np.eye(3)), SHAPE)
    angles = {"a": 5.0, "b": 175.0, "c": angle}
    poses = [Pose(name, name, frame, class_direction(cords(a), (1.0, 1.0))) for name, a in angles.items()]
    found = list(orientation_findings(poses, {1: "GM", 2: "WM"}))
    assert [(f.code, f.subject) for f in found] == ([("VMF244", "c")] if turned_by else [])
    if turned_by:
        assert "the long axis of WM is turned against" in found[0].message
