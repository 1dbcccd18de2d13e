# SPDX-License-Identifier: Apache-2.0
"""Draw the picture of the README: a slice of the unseen vendor, its segmentation and the activations of the kernels.

``python docs/picture.py BUNDLE`` takes a bundle that was trained on the phantom. It shows the volume of median Dice in
the target domain, and of that volume the slice with the largest foreground.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import Patch

from vmfseg.model import Predictor
from vmfseg.utils import atomic_write
from vmfseg.visualize import run_experiment, view_volume
from vmfseg.visualize.activations import TISSUE_GROUPS, ChannelLabel, anatomy_table, order_channels
from vmfseg.visualize.figure_style import INK, MUTED, class_color, new_figure, overlay, png_bytes, upright
from vmfseg.visualize.slice_views import SliceView, as_samples

HERE = Path(__file__).parent
COLUMNS, PANE, GAP, LARGE = 6, 1.3, 0.06, 2.9  # inches


def median_volume(predictor: Predictor, rows: list[dict[str, Any]]) -> tuple[list[SliceView], float]:
    """Return the slices of the volume of median Dice, and that Dice."""
    scored = []
    for row in rows:
        views = view_volume(predictor, row)
        pred, truth = (np.stack([getattr(view, name) for view in views]) for name in ("pred", "truth"))
        dices = [2 * ((pred == c) & (truth == c)).sum() / ((pred == c).sum() + (truth == c).sum()) for c in (1, 2, 3)]
        scored.append((float(np.mean(dices)), str(row["image"]), views))
    scored.sort(key=lambda entry: entry[:2])
    dice, _, views = scored[(len(scored) - 1) // 2]
    return views, dice


def name_kernels(predictor: Predictor, rows: list[dict[str, Any]]) -> list[ChannelLabel]:
    """Name every kernel by the tissue of highest Dice in the given volumes."""
    views = [view for row in rows for view in view_volume(predictor, row)]
    return order_channels(anatomy_table(as_samples(views, tissues=True), TISSUE_GROUPS))


def draw(view: SliceView, labels: dict[int, str], kernels: list[ChannelLabel], vendor: str) -> Any:
    """Draw scan and segmentation large, the activations of the kernels beside them."""
    maps, truth = view.activations, view.truth
    if maps is None or truth is None:
        raise ValueError("view must have activations and a truth, got none. Use a network with kernels.")
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
        if value and (truth == value).any():
            found.contour(upright(truth == value), levels=[0.5], colors="white", linewidths=1.1)
    handles = [Patch(color=class_color(value), label=name) for value, name in sorted(labels.items()) if value]
    found.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.005), ncols=3, frameon=False, fontsize=9,
        labelcolor=INK, handlelength=1.1, columnspacing=1.2,
    )  # fmt: skip
    for number, entry in enumerate(kernels):
        x = left + (number % COLUMNS) * (PANE + GAP)
        y = 0.32 + (number // COLUMNS) * (PANE + 0.3)
        axis = pane(x, y, PANE, entry.name or "unused", 8.5)
        axis.imshow(upright(maps[entry.channel]), cmap="magma", vmin=0, vmax=1, interpolation="nearest")
    width, total = figure.get_size_inches()
    text = "activations of the kernels, each named by the tissue of highest Dice in source subjects"
    figure.text(left / width, 0.1 / total, text, fontsize=9, color=MUTED, va="bottom")
    return figure


def main() -> None:
    """Read the arguments and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle that was trained on the phantom")
    parser.add_argument("--model", type=Path, help="folder or file of weights outside the bundle")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "picture.png", help="PNG to write")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    predictor = Predictor.from_bundle(given.bundle, "cpu", checkpoint=given.model)
    experiment, _ = run_experiment(predictor.model)
    views, dice = median_volume(predictor, experiment.target)
    view = max(views, key=lambda v: (0 if v.truth is None else int((v.truth > 0).sum()), -v.index))
    names = {"A": "Siemens", "B": "Philips", "C": "GE", "D": "Canon"}
    vendor = f"unseen scanner ({names.get(view.domain, view.domain)}, simulated)"
    figure = draw(view, predictor.labels, name_kernels(predictor, experiment.validation), vendor)
    atomic_write(given.output, png_bytes(figure, dpi=110))
    print(f"{given.output}: subject {view.subject} {view.phase}, slice {view.index}, Dice of the volume {dice:.3f}")  # noqa: T201


if __name__ == "__main__":
    main()
