# SPDX-License-Identifier: Apache-2.0
r"""Which kernel stands for which anatomy, chosen on source slices.

The un- and weakly supervised settings learn no masks. To score them, every kernel gets a class. With the table
:math:`M_{nj} = \sum_p \mathbb 1[y_p = n] \, a_{jp}` over labelled source slices, the soft Dice of class :math:`n` under
an assignment :math:`c` is

.. math:: D_n = \frac{2 \sum_{j: c(j)=n} M_{nj}}{\sum_{j: c(j)=n} \sum_m M_{mj} + \sum_j M_{nj}}

and :math:`c` is the assignment with the best mean of the foreground :math:`D_n`. Each :math:`D_n` depends only on the
set of kernels of its class, so for up to 12 kernels the best is found exactly, by dynamic programming over sets:
:math:`V_n(S) = \max_{T \subseteq S} D_n(T) + V_{n-1}(S \setminus T)`. With more kernels, it starts as background
everywhere and moves one kernel at a time to the class that raises the mean most, until nothing raises it. The reference
code picks a channel by eye, on the target.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from vmfseg.networks.parts import bare_network

__all__ = ["choose_assignment", "kernel_table"]

#: Up to so many kernels the best assignment is found exactly.
EXACT_KERNELS = 12


def kernel_table(network: torch.nn.Module, loader: Any, num_classes: int, device: torch.device) -> torch.Tensor:
    """Return :math:`M`, ``NJ``: how much each kernel is active in each class.

    Args:
        network: a :class:`vmfseg.networks.VMFNet`.
        loader: batches with ``image`` and ``label`` of source subjects.
        num_classes: ``N``.
        device: where the network is.
    """
    bare: Any = bare_network(network)
    bare.eval()
    table: torch.Tensor | None = None
    with torch.no_grad():
        for batch in loader:
            activations = bare.kernels(bare.encoder(batch["image"].to(device))).double()
            masks = F.one_hot(batch["label"][:, 0].long().to(device), num_classes).movedim(-1, 1).double()
            masks = F.adaptive_avg_pool2d(masks, activations.shape[-2:])
            part = torch.einsum("bnhw,bjhw->nj", masks, activations)
            table = part if table is None else table + part
    if table is None:
        raise ValueError("loader must hold at least one labelled source slice, got none.")
    return table.cpu()


def choose_assignment(table: torch.Tensor) -> tuple[list[int], float]:
    """Return the class of every kernel and the mean foreground soft Dice it reaches.

    Example:
        >>> choose_assignment(torch.tensor([[9.0, 1.0, 8.0], [0.0, 7.0, 1.0]]))
        ([0, 1, 0], 0.875)
    """
    chosen = _best(table) if table.shape[1] <= EXACT_KERNELS else _climb(table)
    return chosen, _score(table, chosen)


def _best(table: torch.Tensor) -> list[int]:
    num_classes, num_kernels = table.shape
    sets = np.arange(1 << num_kernels)
    member = (sets[:, None] >> np.arange(num_kernels)) & 1
    inside = member @ table.double().numpy().T  # of every set, the activity in each class
    totals = inside.sum(axis=1)
    value = np.zeros(len(sets))
    choices = []
    for n in range(1, num_classes):
        dice = 2 * inside[:, n] / np.maximum(totals + inside[-1, n], 1e-12)
        following, choice = np.empty_like(value), np.empty_like(sets)
        for whole in sets:
            parts = sets[(sets & ~whole) == 0]
            gains = dice[parts] + value[whole ^ parts]
            choice[whole] = parts[gains.argmax()]  # the first of equals: the smallest set
            following[whole] = gains.max()
        value = following
        choices.append(choice)
    chosen, left = [0] * num_kernels, len(sets) - 1
    for n in range(num_classes - 1, 0, -1):
        mine = int(choices[n - 1][left])
        for j in range(num_kernels):
            if mine >> j & 1:
                chosen[j] = n
        left ^= mine
    return chosen


def _climb(table: torch.Tensor) -> list[int]:
    num_classes, num_kernels = table.shape
    chosen = [0] * num_kernels
    best = _score(table, chosen)
    while True:
        moves = [
            (_score(table, [*chosen[:j], n, *chosen[j + 1 :]]), j, n)
            for j in range(num_kernels)
            for n in range(num_classes)
            if n != chosen[j]
        ]
        score, j, n = max(moves, key=lambda move: (move[0], -move[1], -move[2]))
        if score <= best + 1e-12:
            return chosen
        best, chosen[j] = score, n


def _score(table: torch.Tensor, chosen: list[int]) -> float:
    classes = torch.tensor(chosen)
    dice = []
    for n in range(1, table.shape[0]):
        mine = classes == n
        dice.append(2 * table[n, mine].sum() / (table[:, mine].sum() + table[n].sum()).clamp_min(1e-12))
    return float(torch.stack(dice).mean())
