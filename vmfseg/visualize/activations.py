# SPDX-License-Identifier: Apache-2.0
r"""Table of how much each kernel is active in each tissue, its figure, and the order of the maps.

With activations :math:`a_{jp}` and the share :math:`y_{tp}` of tissue :math:`t` in position :math:`p` (area fractions,
so that structures smaller than a position count too), :math:`M_{tj} = \sum_p y_{tp} a_{jp}`. The picture shows
:math:`M_{tj} / \sum_k M_{tk}`, which kernels explain a tissue; maps are named by the soft Dice
:math:`2 M_{tj} / (\sum_s M_{sj} + \sum_k M_{tk})`. All of it is for looking at; the measures that one may quote are in
:mod:`vmfseg.representation.interpretability`, with channels matched on source subjects and judged on others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from vmfseg.representation.samples import ActivationSample, block_mean

from .figure_style import INK, MUTED, new_figure

__all__ = ["TISSUE_GROUPS", "AnatomyTable", "ChannelLabel", "anatomy_table", "draw_confusion", "order_channels"]

Array = npt.NDArray[Any]

#: Tissues of the phantom (see ``vmfseg.phantom.tissues``) in groups that a picture can show, in reading order.
TISSUE_GROUPS: dict[str, tuple[int, ...]] = {
    "LV blood": (3,),
    "LV myocardium": (4,),
    "papillaries": (5, 6),
    "RV blood": (7,),
    "RV wall": (8, 9),
    "atria, vessels": (10, 11, 12, 13, 14),
    "gray matter": (28,),
    "white matter": (27, 29),
    "CSF": (26,),
    "fat": (15, 16, 17, 18),
    "muscle": (19, 30),
    "bone": (20, 21, 22),
    "liver": (23,),
    "spleen": (24,),
    "stomach": (25,),
    "lung": (2,),
    "air": (1,),
}

_FAINT = 0.05  # below this soft Dice a kernel has no name


class ChannelLabel(NamedTuple):
    """A kernel, the anatomy it matches best (empty for none) and its soft Dice."""

    channel: int
    name: str
    dice: float | None


@dataclass(frozen=True)
class AnatomyTable:
    """How much each kernel is active in each tissue.

    Attributes:
        names: of the tissues, in reading order.
        mass: ``TJ``, the table :math:`M`; its sum is the number of positions.
    """

    names: tuple[str, ...]
    mass: npt.NDArray[np.float64]

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """``TJ``: which part of a tissue each kernel explains; rows sum to one."""
        return np.asarray(self.mass / np.maximum(self.mass.sum(axis=1, keepdims=True), 1e-12))

    @property
    def dice(self) -> npt.NDArray[np.float64]:
        """``TJ``: soft Dice of every kernel and tissue."""
        sizes = self.mass.sum(axis=0, keepdims=True) + self.mass.sum(axis=1, keepdims=True)
        return np.asarray(2 * self.mass / np.maximum(sizes, 1e-12))


def anatomy_table(samples: Sequence[ActivationSample], groups: Mapping[str, Sequence[int]]) -> AnatomyTable:
    """Sum the activations over tissues. Tissues that do not occur are left out; the rest is called ``other``.

    Args:
        samples: slices with a label or tissue map.
        groups: label values by the name to show, for instance :data:`TISSUE_GROUPS` or ``{"LV": [1], ...}``.

    Raises:
        ValueError: if there is no sample or none of the tissues occurs.

    Example:
        >>> activations = np.stack([np.eye(2), 1 - np.eye(2)])
        >>> sample = ActivationSample(activations, np.array([[1, 0], [0, 1]]), "s1")
        >>> table = anatomy_table([sample], {"LV": [1]})
        >>> table.names, table.shares.tolist()
        (('LV', 'other'), [[1.0, 0.0], [0.0, 1.0]])
    """
    if not samples:
        raise ValueError("samples must be at least one, got none. Give slices with labels.")
    mass = np.zeros((len(groups) + 1, len(samples[0].activations)))
    for sample in samples:
        grid = sample.activations.shape[1], sample.activations.shape[2]
        parts = [block_mean(np.isin(sample.labels, list(values)), grid) for values in groups.values()]
        rest = np.clip(1 - np.sum(parts, axis=0), 0, None)
        mass += np.einsum("tp,jp->tj", _flat([*parts, rest]), _flat(sample.activations))
    names = [*groups, "other"]
    kept = [t for t in range(len(names)) if mass[t].sum() > 1e-9]
    if kept == [len(names) - 1] or not kept:
        raise ValueError(f"samples must hold one of {list(groups)}, got none of them. Check the label values.")
    return AnatomyTable(tuple(names[t] for t in kept), mass[kept])


def order_channels(table: AnatomyTable) -> list[ChannelLabel]:
    """Name every kernel by the tissue it overlaps most and put the kernels of one tissue next to each other.

    Tissues come in the order of the table, kernels of one tissue by falling soft Dice; kernels that overlap nothing
    come last and have no name.

    Example:
        >>> table = AnatomyTable(("LV", "other"), np.array([[1.0, 9.0, 0.0], [50.0, 1.0, 9.0]]))
        >>> [(entry.channel, entry.name) for entry in order_channels(table)]
        [(1, 'LV'), (0, 'other'), (2, 'other')]
    """
    dice = table.dice
    best, score = dice.argmax(axis=0), dice.max(axis=0)
    place = np.where(score < _FAINT, len(table.names), best)
    order = sorted(range(dice.shape[1]), key=lambda j: (int(place[j]), -float(score[j]), j))
    names = [*table.names, ""]
    return [ChannelLabel(j, names[int(place[j])], float(score[j])) for j in order]


def draw_confusion(table: AnatomyTable, order: Sequence[ChannelLabel] | None = None) -> Figure:
    """Draw which kernels explain which tissue: one row a tissue, one column a kernel, rows sum to 100 %.

    Args:
        table: from :func:`anatomy_table`.
        order: of the columns, from :func:`order_channels`, which is the default.
    """
    columns = [entry.channel for entry in (order_channels(table) if order is None else order)]
    shares = table.shares[:, columns]
    figure = new_figure(1.9 + 0.42 * len(columns), 1.0 + 0.32 * len(table.names))
    axis = figure.subplots()
    shown = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    for (t, column), share in np.ndenumerate(shares):
        if share >= 0.005:
            color = "white" if share > 0.55 else INK
            axis.text(column, t, f"{100 * share:.0f}", ha="center", va="center", fontsize=7, color=color)
    axis.set_xticks(range(len(columns)), [str(j) for j in columns], fontsize=8, color=INK)
    axis.set_yticks(range(len(table.names)), table.names, fontsize=8, color=INK)
    axis.set_xlabel("kernel", fontsize=8, color=MUTED)
    axis.tick_params(length=0)
    axis.set_xticks(np.arange(-0.5, len(columns)), minor=True)
    axis.set_yticks(np.arange(-0.5, len(table.names)), minor=True)
    axis.grid(which="minor", color="white", linewidth=1)
    axis.tick_params(which="minor", length=0)
    axis.spines[:].set_visible(False)
    bar = figure.colorbar(shown, ax=axis, pad=0.01, aspect=30, format=lambda value, _: f"{100 * value:.0f} %")
    bar.ax.tick_params(labelsize=7, colors=MUTED, length=0)
    bar.outline.set_visible(False)
    return figure


def _flat(maps: Any) -> npt.NDArray[np.float64]:
    array = np.asarray(maps, dtype=np.float64)
    return array.reshape(len(array), -1)
