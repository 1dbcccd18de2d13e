# SPDX-License-Identifier: Apache-2.0
"""Random contrast of whole batches by shallow random networks (GIN), in patches if wanted (IPA)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from vmfseg.utils import derive_seed

__all__ = ["GINAugment"]


class GINAugment:
    r"""Give images another contrast: a shallow network with random weights maps gray values to other gray values.

    Global intensity non-linear augmentation (GIN; Ouyang et al., IEEE TMI 42:1095, 2023). :math:`g` is ``layers``
    convolutions with ``hidden`` channels between, of side 1 or 3 at random, weights and shifts from a standard normal
    distribution, leaky rectifiers between:

    .. math:: x' = \frac{\lVert x \rVert}{\lVert y \rVert}\, y, \qquad
              y = \alpha\, g(x) + (1 - \alpha)\, x, \qquad \alpha \sim U(0, 1).

    Interventional pseudo-correlation augmentation (IPA, ``patches=True``) blends two such copies,
    :math:`b\,x'_1 + (1 - b)\,x'_2`, by a smooth random field :math:`b \in [0, 1]` with control points ``spacing``
    pixels apart. Departures: images are continued at their border by the last pixel, where the source has zeros, and
    the field is cubic interpolation stretched to [0, 1] instead of B-splines. Values may leave [0, 1], as in the
    source. A sample's randomness depends on its seed alone.

    Shape: image ``(B, C, H, W)``; everything else in the batch stays.

    Args:
        prob: probability for each sample; 0 is off.
        patches: IPA.
        layers: convolutions.
        hidden: channels between them.
        spacing: of the control points of IPA.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> image = torch.rand(2, 1, 16, 16)
        >>> out = GINAugment(prob=1.0)({"image": image}, seeds=[3, 4])["image"]
        >>> torch.allclose(out.flatten(1).norm(dim=1), image.flatten(1).norm(dim=1), rtol=1e-4)
        True
    """

    def __init__(
        self, prob: float = 0.5, patches: bool = False, layers: int = 4, hidden: int = 2, spacing: int = 24
    ) -> None:
        if not 0.0 <= prob <= 1.0:
            raise ValueError(f"prob must be a probability from 0 to 1, got {prob}. 0 switches it off.")
        if min(layers, hidden, spacing) < 1:
            raise ValueError(f"layers, hidden and spacing must be at least 1, got {layers}, {hidden} and {spacing}.")
        self.prob, self.patches, self.layers, self.hidden, self.spacing = prob, patches, layers, hidden, spacing

    def __call__(self, batch: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
        """Return the batch with some images in another contrast.

        Args:
            batch: holds ``image``.
            seeds: one seed for each sample, as for :class:`vmfseg.transforms.BatchAugment`.
        """
        if not self.prob:
            return dict(batch)
        image = batch["image"]
        if len(seeds) != len(image):
            raise ValueError(f"seeds must hold one seed for each of {len(image)} samples, got {len(seeds)}.")
        return {**batch, "image": torch.stack([self.one(x, s) for x, s in zip(image, seeds, strict=True)])}

    def one(self, image: torch.Tensor, seed: int) -> torch.Tensor:
        """Return one image ``(C, H, W)`` in another contrast, or with probability ``1 - prob`` as it is."""
        generator = torch.Generator().manual_seed(derive_seed(seed, "gin"))
        if float(torch.rand(1, generator=generator)) >= self.prob:
            return image
        first = self._contrast(image, generator)
        if not self.patches:
            return first
        share = self._field(image.shape[-2:], generator).to(image)
        return share * first + (1 - share) * self._contrast(image, generator)

    def _contrast(self, image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        x = image[None]
        for layer in range(self.layers):
            last = layer == self.layers - 1
            size = 1 + 2 * int(torch.randint(2, (1,), generator=generator))
            outputs = image.shape[0] if last else self.hidden
            weight = torch.randn(outputs, x.shape[1], size, size, generator=generator).to(image)
            shift = torch.randn(outputs, generator=generator).to(image)
            x = F.conv2d(F.pad(x, (size // 2,) * 4, mode="replicate"), weight, shift)
            if not last:
                x = F.leaky_relu(x)
        alpha = float(torch.rand(1, generator=generator))
        mixed = alpha * x[0] + (1 - alpha) * image
        scaled: torch.Tensor = mixed * (image.norm() / mixed.norm().clamp_min(1e-6))
        return scaled

    def _field(self, size: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        points = [max(2, round(side / self.spacing) + 1) for side in size]
        coarse = torch.rand(1, 1, *points, generator=generator)
        field = F.interpolate(coarse, size=tuple(size), mode="bicubic", align_corners=True)[0]
        low, high = field.amin(), field.amax()
        return (field - low) / (high - low).clamp_min(1e-6)
