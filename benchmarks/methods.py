# SPDX-License-Identifier: Apache-2.0
"""What does one iteration of every compared method cost, in CPU seconds relative to vMFNet?

The trainers are those of the bundles ``<method>_mnms`` with ``train.json``, all with networks of the widths 16, 32, 64,
128, 128 on batches of six slices of 64 x 64. An iteration is what ``max_iterations`` counts: one labelled batch and,
for methods that learn from them, one unlabelled batch; each batch is one optimizer step. Loading and augmentation are
the same for all and are left out. With levers, U-Net and vMFNet learn from copy-paste with a mean teacher (after its
warm-up), vMFNet with the kernels' vote, and from a second view of unlabelled slices.

The methods alternate in one run; every round gives one ratio to vMFNet for each and the median of the ratios counts, so
that a busy machine slows all alike. Run ``python benchmarks/methods.py``.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads must not count as work; read when torch loads
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser

import vmfseg.bundle
from vmfseg.phantom import make_phantom

BUNDLES = Path(__file__).parents[1] / "bundles"
METHODS = ("vmfnet", "unet", "sdnet", "lddg", "saml", "dgnet")
_PASTE: dict[str, Any] = {"copy_paste": 1.0, "train::paste::warm_up": 0.0}
LEVERS: dict[str, dict[str, Any]] = {
    "unet paste": _PASTE,
    "unet views": {"consistency": 0.1},
    "vmfnet paste": _PASTE,
    "vmfnet vote": {**_PASTE, "kernel_vote": True},
    "vmfnet views": {"consistency": 0.1},
    "vmfnet all": {**_PASTE, "kernel_vote": True, "consistency": 0.1},
}
OVERRIDES: dict[str, Any] = {"labeled_fraction": 1.0, "batch_size": 6, "device": "cpu", "epoch_length": 100}


class Contender:
    """Trainer and batches of a bundle, run one iteration at a time."""

    def __init__(self, name: str, data: Path, scratch: Path) -> None:
        method = name.split()[0]
        parser = ConfigParser()
        parser.read_config(str(BUNDLES / f"{method}_mnms" / "configs" / "train.json"))
        parser.update({**OVERRIDES, "bundle_root": str(BUNDLES / f"{method}_mnms"), "dataset_dir": str(data)})
        parser["output_dir"] = str(scratch)
        if "unlabeled_batch_size" in parser:
            parser["unlabeled_batch_size"] = OVERRIDES["batch_size"]
        if method == "sdnet":
            parser["train::trainer::warm_up"] = 0  # with factor augmentation, as in most of the training
        for key, value in LEVERS.get(name, {}).items():
            parser[key] = value
        with contextlib.redirect_stdout(io.StringIO()):
            self.trainer = parser.get_parsed_content("train::trainer")
        self.network = parser.get_parsed_content("network")
        self.batches = iter(self.trainer.data_loader)
        self.steps = 2 if self.trainer.data_loader.ratio else 1
        self.trainer.state.epoch_length = len(self.trainer.data_loader)
        self.trainer.state.max_epochs = 1

    def iteration(self) -> float:
        """Return the CPU seconds of one iteration, batches not counted."""
        batches = [next(self.batches) for _ in range(self.steps)]
        start = time.process_time()
        for batch in batches:
            self.trainer.state.iteration += 1
            self.trainer._iteration(self.trainer, batch)
        return time.process_time() - start


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="after one to warm up (20)")
    rounds = parser.parse_args(arguments).rounds
    torch.set_num_threads(1)
    vmfseg.bundle.start_run()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        data = make_phantom(root / "data", "mnms", subjects=8, frames=2, size=64, workers=1)
        names = (*METHODS, *LEVERS)
        contenders = {name: Contender(name, data, root / name.replace(" ", "-")) for name in names}
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(rounds + 1):
            for method, contender in contenders.items():
                spent = contender.iteration()
                if turn:
                    seconds[method].append(spent)
    out = sys.stdout.write
    out(f"six slices a batch, 64 x 64, CPU seconds; torch {torch.__version__}, one thread, {rounds} rounds\n\n")
    out(
        "method        parameters  steps  s/iteration  s/step  iteration / vMFNet (from, to)  step / vMFNet"
        "  step / U-Net (from, to)\n"
    )
    for method, contender in contenders.items():
        ratios = [own / base for own, base in zip(seconds[method], seconds["vmfnet"], strict=True)]
        ratio, own = statistics.median(ratios), statistics.median(seconds[method])
        count = sum(p.numel() for p in contender.network.parameters())
        to_unet = [s / contender.steps / u for s, u in zip(seconds[method], seconds["unet"], strict=True)]
        against_unet = f"{statistics.median(to_unet):.2f} ({min(to_unet):.2f}, {max(to_unet):.2f})"
        span = f"{ratio:.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        out(
            f"{method:<13} {count:>10,} {contender.steps:>6} {own:>12.3f} {own / contender.steps:>7.3f}"
            f" {span:>30} {ratio * 2 / contender.steps:>14.2f} {against_unet:>24}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
