# SPDX-License-Identifier: Apache-2.0
"""Partial volume: several points per voxel, whose signals add and whose tissues vote."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vmfseg.phantom.shapes import Tissues

__all__ = ["label_majority", "majority", "mean_signal", "points_of_voxels"]


def points_of_voxels(tissue: Tissues, samples: int) -> Tissues:
    """Bring the points of every voxel together.

    Shape: (slabs, U * samples, V * samples) to (slabs * samples², U, V).

    Example:
        >>> fine = np.arange(4, dtype=np.uint8).reshape(1, 2, 2)
        >>> points_of_voxels(fine, 2).ravel().tolist()
        [0, 1, 2, 3]
    """
    slabs, rows, cols = tissue.shape
    split = tissue.reshape(slabs, rows // samples, samples, cols // samples, samples)
    return split.transpose(0, 2, 4, 1, 3).reshape(-1, rows // samples, cols // samples)


def mean_signal(points: Tissues, where: NDArray[np.intp], table: NDArray[np.complex64]) -> NDArray[np.complex64]:
    """Return the complex mean over the points of the signals ``table[tissue, where]``.

    Shape: ``points`` (P, U, V), ``where`` (U, V), ``table`` (tissues, frequencies), result (U, V).
    """
    flat, columns = table.ravel(), np.intp(table.shape[1])
    total = np.zeros(where.shape, np.complex64)
    for tissue in points:
        total += np.take(flat, tissue * columns + where)
    result: NDArray[np.complex64] = total / np.float32(len(points))
    return result


def majority(points: Tissues) -> Tissues:
    """Return the most frequent code of every voxel (the smallest one of equals).

    Example:
        >>> majority(np.array([[[4]], [[7]], [[7]]], dtype=np.uint8)).item()
        7
    """
    best, winner = np.zeros(points.shape[1:], np.uint8), np.zeros(points.shape[1:], np.uint8)
    for code in np.flatnonzero(np.bincount(points.ravel())):
        votes = (points == code).view(np.uint8).sum(axis=0, dtype=np.uint8)
        winner[votes > best] = code
        np.maximum(best, votes, out=best)
    return winner


def label_majority(points: Tissues, labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the most frequent label of every voxel, where ``labels[code]`` is the label of a tissue.

    Several tissues can share a label: blood and papillary muscle vote together for the cavity.
    """
    return majority(labels[points])
