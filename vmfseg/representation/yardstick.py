# SPDX-License-Identifier: Apache-2.0
r"""What a representation without masks is worth: named kernels and a linear probe, chosen on source, judged elsewhere.

A *structure* is a set of voxel values (blood is LV and RV). Three questions, from cheap to dear:

* **one kernel**: the kernel whose *winner region*, :math:`R_j = \{p : j = \arg\max_k a_{kp}\}`, has the best Dice;
* **a set of kernels**: the union of winner regions with the best Dice. With :math:`n_j = |R_j|`, :math:`h_j` of them
  inside the structure and :math:`m` positions of the structure,
  :math:`D(S) = 2 \sum_{j \in S} h_j / (m + \sum_{j \in S} n_j)`. If :math:`D^*` is the best value,
  :math:`2 \sum_S h_j - D^* (m + \sum_S n_j)` is 0 for the best set and not above 0 for any other, so a kernel
  belongs to it exactly if :math:`h_j / n_j > D^* / 2`. The best set is a prefix of the kernels sorted by purity
  :math:`h_j / n_j`, and is found exactly by trying all prefixes;
* **a linear probe**: softmax regression from log activations (or features) and position to the classes, fitted on a few
  labelled slices: what is this representation worth to someone with *n* of them?

Dice is taken over all slices of a subject together; a subject without the structure is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from .samples import ActivationSample, by_subject, lattice_masks

__all__ = ["LinearProbe", "best_kernel", "best_kernel_set", "kernel_counts", "region_dice"]

Array = npt.NDArray[Any]
Structure = Sequence[int]


def kernel_counts(samples: Sequence[ActivationSample], structure: Structure) -> tuple[Array, Array]:
    """Return :math:`n_j` and :math:`h_j`: positions that each kernel wins, and those of them inside the structure.

    Args:
        samples: labelled slices; those in which the structure was not annotated are left out.
        structure: its voxel values.
    """
    kernels = len(samples[0].activations)
    won, inside = np.zeros(kernels, dtype=np.int64), np.zeros(kernels, dtype=np.int64)
    for sample in samples:
        if not _known(sample, structure):
            continue
        winners, mask = sample.activations.argmax(axis=0), _mask(sample, structure)
        won += np.bincount(winners.ravel(), minlength=kernels)
        inside += np.bincount(winners[mask], minlength=kernels)
    return won, inside


def best_kernel(won: Array, inside: Array) -> int:
    """Return the kernel whose winner region has the best Dice with the structure.

    Example:
        >>> best_kernel(np.array([10, 10, 20]), np.array([1, 9, 10]))
        1
    """
    return int(np.argmax(2 * inside / np.maximum(won + inside.sum(), 1)))


def best_kernel_set(won: Array, inside: Array) -> tuple[int, ...]:
    """Return the set of kernels whose winner regions together have the best Dice with the structure, sorted.

    Example:
        >>> best_kernel_set(np.array([10, 10, 20, 40]), np.array([9, 1, 15, 0]))
        (0, 2)
    """
    order = np.argsort(-inside / np.maximum(won, 1), kind="stable")
    dice = 2 * np.cumsum(inside[order]) / np.maximum(np.cumsum(won[order]) + inside.sum(), 1)
    return tuple(sorted(int(j) for j in order[: int(np.argmax(dice)) + 1]))


def region_dice(
    samples: Sequence[ActivationSample], regions: Sequence[Array], structure: Structure
) -> npt.NDArray[np.float64]:
    """Return the Dice of regions with a structure, one value for each subject that has it.

    Args:
        samples: slices to judge.
        regions: ``hw`` Boolean, one a sample, on the lattice of the activations.
        structure: voxel values; slices in which one of them was not annotated are left out.
    """
    place = {id(sample): region for sample, region in zip(samples, regions, strict=True)}
    scores = []
    for group in by_subject(samples).values():
        both = sizes = truth = 0
        for sample in group:
            if _known(sample, structure):
                region, mask = place[id(sample)], _mask(sample, structure)
                both, truth = both + int((region & mask).sum()), truth + int(mask.sum())
                sizes += int(region.sum()) + int(mask.sum())
        if truth:
            scores.append(2 * both / sizes)
    return np.asarray(scores, dtype=np.float64)


class LinearProbe:
    r"""Softmax regression from maps and position to classes, fitted on a few labelled slices.

    :math:`\hat y_p = \arg\max_n w_n^\top [m_p, x, y, x^2, xy, y^2] + b_n` with maps :math:`m_p` standardized over the
    slices of the fit and position in :math:`[-1, 1]`; it minimizes cross-entropy plus ``penalty`` times
    :math:`\lVert w \rVert^2` by L-BFGS from zero, so nothing is random.

    Args:
        num_classes: background included.
        penalty: of the squared weights.
        iterations: of L-BFGS.

    Example:
        >>> maps = np.stack([np.eye(4), 1 - np.eye(4)])
        >>> probe = LinearProbe(num_classes=2).fit([maps], [np.eye(4, dtype=np.int64)])
        >>> bool((probe.predict(maps) == np.eye(4)).all())
        True
    """

    def __init__(self, num_classes: int, penalty: float = 1e-3, iterations: int = 60) -> None:
        self.num_classes, self.penalty, self.iterations = num_classes, penalty, iterations
        self.mean = self.spread = self.weight = torch.empty(0)

    def fit(self, maps: Sequence[Array], labels: Sequence[Array]) -> LinearProbe:
        """Fit to maps ``Khw`` and label maps ``hw`` of the same lattice."""
        known = torch.cat([torch.from_numpy(np.asarray(m, dtype=np.float32)).flatten(1) for m in maps], dim=1)
        self.mean, self.spread = known.mean(dim=1, keepdim=True), known.std(dim=1, keepdim=True).clamp_min(1e-6)
        inputs = torch.cat([self._inputs(m) for m in maps])
        target = torch.from_numpy(np.concatenate([np.asarray(y).ravel() for y in labels])).long()
        weight = torch.zeros(inputs.shape[1], self.num_classes, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight], max_iter=self.iterations, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(inputs @ weight, target) + self.penalty * weight[:-1].square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        self.weight = weight.detach()
        return self

    def predict(self, maps: Array) -> Array:
        """Return the label map ``hw`` of maps ``Khw``."""
        scores = self._inputs(maps) @ self.weight
        found: Array = scores.argmax(dim=1).numpy().reshape(maps.shape[1:])
        return found

    def _inputs(self, maps: Array) -> torch.Tensor:
        known = torch.from_numpy(np.asarray(maps, dtype=np.float32)).flatten(1)
        rows, columns = torch.meshgrid(*[torch.linspace(-1, 1, size) for size in maps.shape[1:]], indexing="ij")
        y, x = rows.flatten(), columns.flatten()
        place = torch.stack([x, y, x * x, x * y, y * y, torch.ones_like(x)])
        return torch.cat([(known - self.mean) / self.spread, place]).T


def _known(sample: ActivationSample, structure: Structure) -> bool:
    return sample.annotated is None or set(structure) <= set(sample.annotated)


def _mask(sample: ActivationSample, structure: Structure) -> npt.NDArray[np.bool_]:
    names: Mapping[int, str] = {value: str(value) for value in structure}
    found: npt.NDArray[np.bool_] = np.asarray(lattice_masks(sample, names).any(axis=0))
    return found
