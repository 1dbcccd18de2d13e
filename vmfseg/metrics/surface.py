# SPDX-License-Identifier: Apache-2.0
r"""Surface distances of two masks in mm: Hausdorff, its 95th percentile, average symmetric.

**Definition.** The surface :math:`\partial A` of a mask :math:`A` is the mask minus its erosion by the cross-shaped
neighborhood (4 neighbors in the plane, 6 in space), everything outside the image being background; so it is made of
the centers of those voxels of :math:`A` that touch background. With :math:`d(p, \partial B)` the Euclidean distance in
mm from a surface voxel to the nearest surface voxel of the other mask and :math:`Q_q` the percentile with linear
interpolation,

.. math::
    \mathrm{HD}_q(A, B) &= \max\bigl(Q_q\{d(p, \partial B) : p \in \partial A\},
                                     Q_q\{d(p, \partial A) : p \in \partial B\}\bigr) \\
    \mathrm{ASSD}(A, B) &= \frac{\sum_{p \in \partial A} d(p, \partial B) + \sum_{p \in \partial B} d(p, \partial A)}
                                {|\partial A| + |\partial B|} .

HD is :math:`\mathrm{HD}_{100}` and HD95 is :math:`\mathrm{HD}_{95}`: the *larger* of the two directed percentiles, not
the percentile of the pooled distances. These are the definitions of MONAI's ``compute_hausdorff_distance`` and
``compute_average_surface_distance(symmetric=True)``, to which the tests hold this file; other tools differ.

**Speed.** Both masks are cut to their common bounding box; there SciPy's exact feature transform gives the nearest
surface voxel of every position, and distances are worked out only where the other surface is. Where the box is large
and the surfaces small (one stray voxel far away), a k-d tree gives the same distances with less work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import distance_transform_edt
from scipy.spatial import KDTree

__all__ = [
    "bounding_box",
    "check_spacing",
    "mask_surface",
    "percentile_distance",
    "surface_distances",
]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]

#: The transform costs per voxel of the box what the tree costs per this fraction of a surface voxel (measured).
_BOX_VOXELS_PER_SURFACE_VOXEL = 12


def check_spacing(spacing: Sequence[float] | npt.NDArray[Any] | None, dims: int) -> tuple[float, ...]:
    """Return ``spacing`` as floats, or refuse what is no voxel size in mm: there is no default, on purpose.

    Raises:
        ValueError: if it is missing, not one positive finite number per axis.

    Example:
        >>> check_spacing(None, 3)
        Traceback (most recent call last):
        ValueError: spacing must give 3 voxel sizes in mm, got None. Take it from the file; distances need a unit.
    """
    values = () if spacing is None else tuple(float(size) for size in np.asarray(spacing, dtype=np.float64).ravel())
    if len(values) != dims or not all(math.isfinite(size) and size > 0 for size in values):
        got = None if spacing is None else values
        raise ValueError(
            f"spacing must give {dims} voxel sizes in mm, got {got}. Take it from the file; distances need a unit."
        )
    return values


def mask_surface(mask: npt.ArrayLike) -> BoolArray:
    """Return the voxels of ``mask`` that touch background or the border of the image.

    Shape: ``HW[D]`` -> ``HW[D]``, any number of axes.

    Example:
        >>> mask_surface(np.ones((3, 3), bool)).astype(int)
        array([[1, 1, 1],
               [1, 0, 1],
               [1, 1, 1]])
    """
    inside = np.asarray(mask, dtype=bool)
    padded = np.pad(inside, 1)
    core = inside.copy()
    center = [slice(1, -1)] * inside.ndim
    for axis in range(inside.ndim):
        for neighbor in (slice(0, -2), slice(2, None)):
            core &= padded[(*center[:axis], neighbor, *center[axis + 1 :])]
    surface: BoolArray = inside & ~core
    return surface


def surface_distances(
    pred: npt.ArrayLike, truth: npt.ArrayLike, spacing: Sequence[float]
) -> tuple[FloatArray, FloatArray]:
    """Return the distances in mm from every surface voxel of each mask to the surface of the other.

    Shape: masks ``HW[D]`` -> two vectors (prediction to truth, truth to prediction), in C order of the voxels.

    Args:
        pred: predicted mask, nonzero inside.
        truth: true mask of the same shape.
        spacing: size of a voxel in mm, one number per axis. Required.

    Raises:
        ValueError: if shapes differ, the spacing is no spacing, or a mask is empty (see :mod:`vmfseg.metrics.policy`).

    Example:
        >>> pred, truth = np.zeros((2, 8), bool), np.zeros((2, 8), bool)
        >>> pred[0, 1], truth[0, 3] = True, True
        >>> surface_distances(pred, truth, spacing=(1.0, 1.25))
        (array([2.5]), array([2.5]))
    """
    masks = np.asarray(pred, dtype=bool), np.asarray(truth, dtype=bool)
    if masks[0].shape != masks[1].shape:
        raise ValueError(
            f"pred must have the shape of truth {masks[1].shape}, got {masks[0].shape}. Resample it first."
        )
    sizes = check_spacing(spacing, masks[0].ndim)
    for name, mask in zip(("pred", "truth"), masks, strict=True):
        if not mask.any():
            raise ValueError(f"{name} must not be empty, got no voxel inside. Use evaluate_volume: it has a policy.")
    box = bounding_box(masks[0] | masks[1]) or ()
    surfaces = mask_surface(masks[0][box]), mask_surface(masks[1][box])
    points = tuple(np.argwhere(surface) for surface in surfaces)
    if surfaces[0].size > _BOX_VOXELS_PER_SURFACE_VOXEL * (len(points[0]) + len(points[1])):
        return _by_tree(points[0], points[1], sizes), _by_tree(points[1], points[0], sizes)
    return _by_transform(points[0], surfaces[1], sizes), _by_transform(points[1], surfaces[0], sizes)


def percentile_distance(forward: FloatArray, backward: FloatArray, percentile: float = 100.0) -> float:
    """Return the larger of the two directed percentiles of :func:`surface_distances`: 100 is the Hausdorff distance.

    Example:
        >>> pred, truth = np.zeros((9, 9, 3), bool), np.zeros((9, 9, 3), bool)
        >>> pred[2:5, 2:5, 1], truth[2:5, 2:5, 2] = True, True
        >>> percentile_distance(*surface_distances(pred, truth, spacing=(1.25, 1.25, 8.0)))
        8.0

    Raises:
        ValueError: if ``percentile`` is not in 0..100.
    """
    if not 0 <= percentile <= 100:
        raise ValueError(f"percentile must be in 0..100, got {percentile}. HD95 is 95, the maximum is 100.")
    if percentile == 100:
        return float(max(forward.max(), backward.max()))
    return float(max(np.percentile(forward, percentile), np.percentile(backward, percentile)))


def bounding_box(mask: BoolArray) -> tuple[slice, ...] | None:
    """Return the slices around the nonzero voxels of ``mask``, or ``None`` if there is none.

    Example:
        >>> bounding_box(np.array([[False, False], [False, True]]))
        (slice(1, 2, None), slice(1, 2, None))
    """
    box = []
    rest = mask
    while rest.ndim:  # project axis after axis: each pass is over contiguous memory and the next one is far smaller
        inside = np.flatnonzero(rest.reshape(rest.shape[0], -1).any(axis=1))
        if not inside.size:
            return None
        box.append(slice(int(inside[0]), int(inside[-1]) + 1))
        rest = np.bitwise_or.reduce(rest, axis=0)
    return tuple(box)


def _by_transform(points: npt.NDArray[np.intp], surface: BoolArray, sizes: tuple[float, ...]) -> FloatArray:
    nearest = distance_transform_edt(~surface, sampling=sizes, return_distances=False, return_indices=True)
    columns = tuple(points.T)
    squared = np.zeros(len(points))
    for axis, size in enumerate(sizes):
        squared += (size * (nearest[axis][columns] - columns[axis])) ** 2
    distances: FloatArray = np.sqrt(squared)
    return distances


def _by_tree(points: npt.NDArray[np.intp], targets: npt.NDArray[np.intp], sizes: tuple[float, ...]) -> FloatArray:
    scale = np.asarray(sizes)
    distances, _ = KDTree(targets * scale, leafsize=32, balanced_tree=False).query(points * scale)
    return np.asarray(distances, dtype=np.float64)
