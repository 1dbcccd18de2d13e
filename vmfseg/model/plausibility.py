# SPDX-License-Identifier: Apache-2.0
r"""Anatomical plausibility of a label map: measures from 0 to 1, where 1 is what anatomy looks like.

================  =====================================================================================================
measure           meaning
================  =====================================================================================================
``present``       share of the foreground classes that occur at all
``connected``     share of a class's voxels in its largest component, the smallest over classes
``enclosed``      share of the inner structure's border, slice by slice, that lies on the outer structure (LV in MYO,
                  GM in WM); borders at the edge of the picture count as open
``adjacent``      share of the slices with a right ventricle and a myocardium in which the two touch
``continuous``    share of the slices between a class's first and last that show it, the smallest over classes
================  =====================================================================================================

A class that was not found counts 0, so that no measure rises because a structure is lost. A measure that does not apply
(no such classes, nothing found) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy import ndimage

__all__ = ["ENCLOSED", "TOUCHING", "plausibility"]

Labels = npt.NDArray[np.uint8]

#: Structures inside others, by name.
ENCLOSED = (("LV", "MYO"), ("GM", "WM"))
#: Structures that touch, by name.
TOUCHING = (("RV", "MYO"),)

_PLANE = ndimage.generate_binary_structure(2, 1)
_ALL = ndimage.generate_binary_structure(3, 3)


def plausibility(labels: Labels, names: Mapping[int, str]) -> dict[str, float]:
    """Measure how far a label map looks like anatomy.

    Shape: ``labels`` ``(X, Y, Z)``.

    Args:
        labels: class of every voxel.
        names: class names by value; rules go by name and are skipped for names they do not know.

    Example:
        >>> heart = np.zeros((12, 12, 2), np.uint8)
        >>> heart[2:8, 2:8] = 2
        >>> heart[4:6, 4:6] = 1
        >>> heart[8:10, 2:8] = 3
        >>> plausibility(heart, {0: "background", 1: "LV", 2: "MYO", 3: "RV"})
        {'present': 1.0, 'connected': 1.0, 'continuous': 1.0, 'enclosed': 1.0, 'adjacent': 1.0}
    """
    stack = _cropped(labels)
    values = {name.upper(): value for value, name in names.items() if value}
    found = [value for value in values.values() if (stack == value).any()]
    measures = {"present": len(found) / max(1, len(values))}
    if found:
        masks = [stack == value for value in values.values()]
        measures["connected"] = min(_largest_share(mask) for mask in masks)
        measures["continuous"] = min(_continuity(mask.any(axis=(0, 1))) for mask in masks)
    for inner, outer in ENCLOSED:
        share = _enclosure(stack, values[inner], values[outer]) if {inner, outer} <= set(values) else None
        if share is not None:
            measures["enclosed"] = share
    for one, other in TOUCHING:
        share = _contact(stack, values[one], values[other]) if {one, other} <= set(values) else None
        if share is not None:
            measures["adjacent"] = share
    return {name: float(value) for name, value in measures.items()}


def _cropped(stack: Labels) -> Labels:
    """Leave out the background around all structures: most of a scan, and no measure sees it."""
    shown = [np.flatnonzero(stack.any(axis=axes)) for axes in ((1, 2), (0, 2), (0, 1))]
    return stack[tuple(slice(found[0], found[-1] + 1) if len(found) else slice(0, 0) for found in shown)]


def _largest_share(mask: npt.NDArray[np.bool_]) -> float:
    if not mask.any():
        return 0.0
    box = mask[ndimage.find_objects(mask.astype(np.uint8))[0]]
    components, count = ndimage.label(box, _ALL)
    if count == 1:
        return 1.0
    sizes = np.bincount(components.ravel())[1:]
    return float(sizes.max() / sizes.sum())


def _continuity(shown: npt.NDArray[np.bool_]) -> float:
    if not shown.any():
        return 0.0
    first, last = np.flatnonzero(shown)[[0, -1]]
    return float(shown[first : last + 1].mean())


def _enclosure(stack: Labels, inner: int, outer: int) -> float | None:
    on_outer = border = 0
    for plane in np.moveaxis(stack, 2, 0):
        mask = plane == inner
        if not mask.any():
            continue
        padded = np.pad(plane, 1)
        core = np.pad(mask, 1)
        around = ndimage.binary_dilation(core, _PLANE) & ~core
        # a hole that the inner structure itself encloses says nothing about what is around it
        around &= ~ndimage.binary_fill_holes(core)
        border += int(around.sum())
        on_outer += int((padded[around] == outer).sum())
    return on_outer / border if border else None


def _contact(stack: Labels, one: int, other: int) -> float | None:
    touching = shown = 0
    for plane in np.moveaxis(stack, 2, 0):
        mask, partner = plane == one, plane == other
        if mask.any() and partner.any():
            shown += 1
            touching += bool((ndimage.binary_dilation(mask, _PLANE) & partner).any())
    return touching / shown if shown else None
