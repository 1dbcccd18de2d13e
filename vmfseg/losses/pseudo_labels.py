# SPDX-License-Identifier: Apache-2.0
"""Pseudo-labels: which pixels of a teacher's prediction may teach."""

from __future__ import annotations

import numpy as np
import torch
from scipy import ndimage
from torch import nn
from torch.nn import functional as F

__all__ = ["KernelVote", "largest_components"]

_EIGHT = np.ones((3, 3), dtype=bool)


def largest_components(label: torch.Tensor) -> torch.Tensor:
    """Keep the largest connected component (8 neighbors) of every foreground class of every image.

    Shape: class numbers ``B1HW`` -> the same.

    Example:
        >>> largest_components(torch.tensor([[[[1, 0, 2], [0, 0, 2], [1, 1, 0]]]]))
        tensor([[[[0, 0, 2],
                  [0, 0, 2],
                  [1, 1, 0]]]])
    """
    kept = label.cpu().numpy().copy()
    for image in kept[:, 0]:
        for value in np.unique(image[image > 0]):
            pieces, count = ndimage.label(image == value, structure=_EIGHT)
            if count > 1:
                sizes = np.bincount(pieces.ravel())[1:]
                image[(pieces > 0) & (pieces != 1 + sizes.argmax())] = 0
    return torch.from_numpy(kept).to(label.device)


class KernelVote(nn.Module):
    r"""Believe a pixel's pseudo-label only if the kernels that are active there stand for the same class.

    Labelled images keep a running table of kernels and classes, :math:`T_{cj} \leftarrow d\,T_{cj} + (1 - d)\,
    \overline{y_c a_j}` (mean over pixels), so :math:`P(c \mid j) = T_{cj} / \sum_{c'} T_{c'j}`. A pixel counts if the
    teacher is sure and both agree:

    .. math:: \max_c p_c > \tau, \qquad \arg\max_c p_c = \arg\max_c \sum_j P(c \mid j)\, a_j .

    The head sees the neighborhood, the kernels one position: two views of one network. It is an idea of our own after
    the agreement masks of MiDSS (Ma et al., CVPR 2024); only a network with kernels can use it. Images that were not
    annotated for every class are left out of the table. The table is a buffer: give the module to the checkpoint.

    Shape: activations ``BJhw``, label ``B1HW``, probabilities ``BNHW`` -> trusted pixels ``B1HW``, bool.

    Args:
        num_classes: ``N``.
        num_kernels: ``J``.
        threshold: :math:`\tau`.
        decay: :math:`d`.

    Example:
        >>> vote = KernelVote(num_classes=2, num_kernels=2)
        >>> halves = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(1, 2, 1, 2)
        >>> vote.update(halves, torch.tensor([0, 1]).view(1, 1, 1, 2))
        >>> vote(halves, torch.tensor([[0.99, 0.99], [0.01, 0.01]]).view(1, 2, 1, 2)).flatten().tolist()
        [True, False]
    """

    table: torch.Tensor

    def __init__(self, num_classes: int, num_kernels: int, threshold: float = 0.95, decay: float = 0.99) -> None:
        super().__init__()
        if not 0.0 <= threshold < 1.0 or not 0.0 <= decay < 1.0:
            raise ValueError(f"threshold and decay must be at least 0 and below 1, got {threshold} and {decay}.")
        self.threshold, self.decay = threshold, decay
        self.register_buffer("table", torch.zeros(num_classes, num_kernels))

    @torch.no_grad()
    def update(self, activations: torch.Tensor, label: torch.Tensor, annotated: torch.Tensor | None = None) -> None:
        """Learn from labelled images which kernel stands for which class."""
        activations = activations[: len(label)].detach().float()
        if annotated is not None:
            whole = annotated[: len(label)].bool().all(dim=1)
            activations, label = activations[whole], label[whole]
        if not len(label):
            return
        small = F.interpolate(label.float(), size=activations.shape[2:], mode="nearest")[:, 0].long()
        masks = F.one_hot(small, self.table.shape[0]).to(activations)
        joint = torch.einsum("bhwn,bjhw->nj", masks, activations) / small.numel()
        self.table.copy_(torch.lerp(joint.to(self.table), self.table, self.decay))

    @torch.no_grad()
    def forward(self, activations: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        """Return which pixels may teach."""
        chance = self.table / self.table.sum(dim=0, keepdim=True).clamp_min(1e-12)
        votes = torch.einsum("nj,bjhw->bnhw", chance, activations.float())
        votes = F.interpolate(votes, size=probabilities.shape[2:], mode="bilinear", align_corners=False)
        sure, winner = probabilities.max(dim=1, keepdim=True)
        return (sure > self.threshold) & (winner == votes.argmax(dim=1, keepdim=True))
