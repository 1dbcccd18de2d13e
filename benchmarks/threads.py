# SPDX-License-Identifier: Apache-2.0
"""Threads on a busy machine: seconds of a training step of vmfnet_scgm's network, alone and beside other processes.

``python benchmarks/threads.py``. OpenMP's threads spin while they wait for each other; where other processes hold the
cores, a spinning thread takes the time that the one it waits for would need. ``vmfseg`` and the bundles therefore let
them sleep after a short spin where a machine is busy (:func:`vmfseg.threads.calm_threads`). Each figure is the median
over rounds in which all settings take turns; each setting runs in a process of its own, because the library reads it
when it starts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

from vmfseg.threads import SPIN_COUNT

SETTINGS = {
    "one thread": {"OMP_NUM_THREADS": "1"},
    "two threads, library's default": {"OMP_NUM_THREADS": "2"},
    "two threads, short spin (if busy)": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": str(SPIN_COUNT)},
}
SPIN = "while True: pass"


def steps(count: int, size: int) -> float:
    """Return the seconds of a step, after one to warm up."""
    import torch

    from vmfseg.losses import VMFLoss
    from vmfseg.networks import VMFNet

    options = {"out_channels": 3, "channels": (16, 32, 64, 128, 128), "level": 0, "hidden_channels": 16, "kappa": 10.0}
    network = VMFNet(**options, last_activation="none", log_activations=True, seed=0)
    network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    loss = VMFLoss({"dice": 1.0, "cross_entropy": 1.0, "reconstruction": 0.1, "clustering": 1.0})
    image, label = torch.rand(4, 1, size, size), torch.randint(0, 3, (4, 1, size, size))
    start = 0.0
    for number in range(count + 1):
        if number == 1:
            start = time.perf_counter()
        optimizer.zero_grad()
        parts = network(image, return_parts=True)
        torch.stack(list(loss(parts, {"image": image, "label": label}).values())).sum().backward()
        optimizer.step()
    return (time.perf_counter() - start) / count


def measure(setting: dict[str, str], count: int, size: int) -> float:
    """Return the seconds of a step in a new process."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "MKL_", "KMP_"))}
    command = [sys.executable, __file__, "--child", "--steps", str(count), "--size", str(size)]
    done = subprocess.run(command, env={**clean, **setting}, capture_output=True, text=True, check=True)  # noqa: S603
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        sys.stdout.write(str(steps(arguments.steps, arguments.size)))
        return
    for title, others in (("alone", 0), ("beside one busy process a core", os.cpu_count() or 2)):
        busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(others)]  # noqa: S603
        try:
            rounds = [
                {name: measure(setting, arguments.steps, arguments.size) for name, setting in SETTINGS.items()}
                for _ in range(arguments.rounds)
            ]
        finally:
            for process in busy:
                process.kill()
        print(f"{title}: seconds of a step")
        for name in SETTINGS:
            values = [found[name] for found in rounds]
            print(f"  {name:<34}{statistics.median(values):.3f}  ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
