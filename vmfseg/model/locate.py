# SPDX-License-Identifier: Apache-2.0
r"""Find the organ in the whole field of view, so that the model's window lies on it.

A model sees a window of fixed size; its preprocessing cuts it out of the middle of the plane. The network runs on
some slices of it. Of the connected parts in three dimensions where the probability of the foreground, :math:`1 -
p_0`, exceeds one half, the organ is the one with the largest :math:`e^{-|d|^2 / 2} \, z \sum_x (1 - p_0(x))`, with
:math:`z` the share of the slices that it spans and :math:`d` the distance of its center from the middle in halves of
the window: an organ goes on from slice to slice, what only looks like it does not, and scans are planned with the
organ near the middle.

The window in the middle stays, and with it every voxel of the result, where an organ that spans half of the slices or
more lies inside it, by :data:`MARGIN` of its size away from every edge beyond which the plane goes on. A network that
was trained on the middle of scans never learnt what lies around it, so nothing else is asked then. Otherwise windows
lie over all of the plane (neighbors overlap by a quarter or more), their probabilities are blended with the Gaussian
weights of MONAI's sliding window, the organ is found in the same way (where the middle shows a part that spans half
of the slices, among the parts that reach into it), and the window is moved to its middle, unless the network, asked
there, finds less than half as much again as in the middle (:math:`z \sum_x (1 - p_0(x))` of its largest part). The
result comes from this one window, as in training; what looks like the organ elsewhere is never part of it.

A network whose features hold their position in the window (``position`` of :class:`~vmfseg.networks.VMFEncoder`) is not
asked: it expects the organ in the middle of any window, so its window stays in the middle of the plane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.inferers import SlidingWindowInferer
from monai.utils import BlendMode
from scipy import ndimage
from torch.nn import functional as F

from vmfseg.model.grid import FieldOfView, Shift

__all__ = ["MARGIN", "Sight", "find_organ", "look_around", "searched_slices", "window_shift"]

#: Of the window's size, between the organ and an edge beyond which the plane goes on.
MARGIN = 1 / 16
_SLICES = 8
_SPAN = 0.5  # of the searched slices, that an organ in the middle spans
_GAIN = 1.5  # times the evidence of the middle, that a window elsewhere must show
_OVERLAP = 0.25  # of the window, with its neighbors
_PULL = 0.5  # of the window
_EVERYWHERE = np.ones((3, 3, 3))

Box = tuple[slice, slice, slice]


@dataclass(frozen=True)
class Sight:
    """Where the model looked.

    Attributes:
        shift: of the chosen window from the middle of the plane, in pixels of the network.
        moved_mm: the same in millimeters, to the right, anterior and superior.
        looked_at: share of the scan's plane that some window showed to the network.
        segmented: share of the scan's voxels in the chosen window.
        slices: on how many slices the organ was searched; 0 if there was nothing to search.
        cut: whether the organ runs over the edge of the chosen window while the plane goes on there.
    """

    shift: Shift = (0, 0)
    moved_mm: tuple[float, float, float] = (0.0, 0.0, 0.0)
    looked_at: float = 1.0
    segmented: float = 1.0
    slices: int = 0
    cut: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return what ``quality.json`` says about it."""
        return {
            "looked_at": round(self.looked_at, 4),
            "segmented": round(self.segmented, 4),
            "slices_searched": self.slices,
            "moved_mm": [round(step, 1) for step in self.moved_mm],
            "cut_at_edge": self.cut,
        }


def look_around(
    view: FieldOfView | None,
    network: Callable[[torch.Tensor], torch.Tensor],
    batch_size: int = 8,
    search: bool = True,
) -> Sight:
    """Look at the whole field of view and choose the window of the organ.

    Args:
        view: the plane with its window; ``None`` for a preprocessing that cuts no middle out.
        network: gives the logits ``BNHW`` of slices ``BCHW``.
        batch_size: slices at once; memory is bounded by it and by one map of the slices that are searched.
        search: look beyond the window in the middle.
    """
    if view is None:
        return Sight()
    if not search or all(reach <= MARGIN * window for reach, window in zip(view.reach, view.window, strict=True)):
        share = view.share((0, 0))
        return Sight(looked_at=share, segmented=share)
    chosen = searched_slices(view.depth)
    middle = view.spans((0, 0))
    seen = _chances(view, network, chosen, batch_size, middle)
    central = find_organ(seen, view.window)
    if central is not None:
        depth, rows, columns = central
        central = (depth, _moved(rows, middle[0].start), _moved(columns, middle[1].start))
        if depth.stop - depth.start < _SPAN * len(chosen):
            central = None
        elif _inside(central, view, (0, 0), MARGIN):
            share = view.share((0, 0))
            return Sight(looked_at=share, segmented=share, slices=len(chosen))
    everywhere = (slice(0, int(view.plane.shape[1])), slice(0, int(view.plane.shape[2])))
    organ = find_organ(_chances(view, network, chosen, batch_size, everywhere), view.window, within=central)
    shift = window_shift(organ, view)
    if shift != (0, 0):
        there = _chances(view, network, chosen, batch_size, view.spans(shift))
        if _evidence(there) < _GAIN * _evidence(seen):
            organ, shift = central, (0, 0)
    return Sight(
        shift=shift,
        moved_mm=view.millimeters(shift),
        segmented=view.share(shift),
        slices=len(chosen),
        cut=organ is not None and not _inside(organ, view, shift, 0),
    )


