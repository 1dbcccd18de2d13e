# SPDX-License-Identifier: Apache-2.0
r"""Distance correlation between content, style and image, in the form that does not saturate.

The paper follows Liu et al. (BMVC 2021), whose released distance correlation is the biased estimator: for activations
with many positions it is close to 1 even for *independent* data. Here the bias-corrected squared distance correlation
of Székely and Rizzo (2013) is the figure, with its t-test and a permutation null; the biased one stays for comparison
with old papers. With the U-centered distance matrices
:math:`\tilde A_{ij} = a_{ij} - \frac{a_{i\cdot} + a_{\cdot j}}{n - 2} + \frac{a_{\cdot\cdot}}{(n-1)(n-2)}` (zero on the
diagonal) and :math:`(\tilde A \cdot \tilde B) = \frac{1}{n(n-3)} \sum_{i \ne j} \tilde A_{ij} \tilde B_{ij}`,

.. math:: \mathcal R^* = \frac{(\tilde A \cdot \tilde B)}{\sqrt{(\tilde A \cdot \tilde A)(\tilde B \cdot \tilde B)}},
          \qquad T = \sqrt{v - 1}\, \frac{\mathcal R^*}{\sqrt{1 - \mathcal R^{*2}}}, \quad v = \frac{n(n-3)}{2},

which follows Student's t with :math:`v - 1` degrees of freedom if both are independent. Samples must be independent:
one slice a subject.

A vMF network has no style vector per image; :func:`style_stand_ins` gives three declared stand-ins, and
:func:`domain_leakage` asks directly whether the activations tell the scanner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import pdist, squareform
from scipy.stats import t as student_t

from vmfseg.utils import numpy_rng

from .samples import ActivationSample, block_mean

__all__ = ["biased_distance_correlation", "distance_correlation", "domain_leakage", "pool_content", "style_stand_ins"]

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]


def distance_correlation(
    first: npt.ArrayLike, second: npt.ArrayLike, permutations: int = 500, seed: int = 0
) -> dict[str, Any]:
    """Measure the dependence of two sets of vectors, bias-corrected.

    Shape: ``(n, p)`` and ``(n, q)``, row by row the same sample; further axes are flattened.

    Args:
        first: one vector a sample.
        second: one vector a sample.
        permutations: shuffles of the samples for the null.
        seed: of the shuffles.

    Returns:
        ``dcor2`` (near 0 for independent data, may be slightly negative; ``None`` if one set is constant),
        ``p_value_t``, ``p_value_permutation``, ``null_95``, ``biased_dc``, ``n``, ``dimensions``.

    Raises:
        ValueError: for fewer than 4 samples or unequal numbers.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(40, 3))
        >>> round(distance_correlation(x, 2 * x)["dcor2"], 6)
        1.0
    """
    vectors = _vectors(first), _vectors(second)
    n = len(vectors[0])
    if n < 4 or len(vectors[1]) != n:
        raise ValueError(
            f"first and second must hold the same samples, at least 4, got {n} and {len(vectors[1])}. "
            "Use one slice a subject."
        )
    distances = [squareform(pdist(v)) for v in vectors]
    a, b = (_u_center(d) for d in distances)
    norm = math.sqrt(float((a * a).sum()) * float((b * b).sum()))
    result: dict[str, Any] = {
        "n": n,
        "dimensions": [vectors[0].shape[1], vectors[1].shape[1]],
        "biased_dc": biased_distance_correlation(*vectors),
    }
    if norm < 1e-12:
        return {**result, "dcor2": None, "p_value_t": None, "p_value_permutation": None, "null_95": None}
    value = float((a * b).sum()) / norm
    rng = numpy_rng("distance correlation", seed)
    orders = [rng.permutation(n) for _ in range(permutations)]
    null = np.array([float((a * b[np.ix_(order, order)]).sum()) / norm for order in orders])
    freedom = n * (n - 3) / 2 - 1
    statistic = math.sqrt(freedom) * value / math.sqrt(max(1 - value**2, 1e-15))
    return {
        **result,
        "dcor2": value,
        "p_value_t": float(student_t.sf(statistic, freedom)),
        "p_value_permutation": float((1 + (null >= value).sum()) / (1 + permutations)),
        "null_95": float(np.quantile(null, 0.95)) if permutations else None,
    }


def biased_distance_correlation(first: npt.ArrayLike, second: npt.ArrayLike) -> float | None:
    """Return the distance correlation as released by Liu et al. 2021; only for comparison with published figures."""
    a, b = (_double_center(squareform(pdist(_vectors(v)))) for v in (first, second))
    norm = math.sqrt(float((a * a).mean()) * float((b * b).mean()))
    return math.sqrt(max(float((a * b).mean()), 0.0) / norm) if norm > 1e-12 else None


def pool_content(samples: Sequence[ActivationSample], grid: tuple[int, int] = (36, 36)) -> FloatArray:
    """Return ``(n, J * h * w)``: the activations, averaged to at most ``grid`` positions where that divides them."""
    rows = []
    for sample in samples:
        shape = sample.activations.shape[1:]
        small = [part if size % part == 0 else size for size, part in zip(shape, grid, strict=True)]
        rows.append(np.stack([block_mean(p, (small[0], small[1])) for p in sample.activations]).ravel())
    return np.stack(rows)


def style_stand_ins(
    samples: Sequence[ActivationSample], kernels: Array | None = None, components: int = 16
) -> dict[str, FloatArray]:
    """Return three stand-ins for the style vector that vMF networks do not have.

    ``residuals``: the mean feature direction under each kernel minus the kernel, reduced by principal components;
    ``norms``: mean and SD of the feature length under each kernel; ``appearance``: mean and SD of the intensity under
    each kernel. What the samples do not hold (features, image) or needs ``kernels`` is left out.

    Args:
        samples: one slice a subject.
        kernels: ``JF`` unit directions.
        components: number of principal components kept of the residuals.
    """
    result: dict[str, list[FloatArray]] = {}
    for sample in samples:
        shares = sample.activations.reshape(len(sample.activations), -1).astype(np.float64)
        shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-12)
        if sample.features is not None:
            features = sample.features.reshape(len(sample.features), -1).astype(np.float64)
            length = np.linalg.norm(features, axis=0)
            result.setdefault("norms", []).append(_moments(shares, length))
            if kernels is not None:
                unit = features / np.maximum(length, 1e-12)
                result.setdefault("residuals", []).append((shares @ unit.T - np.asarray(kernels)).ravel())
        if sample.image is not None:
            grid = sample.activations.shape[1], sample.activations.shape[2]
            result.setdefault("appearance", []).append(_moments(shares, block_mean(sample.image, grid).ravel()))
    stacked = {name: np.stack(rows) for name, rows in result.items() if len(rows) == len(samples)}
    if "residuals" in stacked:
        centered = stacked["residuals"] - stacked["residuals"].mean(axis=0)
        left, size, _ = np.linalg.svd(centered, full_matrices=False)
        stacked["residuals"] = (left * size)[:, :components]
    return stacked


def domain_leakage(samples: Sequence[ActivationSample], folds: int = 5, shrinkage: float = 0.1) -> dict[str, Any]:
    """Return how well a linear probe tells the domain from mean and SD of every channel.

    The probe is linear discriminant analysis with equal priors over standardized figures, cross-validated over
    *subjects* (folds balanced by domain). Balanced accuracy at ``chance`` means aligned activations.

    Args:
        samples: slices; those of a subject are averaged.
        folds: number of folds.
        shrinkage: added to the diagonal of the covariance within domains.

    Raises:
        ValueError: for fewer than two domains, or a domain with fewer than two subjects.
    """
    subjects: dict[tuple[str, str], list[FloatArray]] = {}
    for sample in samples:
        flat = sample.activations.reshape(len(sample.activations), -1)
        figures = np.concatenate([flat.mean(axis=1), flat.std(axis=1)]).astype(np.float64)
        subjects.setdefault((sample.domain, sample.subject), []).append(figures)
    keys = sorted(subjects)
    domains = sorted({domain for domain, _ in keys})
    target = np.array([domains.index(domain) for domain, _ in keys])
    counts = np.bincount(target, minlength=len(domains))
    if len(domains) < 2 or counts.min() < 2:
        raise ValueError(
            "samples must be of two or more domains with two or more subjects each, got "
            f"{dict(zip(domains, counts.tolist(), strict=True))}. Leakage between domains needs both."
        )
    data = np.stack([np.mean(subjects[key], axis=0) for key in keys])
    fold = np.zeros(len(keys), dtype=int)
    for index in range(len(domains)):
        members = np.flatnonzero(target == index)
        fold[members] = np.arange(len(members)) % folds
    guess = np.full(len(keys), -1)
    for number in sorted(set(fold.tolist())):
        train, test = fold != number, fold == number
        guess[test] = _discriminate(data[train], target[train], data[test], shrinkage)
    recalls = [float((guess[target == index] == index).mean()) for index in range(len(domains))]
    return {
        "balanced_accuracy": float(np.mean(recalls)),
        "chance": 1 / len(domains),
        "n_subjects": len(keys),
        "recall": dict(zip(domains, recalls, strict=True)),
    }


def _discriminate(data: Array, target: Array, new: Array, shrinkage: float) -> npt.NDArray[np.intp]:
    # not regression on one-hot domains: that never picks a domain whose figures lie between two others
    mean, spread = data.mean(axis=0), np.maximum(data.std(axis=0), 1e-12)
    x, z = (data - mean) / spread, (new - mean) / spread
    centers = np.stack([x[target == index].mean(axis=0) for index in range(target.max() + 1)])
    within = x - centers[target]
    covariance = within.T @ within / len(x) + shrinkage * np.eye(x.shape[1])
    weights = np.linalg.solve(covariance, centers.T)
    scores = z @ weights - 0.5 * (centers * weights.T).sum(axis=1)
    return np.asarray(scores.argmax(axis=1), dtype=np.intp)


def _moments(shares: Array, values: Array) -> FloatArray:
    mean = shares @ values
    variance = shares @ values**2 - mean**2
    return np.concatenate([mean, np.sqrt(np.maximum(variance, 0.0))])


def _vectors(values: npt.ArrayLike) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    return array.reshape(len(array), -1)


def _u_center(distances: FloatArray) -> FloatArray:
    n = len(distances)
    rows = distances.sum(axis=0)
    centered = np.asarray(distances - (rows[:, None] + rows[None]) / (n - 2) + rows.sum() / ((n - 1) * (n - 2)))
    np.fill_diagonal(centered, 0.0)
    return centered


def _double_center(distances: FloatArray) -> FloatArray:
    rows = distances.mean(axis=0)
    return np.asarray(distances - rows[:, None] - rows[None] + rows.mean())
