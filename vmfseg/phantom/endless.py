# SPDX-License-Identifier: Apache-2.0
"""Phantom slices for training, drawn without end: each is a pure function of the seed and its number."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from vmfseg.phantom.cord_slices import draw_cord_exam
from vmfseg.phantom.gin import random_contrast
from vmfseg.phantom.heart_scene import Convention
from vmfseg.phantom.heart_slices import draw_heart_exam, draw_slice_choice
from vmfseg.phantom.scanner import normalize
from vmfseg.phantom.shapes import Floats
from vmfseg.utils import check_choice, numpy_rng

__all__ = ["PhantomSlices"]

#: Grid of a kind if nothing else is asked for: spacing in mm and size in pixels.
_GRID = {"hearts": (1.4, 128), "cords": (0.5, 96)}
_LARGEST = 2**31


class PhantomSlices(Dataset[dict[str, Any]]):
    """Slices of phantom hearts or spinal cords in slice space, drawn on the fly.

    Item ``i`` shows another person on another scanner for every ``i`` and depends on ``seed``, ``i`` and the
    arguments only, in any process and any order. Nothing is stored, so any number of items up to 2**31 can be asked
    for; ``len`` is the nominal length of an epoch.

    An item is a dictionary: ``image`` float32 (1, H, W) in [0, 1], normalized by percentiles 0.5 and 99.5 of the
    slice; ``label`` uint8 (1, H, W) with 1 LV, 2 MYO, 3 RV (hearts) or 1 gray matter, 2 white matter (cords);
    ``domain``, ``subject`` and ``sample`` as text. Axes run to the patient's
    right (or front) and up (or front), as in the slice space of real scans.

    Args:
        kind: ``"hearts"`` (short-axis cine) or ``"cords"`` (axial T2*-weighted).
        seed: seed of all items.
        length: nominal length of an epoch.
        pixdim: spacing in mm; 1.4 for hearts, 0.5 for cords unless given.
        size: pixels along both axes; 128 for hearts, 96 for cords unless given.
        lost: probability of a slice turned by quarters and mirrored at will, for scans that lost their orientation;
            the others are as headers give them, turned by less than 45 degrees.
        papillary: whether papillary muscles and trabeculae belong to the ``"cavity"`` (as most readers draw) or to
            the ``"wall"`` (hearts only).
        tight: probability of a field of view that is smaller than the grid; zeros surround it.
        gin: probability of a contrast beyond physics (:func:`vmfseg.phantom.gin.random_contrast`).

    Raises:
        ValueError: if an argument is out of range.
        IndexError: if an item is not from 0 to 2**31 - 1.

    Example:
        >>> slices = PhantomSlices("hearts", seed=7, pixdim=2.0, size=64)
        >>> item = slices[123456]
        >>> item["image"].shape, item["label"].dtype, item["sample"]
        (torch.Size([1, 64, 64]), torch.uint8, 'hearts-7-123456')
        >>> bool((item["image"] == PhantomSlices("hearts", seed=7, pixdim=2.0, size=64)[123456]["image"]).all())
        True
    """

    def __init__(
        self,
        kind: str = "hearts",
        *,
        seed: int = 0,
        length: int = 1000,
        pixdim: float | None = None,
        size: int | tuple[int, int] | None = None,
        lost: float = 0.0,
        papillary: Convention = "cavity",
        tight: float = 0.4,
        gin: float = 0.0,
    ) -> None:
        check_choice("kind", kind, tuple(_GRID))
        check_choice("papillary", papillary, ("cavity", "wall"))
        for name, value in (("lost", lost), ("tight", tight), ("gin", gin)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must be a probability from 0 to 1, got {value}. 0 switches it off.")
        self.kind, self.seed, self.length = kind, int(seed), int(length)
        self.pixdim = float(pixdim or _GRID[kind][0])
        pixels = size or _GRID[kind][1]
        self.size = (pixels, pixels) if isinstance(pixels, int) else (int(pixels[0]), int(pixels[1]))
        if min(self.size) < 16 or self.length < 1 or self.pixdim <= 0:
            raise ValueError(
                f"size must be at least 16, length at least 1 and pixdim above 0, got {self.size}, {length} and "
                f"{pixdim}. Hearts need about 128 pixels of 1.4 mm, cords 96 of 0.5 mm."
            )
        self.lost, self.papillary, self.tight, self.gin = float(lost), papillary, float(tight), float(gin)

    def __len__(self) -> int:
        """Return the nominal length of an epoch."""
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Draw item ``index``; numbers beyond the nominal length are items too."""
        number = int(index)
        if not 0 <= number < _LARGEST:
            raise IndexError(f"index must be from 0 to {_LARGEST - 1}, got {index}. Items are numbered from 0.")
        rng = numpy_rng(self.seed, "slices", self.kind, number)
        picture, label, domain = self._draw(rng)
        if self.gin and rng.random() < self.gin:
            picture = random_contrast(normalize(picture), rng)
        image = self._window(picture, label, rng)
        if self.lost and rng.random() < self.lost:
            image, label = _turned(image, label, int(rng.integers(4)), bool(rng.integers(2)))
        # the picture runs to the patient's left and feet (or back), slice space to the right and up (or front)
        image, label = np.ascontiguousarray(image[::-1, ::-1]), np.ascontiguousarray(label[::-1, ::-1])
        name = f"{self.kind}-{self.seed}-{number}"
        return {
            "image": torch.from_numpy(image[None]), "label": torch.from_numpy(label[None]),
            "domain": domain, "subject": name, "sample": name,
        }  # fmt: skip

    def _draw(self, rng: np.random.Generator) -> tuple[Floats, NDArray[np.uint8], str]:
        count = self.size
        if self.kind == "cords":
            cord = draw_cord_exam(rng)
            level = float(rng.uniform(0.7, 6.9))
            return cord.picture(level, count, self.pixdim, rng), cord.label(level, count, self.pixdim), cord.name
        exam = draw_heart_exam(rng)
        choice = draw_slice_choice(rng, exam)
        picture = exam.picture(choice, count, self.pixdim, rng)
        return picture, exam.label(choice, count, self.pixdim, self.papillary), exam.protocol.name

    def _window(self, picture: Floats, label: NDArray[np.uint8], rng: np.random.Generator) -> Floats:
        """Normalize within the scan's own field of view, which may end inside the grid or reach beyond it."""
        part = (slice(None), slice(None))
        if rng.random() < self.tight:
            ends = []
            for n in picture.shape:
                lost = rng.integers(0, max(1, round(0.12 * n)), 2)
                ends.append(slice(int(lost[0]), n - int(lost[1])))
            part = (ends[0], ends[1])
        inner = normalize(picture[part])
        if part[0] == slice(None) and rng.random() < 0.4:  # brighter or darker structures lie outside the grid
            inner = np.clip(inner * np.float32(rng.uniform(0.7, 1.35)), 0, 1)
        image = np.zeros(picture.shape, np.float32)
        image[part] = inner
        outside = np.ones(label.shape, bool)
        outside[part] = False
        label[outside] = 0
        return image


def _turned(image: Floats, label: NDArray[np.uint8], quarters: int, mirrored: bool) -> tuple[Floats, NDArray[np.uint8]]:
    """Turn by quarters (half turns only, where the grid is not square) and mirror."""
    quarters = quarters if image.shape[0] == image.shape[1] else 2 * (quarters % 2)
    pair = (np.rot90(image, quarters), np.rot90(label, quarters))
    return (pair[0][::-1], pair[1][::-1]) if mirrored else pair
