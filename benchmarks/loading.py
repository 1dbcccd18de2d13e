# SPDX-License-Identifier: Apache-2.0
"""How many augmented slices a CPU-second yields: our loader against MONAI's random transforms, slice by slice.

Both sides start from the same slices in memory and end with collated batches of image and label, augmented by the same
distribution: an angle uniform in 0 ... 90 degrees, a flip of each axis with probability 0.5, a Gaussian blur with sigma
~ U(0.25, 1.25). MONAI draws any angle and a sigma for each axis and cuts its kernel at four sigma (3 to 11 taps), so a
second row gives our side any angle and 11 taps. The ratios are against MONAI without metadata, its faster setting; its
default is shown too. The sides take turns in one process and one thread; the ratio is the median over rounds of the
ratio of CPU times.

    python benchmarks/loading.py            # 288 x 288, the paper's size
    python benchmarks/loading.py --size 128 --rounds 5
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path

import monai
import numpy as np
import torch
from monai.data import CacheDataset, DataLoader, set_track_meta
from monai.transforms import Compose, Lambda, RandFlipd, RandGaussianSmoothd, RandRotated

from vmfseg.data import SliceDataset, SliceLoader
from vmfseg.transforms import BatchAugment
from vmfseg.utils import atomic_write

TARGET = 3.0
KEYS = ("image", "label")
BASE, DEFAULT = "MONAI, without metadata", "MONAI, default"


def slices(size: int, volumes: int = 4, depth: int = 12) -> SliceDataset:
    """Return slices in memory, without files."""

    def volume(row: dict) -> dict:
        rng = np.random.default_rng(int(row["subject"]))
        image = torch.from_numpy(rng.random((1, size, size, depth), dtype=np.float32))
        label = torch.zeros(1, size, size, depth, dtype=torch.uint8)
        label[:, size // 3 : size // 2, size // 3 : size // 2] = 1
        return {**row, "image": image, "label": label}

    rows = [{"image": str(k), "label": str(k), "domain": "A", "subject": str(k)} for k in range(volumes)]
    return SliceDataset(rows, Lambda(volume))


def monai_pipeline(dataset: SliceDataset, batch_size: int) -> DataLoader:
    """Return the usual MONAI pipeline: cached slices, random transforms on each, collate."""
    cached = [{key: dataset[k][key] for key in KEYS} for k in range(len(dataset))]
    transforms = Compose(
        [
            RandRotated(KEYS, range_x=(0, np.pi / 2), prob=1.0, mode=("bilinear", "nearest"), padding_mode="zeros"),
            RandFlipd(KEYS, prob=0.5, spatial_axis=0),
            RandFlipd(KEYS, prob=0.5, spatial_axis=1),
            RandGaussianSmoothd("image", sigma_x=(0.25, 1.25), sigma_y=(0.25, 1.25), prob=1.0),
        ]
    ).set_random_state(0)
    data = CacheDataset(cached, transforms, progress=False, copy_cache=False)
    return DataLoader(data, batch_size=batch_size, shuffle=True, drop_last=True)


def seconds(loader: object) -> float:
    """Return the CPU time for one slice."""
    start, count = time.process_time(), 0
    for batch in loader:  # type: ignore[attr-defined]
        count += len(batch["image"])
    return (time.process_time() - start) / count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=288)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "loading.txt")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = slices(args.size)
    sides = {
        BASE: monai_pipeline(dataset, args.batch_size),
        DEFAULT: monai_pipeline(dataset, args.batch_size),
        "ours, reference settings": SliceLoader(dataset, args.batch_size, augment=BatchAugment()),
        "ours, any angle and 11 taps": SliceLoader(
            dataset, args.batch_size, augment=BatchAugment(integer_angles=False, blur_kernel=11)
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(args.rounds + 1):
        for name, loader in sides.items():
            set_track_meta(name == DEFAULT)
            value = seconds(loader)
            if turn:  # the first round warms up
                times[name].append(value)
    base = times[BASE]
    lines = [
        f"loading: {args.size} x {args.size}, batch {args.batch_size}, {args.rounds} rounds of {len(dataset)} slices, "
        "one thread",
        f"torch {torch.__version__}, monai {monai.__version__}, {platform.machine()}",
        f"{'pipeline':<30}{'slices per CPU-s':>18}{'ratio':>9}{'range over rounds':>22}",
    ]
    ratios = {}
    for name, values in times.items():
        each = [b / v for b, v in zip(base, values, strict=True)]
        ratios[name] = statistics.median(each)
        spread = f"{min(each):.2f} to {max(each):.2f}"
        lines.append(f"{name:<30}{1 / statistics.median(values):>18.0f}{ratios[name]:>9.2f}{spread:>22}")
    worst = min(ratio for name, ratio in ratios.items() if name.startswith("ours"))
    lines.append(f"target {TARGET:.1f}: {'reached' if worst >= TARGET else 'MISSED'} (lower row {worst:.2f})")
    text = "\n".join(lines)
    print(text)
    atomic_write(args.output, text + "\n")
    return 0 if worst >= TARGET else 1


if __name__ == "__main__":
    raise SystemExit(main())
