# SPDX-License-Identifier: Apache-2.0
"""Score volumes with vmfseg and with MONAI's Hausdorff distance alone, interleaved, in CPU seconds.

``python benchmarks/metrics.py`` scores 100 pairs of 288 x 288 x 12 volumes with three classes on one thread and writes
``benchmarks/results/metrics.txt``. vmfseg computes Dice, HD, HD95, ASSD and volumes from the label maps; MONAI gets
one-hot tensors that are made outside of its time, and computes HD only.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import monai
import numpy as np
import scipy
import torch
from monai.metrics import compute_hausdorff_distance

from vmfseg.metrics import evaluate_volume
from vmfseg.utils import atomic_write, numpy_rng

SHAPE, SPACING, LABELS = (288, 288, 12), (1.25, 1.25, 8.0), {1: "LV", 2: "MYO", 3: "RV"}


def heart(rng: np.random.Generator, jitter: float) -> np.ndarray:
    """Return a short-axis heart: tapering ventricles with a wavy border, shifted and scaled by up to ``jitter``."""
    x, y, z = np.ogrid[: SHAPE[0], : SHAPE[1], : SHAPE[2]]
    center = np.array(SHAPE[:2]) / 2 + rng.uniform(-4, 4, 2) * jitter
    angle = np.arctan2(y - center[1], x - center[0])
    wave = 1 + 0.04 * jitter * np.sin(rng.integers(3, 7) * angle + rng.uniform(0, 6))
    taper = (1 + 0.06 * jitter * rng.uniform(-1, 1)) * (1 - 0.05 * np.abs(z - 4)) * wave
    radius = np.hypot(x - center[0], y - center[1]) / taper
    right = np.hypot(x - center[0] - 32, 0.8 * (y - center[1])) / taper
    volume = np.zeros(SHAPE, np.uint8)
    volume[right < 32] = 3
    volume[radius < 29] = 2
    volume[radius < 19] = 1
    return volume


def one_hot(volume: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.stack([volume == label for label in range(4)]))[None].float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--volumes", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "metrics.txt")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seconds = {"vmfseg": 0.0, "monai": 0.0}
    difference = 0.0
    for number in range(arguments.volumes):
        rng = numpy_rng("benchmark", number)
        pred, truth = heart(rng, 1.0), heart(rng, 0.5)
        batch = one_hot(pred), one_hot(truth)
        start = time.process_time()
        rows = evaluate_volume(pred, truth, SPACING, LABELS)
        seconds["vmfseg"] += time.process_time() - start
        start = time.process_time()
        theirs = compute_hausdorff_distance(*batch, spacing=SPACING)
        seconds["monai"] += time.process_time() - start
        difference = max(difference, *(abs(row.hd_mm - hd) for row, hd in zip(rows, theirs[0].tolist(), strict=True)))
    assert difference < 1e-4, difference
    ratio = seconds["monai"] / seconds["vmfseg"]
    lines = [
        f"{arguments.volumes} volumes of {'x'.join(map(str, SHAPE))}, 3 classes, one thread, interleaved, CPU seconds",
        f"vmfseg evaluate_volume (Dice, HD, HD95, ASSD, volumes)  {seconds['vmfseg']:8.2f} s",
        f"MONAI compute_hausdorff_distance (HD only)              {seconds['monai']:8.2f} s",
        f"vmfseg is {ratio:.2f} times as fast; largest difference of the HD {difference:.1e} mm",
        f"python {platform.python_version()}, monai {monai.__version__}, torch {torch.__version__}, "
        f"scipy {scipy.__version__}",
    ]
    print("\n".join(lines))
    if arguments.volumes >= 100:
        atomic_write(arguments.output, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
