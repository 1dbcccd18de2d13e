# SPDX-License-Identifier: Apache-2.0
"""Shape terms of SAML: compactness of masks, regions along contours, and the triplet loss of their embeddings."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

__all__ = ["compactness", "contours_and_rings", "semi_hard_triplets"]


def compactness(mask: torch.Tensor, length_factor: float = 0.01) -> torch.Tensor:
    r"""Return the inverse isoperimetric quotient of soft masks (SAML, section 2.2): 1 for a disc, else more.

    .. math:: \frac{P^2}{4 \pi A}, \quad A = \sum_p m_p, \quad
              P = c \sum_p \sqrt{(\partial_x m_p)^2 + (\partial_y m_p)^2 + 10^{-8}}

    with forward differences. The factor :math:`c = 0.01` of the released code is squared and makes the term of order
    1e-4; ``length_factor=1`` leaves it out. Areas below one pixel count as one, or a vanishing mask would have no
    bound.

    Args:
        mask: probabilities ``BHW``.
        length_factor: :math:`c`.

    Returns:
        One value for each image, ``B``.
    """
    down = mask[:, 1:, 1:] - mask[:, :-1, 1:]
    right = mask[:, 1:, 1:] - mask[:, 1:, :-1]
    length = length_factor * (down.square() + right.square() + 1e-8).sqrt().sum(dim=(1, 2))
    return length.square() / (4 * math.pi * mask.sum(dim=(1, 2)).clamp_min(1.0))


def contours_and_rings(label: torch.Tensor, num_classes: int, ring: int = 5) -> torch.Tensor:
    """Return, for each foreground class, its contour (mask less its erosion by one pixel) and a ring around it.

    Args:
        label: class numbers ``B1HW``.
        num_classes: ``N``.
        ring: width of the ring in pixels.

    Returns:
        Masks ``B 2(N-1) HW``: all contours, then all rings.

    Example:
        >>> label = torch.zeros(1, 1, 9, 9)
        >>> label[..., 3:6, 3:6] = 1
        >>> contours_and_rings(label, 2, ring=1).sum(dim=(2, 3))
        tensor([[ 8., 16.]])
    """
    masks = torch.cat([(label == n).float() for n in range(1, num_classes)], dim=1)
    eroded = -F.max_pool2d(-F.pad(masks, (1, 1, 1, 1)), 3, stride=1)
    grown = F.max_pool2d(masks, 2 * ring + 1, stride=1, padding=ring)
    return torch.cat([masks - eroded, grown - masks], dim=1)


def semi_hard_triplets(embeddings: torch.Tensor, kinds: torch.Tensor, margin: float = 10.0) -> torch.Tensor:
    r"""Return the triplet loss with semi-hard negatives (Schroff et al. 2015), mean over all pairs of one kind.

    With :math:`d` the squared Euclidean distance, for every ordered pair (a, p) of one kind the negative :math:`n` is
    the nearest one that is farther than :math:`p`, or the farthest one if there is none:
    :math:`\max(0, m + d_{ap} - d_{an})`. 0 where a kind is missing or no pair exists.

    Args:
        embeddings: ``ME``.
        kinds: ``M``, kind of each.
        margin: :math:`m`.

    Example:
        >>> points = torch.tensor([[0.0], [1.0], [9.0]])
        >>> semi_hard_triplets(points, torch.tensor([0, 0, 1]), margin=10.0)  # 10 + 1 - 81 and 10 + 1 - 64
        tensor(0.)
    """
    same = kinds[:, None] == kinds[None]
    pairs = same & ~torch.eye(len(kinds), dtype=torch.bool, device=kinds.device)
    if not bool(pairs.any()) or bool(same.all()):
        return embeddings.sum() * 0.0
    distance = (embeddings[:, None] - embeddings[None]).square().sum(dim=-1)
    # axes: anchor, positive, negative
    to_negative = distance[:, None, :]
    farther = ~same[:, None, :] & (to_negative > distance[:, :, None])
    nearest = to_negative.masked_fill(~farther, torch.inf).amin(dim=2)
    farthest = distance.masked_fill(same, -torch.inf).amax(dim=1)[:, None]
    negative = torch.where(farther.any(dim=2), nearest, farthest)
    return (margin + distance - negative)[pairs].clamp_min(0.0).mean()
