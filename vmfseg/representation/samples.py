# SPDX-License-Identifier: Apache-2.0
"""One slice seen by a network: activations on their lattice, labels and image on theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ActivationSample", "block_mean", "by_subject", "fully_annotated", "lattice_masks"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ActivationSample:
    """What the interpretability measures look at.

    Args:
        activations: ``Jhw``, nonnegative, summing to one over ``J``.
        labels: ``HW`` integer label map, ``H`` and ``W`` multiples of ``h`` and ``w``.
        subject: the person; slices of one subject are pooled.
        domain: scanner, vendor or site.
        image: ``HW`` intensities, for intensity homogeneity; optional.
        features: ``Fhw`` features, for coherence of directions; optional.
        annotated: voxel values of the classes that were drawn in this subject; ``None`` for all.

    Raises:
        ValueError: if the shapes do not fit or the activations do not sum to one.
    """

    activations: npt.NDArray[np.floating[Any]]
    labels: npt.NDArray[np.integer[Any]]
    subject: str
    domain: str = "all"
    image: npt.NDArray[np.floating[Any]] | None = None
    features: npt.NDArray[np.floating[Any]] | None = None
    annotated: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.activations.ndim != 3 or self.labels.ndim != 2:
            raise ValueError(
                f"activations and labels must have shapes (J, h, w) and (H, W), got {self.activations.shape} and "
                f"{self.labels.shape}. Give one slice a sample."
            )
        grid = self.activations.shape[1:]
        if any(size % part for size, part in zip(self.labels.shape, grid, strict=True)):
            raise ValueError(f"labels {self.labels.shape} must be a multiple of the lattice {grid}. Crop or pad them.")
        if not np.allclose(self.activations.sum(axis=0), 1.0, atol=1e-3) or self.activations.min() < -1e-6:
            low, high = (float(f(self.activations.sum(axis=0))) for f in (np.min, np.max))
            raise ValueError(
                f"activations must be nonnegative and sum to one over the channels, got sums {low:.4g} to {high:.4g}. "
                "Divide them by their sum."
            )


def by_subject(samples: Sequence[ActivationSample]) -> dict[str, list[ActivationSample]]:
    """Group slices by domain and subject, sorted.

    Raises:
        ValueError: if there is no sample, or the numbers of channels differ.
    """
    if not samples or len({len(sample.activations) for sample in samples}) != 1:
        counts = sorted({len(sample.activations) for sample in samples})
        raise ValueError(
            f"samples must be at least one, all with equally many channels, got {counts or 'none'}. Add some."
        )
    groups: dict[str, list[ActivationSample]] = {}
    for sample in samples:
        groups.setdefault(f"{sample.domain}/{sample.subject}", []).append(sample)
    return dict(sorted(groups.items()))


def block_mean(image: Array, grid: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Average an image ``HW`` over the blocks of a coarser grid ``hw``.

    Example:
        >>> block_mean(np.array([[0, 1], [2, 3]]), (1, 1))
        array([[1.5]])
    """
    rows, columns = (size // part for size, part in zip(image.shape, grid, strict=True))
    blocks = np.asarray(image, dtype=np.float64).reshape(grid[0], rows, grid[1], columns)
    return np.asarray(blocks.mean(axis=(1, 3)))


def lattice_masks(sample: ActivationSample, labels: Mapping[int, str]) -> npt.NDArray[np.bool_]:
    """Return ``Chw``: the classes where they fill more than half of a lattice position; none of those not annotated."""
    grid = sample.activations.shape[1], sample.activations.shape[2]
    drawn = [label for label in labels if sample.annotated is None or label in sample.annotated]
    masks = [(block_mean(sample.labels == label, grid) > 0.5) & (label in drawn) for label in labels]
    return np.stack(masks)


def fully_annotated(groups: Mapping[str, list[ActivationSample]], labels: Mapping[int, str]) -> dict[str, list[Any]]:
    """Return the subjects of which every class was drawn: only there is background known to be background."""
    return {
        name: group
        for name, group in groups.items()
        if all(sample.annotated is None or set(labels) <= set(sample.annotated) for sample in group)
    }
