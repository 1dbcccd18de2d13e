# SPDX-License-Identifier: Apache-2.0
"""Information between labels and activations: entropies, mutual information corrected for chance, average precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, xlogy

__all__ = [
    "average_precision",
    "equal_frequency_bins",
    "expected_mutual_information",
    "information_share",
    "mutual_information",
    "partition_agreement",
]

Array = npt.NDArray[Any]

_SMALL = 64


def mutual_information(table: Array) -> float:
    """Return the mutual information in nats of a table of counts.

    Example:
        >>> mutual_information(np.array([[5, 0], [0, 5]])) == np.log(2).item()
        True
    """
    joint = np.asarray(table, dtype=np.float64) / np.sum(table)
    return max(0.0, float(_entropy(joint.sum(axis=0)) + _entropy(joint.sum(axis=1)) - _entropy(joint)))


def expected_mutual_information(table: Array) -> float:
    r"""Return the mean mutual information of all tables with the same margins (hypergeometric model of chance).

    .. math:: \sum_{ij} \sum_{n} \frac{n}{N} \log\frac{N n}{a_i b_j} \,
              \frac{a_i!\, b_j!\, (N-a_i)!\, (N-b_j)!}{N!\, n!\, (a_i-n)!\, (b_j-n)!\, (N-a_i-b_j+n)!}

    with row sums :math:`a_i`, column sums :math:`b_j` and :math:`N` objects.
    """
    counts = np.asarray(table, dtype=np.int64)
    rows, columns, total = counts.sum(axis=1), counts.sum(axis=0), int(counts.sum())
    result = 0.0
    for a in rows[rows > 0].tolist():
        for b in columns[columns > 0].tolist():
            n = np.arange(max(1, a + b - total), min(a, b) + 1, dtype=np.float64)
            log_probability = (
                gammaln(a + 1) + gammaln(b + 1) + gammaln(total - a + 1) + gammaln(total - b + 1) - gammaln(total + 1)
            ) - (gammaln(n + 1) + gammaln(a - n + 1) + gammaln(b - n + 1) + gammaln(total - a - b + n + 1))
            result += float(np.sum(n / total * np.log(total * n / (a * b)) * np.exp(log_probability)))
    return result


def partition_agreement(truth: Array, pred: Array) -> dict[str, float]:
    """Compare two labelings of the same positions.

    ``ami`` is mutual information adjusted for chance (0 for unrelated, 1 for equal labelings; arithmetic mean of the
    entropies as the norm), ``homogeneity`` is 1 if every group of ``pred`` lies in one class of ``truth``,
    ``completeness`` is 1 if every class lies in one group.

    Example:
        >>> split = partition_agreement(np.array([0, 0, 1, 1]), np.array([0, 1, 2, 2]))
        >>> round(split["homogeneity"], 6), round(split["completeness"], 6)
        (1.0, 0.666667)
    """
    table = _table(truth, pred)
    information = mutual_information(table)
    entropies = [float(_entropy(table.sum(axis=axis) / table.sum())) for axis in (1, 0)]
    expected = expected_mutual_information(table)
    norm = sum(entropies) / 2 - expected
    return {
        "ami": 1.0 if abs(norm) < 1e-12 and not any(entropies) else (information - expected) / (norm or 1.0),
        "homogeneity": information / entropies[0] if entropies[0] else 1.0,
        "completeness": information / entropies[1] if entropies[1] else 1.0,
    }


def equal_frequency_bins(values: Array, bins: int = 16) -> npt.NDArray[np.intp]:
    """Return the bin of every value; bins hold equally many values as far as ties allow.

    Example:
        >>> equal_frequency_bins(np.array([0.0, 0.0, 0.0, 1.0]), bins=2)
        array([0, 0, 0, 1])
    """
    flat = np.asarray(values, dtype=np.float64).ravel()
    edges = np.unique(np.quantile(flat, np.arange(1, bins) / bins))
    return np.searchsorted(edges, flat, side="left").astype(np.intp).reshape(np.shape(values))


def information_share(codes: Array, truth: Array) -> float | None:
    r"""Return :math:`I(Y; Q) / H(Y)`, the share of a binary label that the codes tell, or ``None`` if H(Y) = 0.

    Example:
        >>> information_share(np.array([0, 0, 1, 1]), np.array([False, False, True, True]))
        1.0
    """
    table = _table(np.asarray(truth, dtype=np.intp), codes)
    norm = float(_entropy(table.sum(axis=1) / table.sum()))
    return mutual_information(table) / norm if norm > 0 else None


def average_precision(scores: Array, truth: Array) -> float | None:
    r"""Return :math:`\sum_k (R_k - R_{k-1}) P_k` over all thresholds; ``None`` without a positive. Chance = prevalence.

    Example:
        >>> average_precision(np.array([0.9, 0.8, 0.3]), np.array([True, False, True]))
        0.8333333333333333
    """
    flat, positive = np.asarray(scores, dtype=np.float64).ravel(), np.asarray(truth, dtype=bool).ravel()
    if not positive.any():
        return None
    order = np.argsort(-flat, kind="stable")
    last = np.append(np.flatnonzero(np.diff(flat[order])), flat.size - 1)  # equal scores share one threshold
    hits = np.cumsum(positive[order])[last]
    precision, recall = hits / (last + 1), hits / positive.sum()
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def _table(first: Array, second: Array) -> npt.NDArray[np.int64]:
    rows, columns = (_codes(np.ravel(labels)) for labels in (first, second))
    width = int(columns.max()) + 1
    counts = np.bincount(rows * width + columns, minlength=(int(rows.max()) + 1) * width)
    return counts.reshape(-1, width).astype(np.int64)


def _codes(labels: Array) -> npt.NDArray[np.intp]:
    """Return small nonnegative numbers for labels; those that are small already stay (sorting them takes longest)."""
    if labels.dtype.kind in "iu" and labels.size and labels.min() >= 0 and labels.max() < _SMALL:
        return labels.astype(np.intp)
    return np.asarray(np.unique(labels, return_inverse=True)[1], dtype=np.intp)


def _entropy(probabilities: Array) -> float:
    return float(-np.sum(xlogy(probabilities, probabilities)))
