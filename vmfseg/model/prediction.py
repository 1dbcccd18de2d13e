# SPDX-License-Identifier: Apache-2.0
"""What a predictor returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.model.locate import Sight
from vmfseg.model.lost_orientation import Turn
from vmfseg.model.scan import Scan, map_image

__all__ = ["FramePrediction", "Prediction", "volume_statistics"]


@dataclass(frozen=True)
class FramePrediction:
    """One frame, on the grid it came from.

    Attributes:
        labels: ``(X, Y, Z)`` uint8.
        signals: see :mod:`vmfseg.model.quality` and :mod:`vmfseg.model.plausibility`.
        kernel_shares: how much of the volume each kernel explains, ``J`` numbers that sum to one.
        volumes: milliliters of every foreground class, by name.
        sight: which part of the volume the model looked at.
        turn: how slices were turned for the network where the header has lost the orientation; ``None`` elsewhere.
        probabilities: ``(X, Y, Z, N)`` float32, sums to one over the classes; ``None`` unless asked for.
        activations: ``(X, Y, Z, J)`` float32; ``None`` unless asked for.
    """

    labels: npt.NDArray[np.uint8]
    signals: dict[str, float]
    kernel_shares: list[float]
    volumes: dict[str, float] = field(default_factory=dict)
    sight: Sight = field(default_factory=Sight)
    turn: Turn | None = None
    probabilities: npt.NDArray[np.float32] | None = None
    activations: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Prediction:
    """Labels of a scan with what belongs to them.

    Attributes:
        labels: uint8, in the shape of the input; frames that were not asked for are 0.
        scan: the input.
        frames: the frames that were segmented.
        quality: what ``quality.json`` holds.
        probabilities: the input's shape and ``N``, or ``None``.
        activations: the input's shape and ``J``, or ``None``.
    """

    labels: npt.NDArray[np.uint8]
    scan: Scan
    frames: tuple[int, ...]
    quality: dict[str, Any] = field(default_factory=dict)
    probabilities: npt.NDArray[np.float32] | None = None
    activations: npt.NDArray[np.float32] | None = None

    @property
    def image(self) -> Any:
        """The labels as a nibabel image with the header of the input."""
        return map_image(self.scan, self.labels)


def volume_statistics(frame: FramePrediction) -> dict[str, float]:
    r"""Return what a volume looks like to the network, by name.

    Log-likelihood, entropy, four statistics of the intensities alone, and the share :math:`a_j` of the volume that
    each kernel explains, as :math:`\arcsin\sqrt{a_j}`, whose spread does not depend on the share.
    """
    kept = ("log_likelihood", "entropy", "image_mean", "image_contrast", "image_roughness", "image_noise")
    values = {name: value for name, value in frame.signals.items() if name in kept}
    for number, share in enumerate(frame.kernel_shares):
        values[f"kernel {number}"] = float(np.arcsin(np.sqrt(np.clip(share, 0.0, 1.0))))
    return values
