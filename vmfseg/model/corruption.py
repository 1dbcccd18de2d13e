# SPDX-License-Identifier: Apache-2.0
"""Image corruptions in five levels, to calibrate the predicted quality on source data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from vmfseg.utils import check_choice, numpy_rng

__all__ = ["CORRUPTIONS", "LEVELS", "corrupt"]

Array = npt.NDArray[np.float32]

LEVELS = 5


def _noise(image: Array, strength: float, rng: np.random.Generator) -> Array:
    """Rician noise: magnitude of the image with complex Gaussian noise."""
    real, imaginary = rng.normal(0, 0.3 * strength, (2, *image.shape))
    return np.asarray(np.hypot(image + real, imaginary))


def _blur(image: Array, strength: float, rng: np.random.Generator) -> Array:
    return np.asarray(ndimage.gaussian_filter(image, (8.0 * strength, 8.0 * strength, 0.0)))


def _bias(image: Array, strength: float, rng: np.random.Generator) -> Array:
    """A coil that fades over the field of view, along a random direction."""
    axes = np.meshgrid(*(np.linspace(-1, 1, size) for size in image.shape[:2]), indexing="ij")
    angle = rng.uniform(0, 2 * np.pi)
    ramp = np.cos(angle) * axes[0] + np.sin(angle) * axes[1]
    return np.asarray(image * np.exp(2.5 * strength * ramp)[..., None])


def _ghosts(image: Array, strength: float, rng: np.random.Generator) -> Array:
    """Motion along the phase-encoding axis: shifted copies."""
    axis = int(rng.integers(2))
    shifts = [image.shape[axis] * part // 12 for part in (1, 2, 3)]
    copies = sum(np.roll(image, sign * shift, axis=axis) for shift in shifts for sign in (1, -1))
    return np.asarray(image + strength * copies / 2)


def _fade(image: Array, strength: float, rng: np.random.Generator) -> Array:
    """Contrast that fades, to a tenth at most: gray values approach a local mean."""
    mean = ndimage.uniform_filter(image, (max(3, image.shape[0] // 6), max(3, image.shape[1] // 6), 1))
    contrast = 0.1**strength
    return np.asarray(contrast * image + (1 - contrast) * mean)


_KINDS: dict[str, Callable[[Array, float, np.random.Generator], Array]] = {
    "noise": _noise,
    "blur": _blur,
    "bias": _bias,
    "ghosts": _ghosts,
    "fade": _fade,
}

#: Kinds of corruption.
CORRUPTIONS = tuple(_KINDS)


def corrupt(image: npt.NDArray[np.floating], kind: str, level: int, seed: int = 0) -> Array:
    """Return a corrupted copy of a volume.

    Shape: ``(H, W, D)``, slices last.

    Args:
        image: values of any scale.
        kind: one of :data:`CORRUPTIONS`.
        level: 0 (nothing) to 5.
        seed: of what is random.

    Example:
        >>> image = np.random.default_rng(0).random((16, 16, 2), dtype=np.float32)
        >>> [round(float(np.abs(corrupt(image, "fade", level) - image).mean()), 2) for level in (0, 1, 3, 5)]
        [0.0, 0.09, 0.18, 0.22]
    """
    check_choice("kind", kind, CORRUPTIONS)
    if not 0 <= level <= LEVELS:
        raise ValueError(f"level must be from 0 to {LEVELS}, got {level}.")
    values = np.asarray(image, dtype=np.float32)
    if level == 0:
        return values.copy()
    low, high = (float(value) for value in np.percentile(values, [0.5, 99.5]))
    span = max(high - low, 1e-6)
    changed = _KINDS[kind]((values - low) / span, level / LEVELS, numpy_rng(seed, "corruption", kind))
    return np.asarray(changed * span + low, dtype=np.float32)
