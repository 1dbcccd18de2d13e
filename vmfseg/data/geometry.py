# SPDX-License-Identifier: Apache-2.0
r"""Geometry of voxel grids: voxel sizes, orientation, comparison of affines with one tolerance.

Two grids are compared at the centres of their eight corner voxels. With affines :math:`A, B` (voxel index to mm) the
distance is given in mm and, as :math:`\max_c \lVert A_{3\times3}^{-1}(B c - A c) \rVert_\infty`, in voxels of ``A``.
Everywhere in the package the same rule holds: up to :data:`WARN_VOXELS` is noise, up to :data:`FAIL_VOXELS` is accepted
with a warning, more is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import nibabel as nib
import numpy as np
import numpy.typing as npt

__all__ = [
    "FAIL_VOXELS",
    "WARN_VOXELS",
    "Affine",
    "align_grid",
    "axis_skew",
    "corner_distance",
    "corners",
    "describe_grid",
    "nearest_orthonormal",
    "orientation",
    "voxel_sizes",
]

Affine = npt.NDArray[np.float64]

#: Corner displacement in voxels up to which a difference is numerical noise.
WARN_VOXELS = 0.01
#: Corner displacement in voxels above which a difference is refused.
FAIL_VOXELS = 0.5


def voxel_sizes(affine: Affine) -> Affine:
    """Return the three voxel sizes in mm, the lengths of the columns of the affine."""
    return np.asarray(np.sqrt((affine[:3, :3] ** 2).sum(axis=0)), dtype=np.float64)


def orientation(affine: Affine) -> str:
    """Return the axis codes, for instance ``"RAS"``: where each array axis points to.

    Example:
        >>> orientation(np.diag([-1.0, -1.0, 1.0, 1.0]))
        'LPS'
    """
    if not np.isfinite(affine).all():
        return "???"  # in a message about a header that is refused
    return "".join(code or "?" for code in nib.aff2axcodes(affine))


def corners(affine: Affine, shape: Sequence[int]) -> Affine:
    """Return the centres of the eight corner voxels in mm, shape ``(8, 3)``.

    Example:
        >>> corners(np.diag([2.0, 2.0, 5.0, 1.0]), (3, 2, 2)).max(axis=0)
        array([4., 2., 5.])
    """
    index = np.array(list(itertools.product(*((0, size - 1) for size in shape[:3]))), dtype=np.float64)
    return np.asarray(index @ affine[:3, :3].T + affine[:3, 3], dtype=np.float64)


def corner_distance(reference: Affine, other: Affine, shape: Sequence[int]) -> tuple[float, float]:
    """Return the largest corner displacement between two affines of one grid shape, in mm and in reference voxels.

    Example:
        >>> shifted = np.diag([2.0, 2.0, 5.0, 1.0])
        >>> shifted[0, 3] = 1.0
        >>> corner_distance(np.diag([2.0, 2.0, 5.0, 1.0]), shifted, (8, 8, 4))
        (1.0, 0.5)
    """
    delta = corners(other, shape) - corners(reference, shape)
    voxels = np.abs(np.linalg.solve(reference[:3, :3], delta.T)).max()
    return float(np.linalg.norm(delta, axis=1).max()), float(voxels)


def axis_skew(affine: Affine) -> float:
    """Return the largest absolute cosine between two array axes, 0 for a grid without shear."""
    directions = affine[:3, :3] / voxel_sizes(affine)
    return float(np.abs(directions.T @ directions - np.eye(3)).max())


def nearest_orthonormal(affine: Affine, shape: Sequence[int]) -> Affine:
    """Return the affine with the nearest orthonormal directions, same voxel sizes and same grid centre.

    The directions are the orthogonal factor of the polar decomposition, so handedness is kept.

    Example:
        >>> noisy = np.diag([1.0, 1.0, 8.0, 1.0])
        >>> noisy[0, 1] = 1e-4
        >>> axis_skew(nearest_orthonormal(noisy, (32, 32, 10))) < 1e-12
        True
    """
    sizes = voxel_sizes(affine)
    left, _, right = np.linalg.svd(affine[:3, :3] / sizes)
    result = np.eye(4)
    result[:3, :3] = (left @ right) * sizes
    centre = (np.asarray(shape[:3], dtype=np.float64) - 1.0) / 2.0
    result[:3, 3] = affine[:3, :3] @ centre + affine[:3, 3] - result[:3, :3] @ centre
    return result


def align_grid(
    reference: Affine, other: Affine, shape: Sequence[int]
) -> tuple[Affine, tuple[int, int, int], npt.NDArray[np.int64]]:
    """Reorder and flip the axes of ``other`` so that they run like those of ``reference``.

    Args:
        reference: affine whose axes are the model.
        other: affine of the grid to reorder.
        shape: shape of that grid.

    Returns:
        affine and shape of the reordered grid, and the nibabel orientation (axis, flip) that reorders the array.

    Example:
        >>> flipped = np.diag([-1.0, 1.0, 1.0, 1.0])
        >>> flipped[0, 3] = 7.0
        >>> affine, shape, _ = align_grid(np.eye(4), flipped, (8, 4, 2))
        >>> bool(np.allclose(affine, np.eye(4))), shape
        (True, (8, 4, 2))
    """
    relative = np.linalg.solve(reference, other)
    # relative to the reference the other grid is a signed permutation, whatever the obliqueness of both in the scanner
    ornt = nib.io_orientation(relative)
    affine = np.asarray(other @ nib.orientations.inv_ornt_aff(ornt, shape[:3]), dtype=np.float64)
    new_shape = [0, 0, 0]
    for source, target in enumerate(ornt[:, 0].astype(int)):
        new_shape[target] = int(shape[source])
    return affine, (new_shape[0], new_shape[1], new_shape[2]), ornt.astype(np.int64)


def describe_grid(affine: Affine, shape: Sequence[int]) -> str:
    """Return shape, voxel sizes and orientation as short text.

    Example:
        >>> describe_grid(np.diag([-1.25, -1.25, 8.0, 1.0]), (256, 256, 12))
        '256x256x12 1.25x1.25x8 mm LPS'
    """
    size = "x".join(str(n) for n in shape)
    return f"{size} {'x'.join(f'{s:.4g}' for s in voxel_sizes(affine))} mm {orientation(affine)}"
