# SPDX-License-Identifier: Apache-2.0
r"""Random contrast beyond physics: a shallow network with random weights maps gray values to other gray values.

Global intensity non-linear augmentation (GIN; Ouyang et al., IEEE TMI 42:1095, 2023): four convolutions of size 1 or 3
with two channels between them, weights and shifts from a standard normal distribution, leaky rectifiers between, and

.. math:: x' = \alpha\, g(x) + (1 - \alpha)\, x , \qquad \alpha \sim U(0, 1) ,

where :math:`g` is scaled to the Frobenius norm of :math:`x`.
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from vmfseg.phantom.shapes import Floats

__all__ = ["random_contrast"]

_LAYERS, _HIDDEN, _SLOPE = 4, 2, 0.2


def random_contrast(picture: Floats, rng: np.random.Generator) -> Floats:
    """Return ``picture`` with the contrast of a random shallow network; shapes stay where they are.

    Example:
        >>> picture = np.eye(8, dtype=np.float32)
        >>> other = random_contrast(picture, np.random.default_rng(0))
        >>> other.shape, bool(np.allclose(other, picture))
        ((8, 8), False)
    """
    channels = [picture.astype(np.float32)]
    for layer in range(_LAYERS):
        size = int(rng.choice([1, 3]))
        count = 1 if layer == _LAYERS - 1 else _HIDDEN
        kernels = rng.standard_normal((count, len(channels), size, size)).astype(np.float32)
        shifts = rng.standard_normal(count).astype(np.float32)
        found = []
        for kernel, shift in zip(kernels, shifts, strict=True):
            parts = (
                weight[0, 0] * x if size == 1 else ndimage.correlate(x, weight, mode="nearest")
                for weight, x in zip(kernel, channels, strict=True)
            )
            total = np.asarray(sum(parts) + shift, dtype=np.float32)
            found.append(total if count == 1 else np.where(total > 0, total, np.float32(_SLOPE) * total))
        channels = found
    share = np.float32(rng.random())
    mixed = channels[0]
    scale = np.linalg.norm(picture) / max(float(np.linalg.norm(mixed)), 1e-6)
    result: Floats = share * np.float32(scale) * mixed + (1 - share) * picture
    return result
