# SPDX-License-Identifier: Apache-2.0
"""Bidirectional copy-paste: boxes of unlabelled images on labelled ones and the other way round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from vmfseg.utils import derive_seed

__all__ = ["BidirectionalCopyPaste", "Pasted", "paste_boxes"]


class Pasted(NamedTuple):
    """What is known of mixed images: a label, and two regions of pixels that are believed differently.

    Attributes:
        label: class numbers ``B1HW``.
        own: ``B1HW``, 1 where the pixel comes from the labelled image.
        other: ``B1HW``, 1 where it comes from the other image and its label is believed.
        own_annotated: ``BN``, classes that the labelled images were annotated for, or ``None`` for all.
        other_annotated: likewise of the other images.
        other_weight: of the other region in the loss.
    """

    label: torch.Tensor
    own: torch.Tensor
    other: torch.Tensor
    own_annotated: torch.Tensor | None = None
    other_annotated: torch.Tensor | None = None
    other_weight: float = 0.5


def paste_boxes(
    size: Sequence[int],
    seeds: Sequence[int],
    area: tuple[float, float] = (0.02, 0.4),
    aspect: tuple[float, float] = (0.3, 3.3),
) -> torch.Tensor:
    """Return a box of ones for each seed, ``(B, 1, H, W)``.

    The area (a share of the image) is uniform, the aspect (height over width, relative to the image) log-uniform, the
    place uniform among those where the box lies inside the image.

    Example:
        >>> paste_boxes((6, 9), [0], area=(4 / 9, 4 / 9), aspect=(1.0, 1.0)).sum()
        tensor(24.)
    """
    boxes = torch.zeros(len(seeds), 1, *size)
    for box, seed in zip(boxes, seeds, strict=True):
        generator = torch.Generator().manual_seed(derive_seed(seed, "box"))
        share, shape, *place = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
        covered = area[0] + share * (area[1] - area[0])
        ratio = math.exp(math.log(aspect[0]) + shape * (math.log(aspect[1]) - math.log(aspect[0])))
        sides = (math.sqrt(covered * ratio), math.sqrt(covered / ratio))
        spans = [min(full, max(1, round(side * full))) for side, full in zip(sides, size, strict=True)]
        row, column = (int(p * (full - span + 1)) for p, full, span in zip(place, size, spans, strict=True))
        box[:, row : row + spans[0], column : column + spans[1]] = 1.0
    return boxes


class BidirectionalCopyPaste:
    r"""Mix labelled images :math:`x_l` with others :math:`x_u` by boxes :math:`M`, their labels alike.

    .. math:: x_1 = M x_u + (1 - M)\, x_l, \qquad x_2 = M x_l + (1 - M)\, x_u

    (BCP; Bai et al., CVPR 2023, arXiv:2305.00673), the first for images of even number in the batch and the second for
    the others, as the source halves its batch. So the two kinds of images share one distribution, and few labels reach
    the backgrounds of many images. The source's box is 2/3 of each side (``area=(4/9, 4/9), aspect=(1, 1)``); the
    default is that of MiDSS for small images.

    Shape: images ``(B, C, H, W)``; there may be another number of labelled ones, which are then taken in turn.

    Args:
        area: of the box, shares of the image.
        aspect: of the box.
        other_weight: of pixels of the other images in the loss; 0.5 in the source.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> own = {"image": torch.ones(2, 1, 8, 8), "label": torch.ones(2, 1, 8, 8)}
        >>> other = {"image": torch.zeros(2, 1, 8, 8), "label": torch.zeros(2, 1, 8, 8)}
        >>> image, pasted = BidirectionalCopyPaste()(own, other, seeds=[1, 2])
        >>> torch.equal(image, pasted.label), torch.equal(image, pasted.own), bool(image[0].mean() > 0.5)
        (True, True, True)
    """

    def __init__(
        self,
        area: Sequence[float] = (0.02, 0.4),
        aspect: Sequence[float] = (0.3, 3.3),
        other_weight: float = 0.5,
    ) -> None:
        if not 0.0 < area[0] <= area[1] <= 1.0 or not 0.0 < aspect[0] <= aspect[1] < math.inf:
            raise ValueError(
                f"area must be two shares from 0 to 1 and aspect two positive ratios, smaller first, got {area} and "
                f"{aspect}."
            )
        if not 0.0 <= other_weight < math.inf:
            raise ValueError(f"other_weight must be at least 0, got {other_weight}. 0.5 is usual.")
        self.area, self.aspect, self.other_weight = (area[0], area[1]), (aspect[0], aspect[1]), other_weight

    def __call__(
        self, own: Mapping[str, Any], other: Mapping[str, Any], seeds: Sequence[int], other_weight: float | None = None
    ) -> tuple[torch.Tensor, Pasted]:
        """Return the mixed images and what is known of them.

        Args:
            own: ``image``, ``label`` and perhaps ``annotated`` of labelled images.
            other: the same of the others, whose label may be a pseudo-label; ``trusted`` ``B1HW`` says where it counts.
            seeds: one for each of the other images.
            other_weight: instead of the one of the constructor.
        """
        image, label = other["image"], other["label"]
        turn = torch.arange(len(image), device=image.device)
        partner = turn % len(own["image"])
        box = paste_boxes(image.shape[2:], seeds, self.area, self.aspect).to(image.device)
        is_own = torch.where((turn % 2 == 0)[:, None, None, None], 1 - box, box).bool()
        trusted = other.get("trusted")
        annotated = own.get("annotated")
        return torch.where(is_own, own["image"][partner], image), Pasted(
            label=torch.where(is_own, own["label"][partner].long(), label.long()),
            own=is_own.to(image.dtype),
            other=(~is_own if trusted is None else ~is_own & trusted.bool()).to(image.dtype),
            own_annotated=None if annotated is None else annotated[partner],
            other_annotated=other.get("annotated"),
            other_weight=self.other_weight if other_weight is None else other_weight,
        )
