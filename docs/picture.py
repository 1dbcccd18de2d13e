# SPDX-License-Identifier: Apache-2.0
"""Draw the picture of the README: a scanner that was never seen in training, its segmentation, and the kernels' maps.

``python docs/picture.py BUNDLE`` takes a bundle that was trained on the phantom. The volume is the one of median Dice
among those of the unseen vendor, the slice the one with most heart in it: neither the best nor the worst.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import Patch

from vmfseg.utils import atomic_write
from vmfseg.visualize import (
    TISSUE_GROUPS,
    ChannelLabel,
    RunModel,
    SliceView,
    anatomy_table,
    as_samples,
    load_run_model,
    order_channels,
    png_bytes,
    view_volume,
)
from vmfseg.visualize.style import INK, MUTED, class_color, new_figure, overlay, upright

HERE = Path(__file__).parent
COLUMNS, PANE, GAP, LARGE = 6, 1.3, 0.06, 2.9  # inches


def median_volume(model: RunModel) -> tuple[list[SliceView], float]:
    """Return the slices of the target volume of median Dice, and that Dice."""
    scored = []
    for row in model.experiment.target:
        views = view_volume(model.network, row, model.pixdim, model.image_size)
        pred, truth = (np.stack([getattr(view, name) for view in views]) for name in ("pred", "truth"))
        dice = [2 * ((pred == c) & (truth == c)).sum() / ((pred == c).sum() + (truth == c).sum()) for c in (1, 2, 3)]
        scored.append((float(np.mean(dice)), str(row["image"]), views))
    scored.sort(key=lambda entry: entry[:2])
    dice, _, views = scored[(len(scored) - 1) // 2]
    return views, dice


def name_kernels(model: RunModel) -> list[ChannelLabel]:
    """Name every kernel by the tissue that it fits best in source subjects which chose the model."""
    views: list[SliceView] = []
    for row in model.experiment.validation:
        views += view_volume(model.network, row, model.pixdim, model.image_size)
    return order_channels(anatomy_table(as_samples(views, tissues=True), TISSUE_GROUPS))


def draw(view: SliceView, labels: dict[int, str], kernels: list[ChannelLabel], vendor: str) -> Any:
    """Draw scan and segmentation large, the kernels' maps beside them."""
    rows = -(-len(kernels) // COLUMNS)
    height = max(LARGE, rows * (PANE + 0.3) - 0.3) + 0.62
    left = 2 * (LARGE + 0.08) + 0.25
    figure = new_figure(left + COLUMNS * (PANE + GAP) + 0.05, height, layout=None)

    def pane(x: float, y: float, size: float, title: str, fontsize: float = 10) -> Any:
        width, total = figure.get_size_inches()
        axis = figure.add_axes((x / width, 1 - (y + size) / total, size / width, size / total))
        axis.set_title(title, fontsize=fontsize, color=INK, pad=3)
        axis.axis("off")
        return axis

    scan = pane(0.05, 0.32, LARGE, vendor)
    scan.imshow(upright(view.image), cmap="gray", interpolation="bicubic")
    found = pane(0.05 + LARGE + 0.08, 0.32, LARGE, "segmentation (outline: truth)")
    found.imshow(upright(view.image), cmap="gray", interpolation="bicubic")
    found.imshow(upright(overlay(view.pred, 0.55)), interpolation="nearest")
    for value in labels:
        if value and (view.truth == value).any():
            found.contour(upright(view.truth == value), levels=[0.5], colors="white", linewidths=1.1)
    handles = [Patch(color=class_color(value), label=name) for value, name in sorted(labels.items()) if value]
    found.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.005), ncols=3, frameon=False, fontsize=9,
        labelcolor=INK, handlelength=1.1, columnspacing=1.2,
    )  # fmt: skip
    for number, entry in enumerate(kernels):
        x = left + (number % COLUMNS) * (PANE + GAP)
        y = 0.32 + (number // COLUMNS) * (PANE + 0.3)
        axis = pane(x, y, PANE, entry.name or "unused", 8.5)
        axis.imshow(upright(view.activations[entry.channel]), cmap="magma", vmin=0, vmax=1, interpolation="nearest")
    width, total = figure.get_size_inches()
    text = "what each kernel explains of it, named by the tissue it fits best in other subjects"
    figure.text(left / width, 0.1 / total, text, fontsize=9, color=MUTED, va="bottom")
    return figure


def main() -> None:
    """Read the arguments and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle that was trained on the phantom")
    parser.add_argument("--model", type=Path, help="weights of a run, if they do not lie in the bundle")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "picture.png", help="PNG to write")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    model = load_run_model(given.bundle, given.model)
    views, dice = median_volume(model)
    view = max(views, key=lambda v: (int((v.truth > 0).sum()), -v.index))
    names = {"A": "Siemens", "B": "Philips", "C": "GE", "D": "Canon"}
    vendor = f"unseen scanner ({names.get(view.domain, view.domain)}, simulated)"
    figure = draw(view, model.experiment.labels, name_kernels(model), vendor)
    atomic_write(given.output, png_bytes(figure, dpi=110))
    print(f"{given.output}: subject {view.subject} {view.phase}, slice {view.index}, Dice of the volume {dice:.3f}")  # noqa: T201


if __name__ == "__main__":
    main()
