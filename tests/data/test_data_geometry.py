# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools

import nibabel as nib
import numpy as np
import pytest

from vmfseg.data.geometry import align_grid, axis_skew, corner_distance, corners, nearest_orthonormal, voxel_sizes

SHAPE = (10, 7, 4)


def oblique(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    affine = np.eye(4)
    affine[:3, :3] = np.linalg.qr(rng.normal(size=(3, 3)))[0] * [1.25, 1.25, 8.0]
    affine[:3, 3] = rng.normal(size=3) * 50
    return affine


def test_corners_are_those_of_nibabel():
    affine = oblique()
    index = np.array(list(itertools.product((0, 9), (0, 6), (0, 3))))
    np.testing.assert_allclose(corners(affine, SHAPE), nib.affines.apply_affine(affine, index))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))), ids=str)
def test_any_reordering_of_an_oblique_grid_is_undone(axes, seed):
    rng = np.random.default_rng(seed)
    affine = oblique(seed)
    array = rng.integers(0, 9, SHAPE)
    ornt = np.array([[axis, rng.choice([-1, 1])] for axis in axes])
    other = nib.Nifti1Image(array.astype(np.uint8), affine).as_reoriented(ornt)
    aligned, shape, back = align_grid(affine, other.affine, other.shape)
    np.testing.assert_allclose(aligned, affine, atol=1e-9)
    assert shape == SHAPE
    np.testing.assert_array_equal(nib.apply_orientation(np.asarray(other.dataobj), back), array)


def test_distance_counts_voxels_of_each_axis():
    affine = np.diag([1.0, 2.0, 8.0, 1.0])
    other = affine.copy()
    other[2, 3] = 4.0
    assert corner_distance(affine, other, SHAPE) == (4.0, 0.5)


@pytest.mark.parametrize("noise", [1e-6, 1e-3])
def test_nearest_orthonormal_keeps_sizes_center_and_handedness(noise):
    affine = oblique(3)
    affine[:3, :3] += np.random.default_rng(1).normal(size=(3, 3)) * noise
    result = nearest_orthonormal(affine, SHAPE)
    center = (np.array(SHAPE) - 1) / 2
    assert axis_skew(result) < 1e-12
    np.testing.assert_allclose(voxel_sizes(result), voxel_sizes(affine))
    np.testing.assert_allclose(result[:3, :3] @ center + result[:3, 3], affine[:3, :3] @ center + affine[:3, 3])
    assert np.sign(np.linalg.det(result)) == np.sign(np.linalg.det(affine))
    assert corner_distance(affine, result, SHAPE)[0] < 100 * noise
