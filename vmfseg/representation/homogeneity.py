# SPDX-License-Identifier: Apache-2.0
r"""How *homogeneous* the kernel channels are: one tissue, one piece, the same in every subject and domain.

With :math:`P_{ij}`, :math:`Y_{ic}` as in :mod:`~vmfseg.representation.interpretability`,
now with the background as a class:

* **purity** (H1): :math:`q_j(c) \propto \frac{\sum_i P_{ij} Y_{ic} / \sum_i P_{ij}}{\text{prevalence}_c}`; purity
  :math:`\max_c q_j(c)`, entropy :math:`-\sum_c q_j \log q_j / \log C` (0 one tissue, 1 all alike);
* **coherence** (H2): :math:`R_j = \lVert\sum_i P_{ij}\hat z_i\rVert / \sum_i P_{ij}` and the implied concentration
  :math:`\hat\kappa = R (F - R^2) / (1 - R^2)`;
* **compactness** (H3): share of the largest connected piece of the positions that the channel wins; Moran's I of
  :math:`P_j` (neighbors left, right, up, down);
* **intensity** (H4): :math:`1 -` within-channel / total variance of the image;
* **homology** (H5): :math:`1 -` mean pairwise Jensen-Shannon distance (base 2) of the profiles :math:`q_j` between
  subjects, and between domains;
* **usage** (H6): perplexity of the mean activations, dead channels (mean below :math:`1/(10J)`), mean entropy of a
  position over :math:`\log J`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import label as connected
from scipy.special import rel_entr, xlogy

from .samples import ActivationSample, block_mean, lattice_masks

__all__ = ["class_profile", "describe_homogeneity", "largest_piece", "moran_index", "resultant_length"]

Array = npt.NDArray[Any]
Groups = Mapping[str, Sequence[ActivationSample]]


def describe_homogeneity(groups: Groups, labels: Mapping[int, str]) -> dict[str, Any]:
    """Return the figures of every channel and of all together; ``None`` where a figure is undefined.

    Args:
        groups: slices by subject, from :func:`vmfseg.representation.samples.by_subject`.
        labels: name of every foreground class by voxel value.
    """
    samples = [sample for group in groups.values() for sample in group]
    count = len(samples[0].activations)
    profiles = np.stack([class_profile(group, labels) for group in groups.values()])
    domains = [group[0].domain for group in groups.values()]
    per_domain = [
        np.mean([p for p, d in zip(profiles, domains, strict=True) if d == name], axis=0)
        for name in sorted(set(domains))
    ]
    entropy = -xlogy(profiles, profiles).sum(axis=2) / np.log(profiles.shape[2])
    channels = []
    for j in range(count):
        pieces = [largest_piece(sample.activations.argmax(axis=0) == j) for sample in samples]
        morans = [moran_index(sample.activations[j]) for sample in samples]
        length = resultant_length(samples, j)
        channels.append(
            {
                "purity": float(profiles[:, j].max(axis=1).mean()),
                "class_entropy": float(entropy[:, j].mean()),
                "resultant_length": length,
                "implied_kappa": None if length is None else _kappa(length, samples),
                "largest_piece": _mean(pieces),
                "moran_index": _mean(morans),
                "homology_subjects": _homology(profiles[:, j]),
                "homology_domains": _homology(np.asarray(per_domain)[:, j]),
                "usage": float(np.mean([sample.activations[j].mean() for sample in samples])),
            }
        )
    usage = np.array([entry["usage"] for entry in channels])
    position = [-xlogy(s.activations, s.activations).sum(axis=0).mean() / np.log(max(count, 2)) for s in samples]
    return {
        "channels": channels,
        "mean_purity": float(np.mean([entry["purity"] for entry in channels])),
        "mean_class_entropy": float(np.mean([entry["class_entropy"] for entry in channels])),
        "intensity_homogeneity": _mean([_intensity(sample) for sample in samples]),
        "usage": {
            "perplexity": float(np.exp(-xlogy(usage, usage).sum())),
            "dead_channels": int((usage < 1 / (10 * count)).sum()),
            "position_entropy": float(np.mean(position)),
        },
    }


def class_profile(group: Sequence[ActivationSample], labels: Mapping[int, str]) -> npt.NDArray[np.float64]:
    """Return ``JC``: over background and classes, how much more than by prevalence each channel holds, summing to one.

    A channel that is never active has the uniform profile: it says nothing about tissue.
    """
    activations = np.concatenate([s.activations.reshape(len(s.activations), -1) for s in group], axis=1)
    masks = np.concatenate([lattice_masks(s, labels).reshape(len(labels), -1) for s in group], axis=1)
    classes = np.concatenate([~masks.any(axis=0, keepdims=True), masks]).astype(np.float64)
    prevalence = classes.mean(axis=1)
    share = activations @ classes.T / np.maximum(activations.sum(axis=1, keepdims=True), 1e-12)
    lift = np.where(prevalence > 0, share / np.where(prevalence > 0, prevalence, 1.0), 0.0)
    total = lift.sum(axis=1, keepdims=True)
    return np.asarray(np.where(total > 0, lift / np.where(total > 0, total, 1.0), 1.0 / len(classes)))


def resultant_length(samples: Sequence[ActivationSample], channel: int) -> float | None:
    """Return the mean resultant length of the feature directions under a channel, or ``None`` without features."""
    total, weight = 0.0, 0.0
    for sample in samples:
        if sample.features is None:
            return None
        features = sample.features.reshape(len(sample.features), -1).astype(np.float64)
        unit = features / np.maximum(np.linalg.norm(features, axis=0), 1e-12)
        share = sample.activations[channel].ravel()
        total = total + unit @ share
        weight += float(share.sum())
    return float(np.linalg.norm(total) / weight) if weight > 0 else None


def largest_piece(mask: Array) -> float | None:
    """Return the share of the largest 8-connected piece of a mask, ``None`` for an empty one.

    Example:
        >>> largest_piece(np.array([[1, 1, 0, 1]], bool))
        0.6666666666666666
    """
    pieces, _ = connected(mask, structure=np.ones((3, 3)))
    sizes = np.bincount(pieces.ravel())[1:]
    return float(sizes.max() / sizes.sum()) if sizes.size else None


def moran_index(image: Array) -> float | None:
    """Return Moran's I with the four nearest neighbors: 1 smooth, 0 unrelated, -1 checkerboard; ``None`` if constant.

    Example:
        >>> round(moran_index(np.indices((4, 4)).sum(axis=0) % 2), 6)
        -1.0
    """
    deviation = np.asarray(image, dtype=np.float64) - np.mean(image)
    variance = float((deviation**2).mean())
    if variance < 1e-20:
        return None
    products = (deviation[1:] * deviation[:-1], deviation[:, 1:] * deviation[:, :-1])
    return float(sum(p.sum() for p in products) / sum(p.size for p in products) / variance)


def _kappa(length: float, samples: Sequence[ActivationSample]) -> float | None:
    features = samples[0].features
    if features is None or length >= 1 - 1e-12:
        return None
    return float(length * (len(features) - length**2) / (1 - length**2))


def _homology(profiles: Array) -> float | None:
    pairs = [_jensen_shannon(p, q) for p, q in itertools.combinations(profiles, 2)]
    return 1 - float(np.mean(pairs)) if pairs else None


def _jensen_shannon(p: Array, q: Array) -> float:
    # SciPy's gives NaN for nearly equal profiles: rounding makes its divergence negative before the root
    middle = (p + q) / 2
    divergence = np.sum(rel_entr(p, middle) + rel_entr(q, middle)) / 2 / np.log(2)
    return float(np.sqrt(max(divergence, 0.0)))


def _intensity(sample: ActivationSample) -> float | None:
    if sample.image is None:
        return None
    grid = sample.activations.shape[1], sample.activations.shape[2]
    values = block_mean(sample.image, grid).ravel()
    shares = sample.activations.reshape(len(sample.activations), -1)
    if values.var() < 1e-20:
        return None
    means = shares @ values / np.maximum(shares.sum(axis=1), 1e-12)
    within = (shares * (values[None] - means[:, None]) ** 2).sum() / shares.sum()
    return float(1 - within / values.var())


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