def _chances(
    view: FieldOfView,
    network: Callable[[torch.Tensor], torch.Tensor],
    chosen: Sequence[int],
    batch_size: int,
    region: tuple[slice, slice],
) -> npt.NDArray[np.float32]:
    """Return the probability of the foreground in some slices of a region of the plane, ``DHW``."""

    def foreground(window: torch.Tensor) -> torch.Tensor:
        slices = view.as_network_input(window[0])
        logits = torch.cat([network(batch) for batch in slices.split(batch_size)])
        inside = 1 - logits.float().softmax(dim=1)[:, :1]
        if tuple(inside.shape[2:]) != view.window:  # a step after the central one changes the size
            inside = F.interpolate(inside, size=view.window, mode="bilinear", align_corners=False)
        return inside.permute(1, 2, 3, 0)[None]

    tiles = SlidingWindowInferer((*view.window, -1), overlap=_OVERLAP, mode=BlendMode.GAUSSIAN)
    planes = view.some_slices(chosen).as_tensor()[:, region[0], region[1]]
    blended: torch.Tensor = tiles(planes[None], foreground)
    return np.asarray(blended[0, 0].permute(2, 0, 1).numpy())


def searched_slices(depth: int) -> list[int]:
    """Return the slices of a stack on which the organ is searched, evenly spread.

    Example:
        >>> searched_slices(20)
        [1, 3, 6, 8, 11, 13, 16, 18]
    """
    count = min(depth, _SLICES)
    return [int((number + 0.5) * depth / count) for number in range(count)]


def find_organ(
    chances: npt.NDArray[np.float32], window: tuple[int, int], pull: float = _PULL, within: Box | None = None
) -> Box | None:
    """Return the slices, rows and columns of the connected part that is the organ; ``None`` if there is no foreground.

    Args:
        chances: probability of the foreground, ``DHW``.
        window: size of the window.
        pull: standard deviation of the weight of the middle, in windows.
        within: only parts that reach into this box count, if there are any.
    """
    parts, count = ndimage.label(chances > 0.5, _EVERYWHERE)
    if not count:
        return None
    if within is not None and parts[within].any():
        reaching = np.unique(parts[within][parts[within] > 0])
        parts, count = ndimage.label(np.isin(parts, reaching), _EVERYWHERE)
    centers = np.array(ndimage.center_of_mass(chances, parts, np.arange(1, count + 1)))[:, 1:]
    distances = (centers - np.array(chances.shape[1:]) / 2) / np.array(window)
    weights = np.exp(-0.5 * (distances**2).sum(axis=1) / pull**2)
    depth, rows, columns = ndimage.find_objects(parts)[int(np.argmax(_extents(chances, parts) * weights))]
    return depth, rows, columns


def _extents(chances: npt.NDArray[np.float32], parts: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the sum of the probabilities of each part times the share of the slices that it spans."""
    boxes = ndimage.find_objects(parts)
    spans = np.array([box[0].stop - box[0].start for box in boxes]) / len(chances)
    return np.asarray(ndimage.sum_labels(chances, parts, np.arange(1, len(boxes) + 1)) * spans)


def _evidence(chances: npt.NDArray[np.float32]) -> float:
    """Return how much of an organ a window shows: the largest extent of its parts, 0 if there is no foreground."""
    parts, _ = ndimage.label(chances > 0.5, _EVERYWHERE)
    return float(max(_extents(chances, parts), default=0.0))


def window_shift(organ: Box | None, view: FieldOfView) -> Shift:
    """Return the shift of the window: none where the organ lies well inside the window in the middle."""
    if organ is None or _inside(organ, view, (0, 0), MARGIN):
        return (0, 0)
    moved = []
    for part, size, window, reach in zip(organ[1:], view.plane.shape[1:3], view.window, view.reach, strict=True):
        middle = int(size) // 2 - window // 2 + window / 2
        moved.append(int(np.clip(round((part.start + part.stop) / 2 - middle), -reach, reach)))
    return moved[0], moved[1]


def _moved(part: slice, step: int) -> slice:
    return slice(part.start + step, part.stop + step)


def _inside(organ: Box, view: FieldOfView, shift: Shift, margin: float) -> bool:
    """Tell whether a window shows the organ with a margin towards the edges beyond which the plane goes on."""
    for part, span, size, window in zip(organ[1:], view.spans(shift), view.plane.shape[1:3], view.window, strict=True):
        least = margin * window
        low, high = part.start - span.start, span.stop - part.stop
        if (span.start > 0 and low < max(least, 1)) or (span.stop < size and high < max(least, 1)):
            return False
    return True
