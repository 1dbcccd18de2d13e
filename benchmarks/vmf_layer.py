# SPDX-License-Identifier: Apache-2.0
"""How fast is ``VMFKernels`` against the form that the reference code uses?

The naive form, sample by sample in a loop: normalize the features, normalize the kernels, 1 × 1 convolution, exp, mask,
L1-normalize. Both run forward and backward on the same tensors in one interleaved run; a round gives one ratio of CPU
seconds and the median of the ratios counts, so that a busy machine slows both alike.

Run ``python benchmarks/vmf_layer.py``; it exits with 1 if the median is below 1.5.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads must not count as work; read when torch loads
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from vmfseg.networks import VMFKernels
from vmfseg.utils import torch_rng

WANTED = 1.5


def naive(features: torch.Tensor, weight: torch.Tensor, kappa: float, threshold: float) -> torch.Tensor:
    samples = []
    for sample in features:
        norm = sample.norm(dim=0, keepdim=True)
        z = sample / torch.where(norm == 0, torch.ones_like(norm), norm)
        kernels = weight / weight.norm(dim=1, keepdim=True)
        cosine = F.conv2d(z[None], kernels[:, :, None, None])
        activation = torch.exp(kappa * cosine) * (cosine > threshold)
        samples.append(F.normalize(activation, p=1, dim=1))
    return torch.cat(samples)


def cpu_seconds(
    forward: Callable[[torch.Tensor], torch.Tensor], features: torch.Tensor, weight: torch.Tensor, up: torch.Tensor
) -> tuple[float, torch.Tensor, torch.Tensor, torch.Tensor]:
    features.grad = weight.grad = None
    start = time.process_time()
    out = forward(features)
    out.backward(up)
    seconds = time.process_time() - start
    assert features.grad is not None
    assert weight.grad is not None
    return seconds, out.detach(), features.grad.clone(), weight.grad.clone()


def far(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--size", type=int, default=144)
    args = parser.parse_args()
    generator = torch_rng(0, "benchmark", "vmf-layer")
    shape = (4, 64, args.size, args.size)
    features = torch.randn(shape, generator=generator).relu().requires_grad_()
    up = torch.randn(4, 12, args.size, args.size, generator=generator)
    print(f"VMFKernels against the naive form, forward + backward, features {tuple(features.shape)}, J=12, kappa=30")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {args.rounds} rounds, CPU seconds\n")
    worst = float("inf")
    for threshold in (None, 0.0):
        layer = VMFKernels(feature_channels=64, num_kernels=12, threshold=threshold)
        layer.set_kernels(torch.rand(12, 64, generator=generator))
        gate = -2.0 if threshold is None else threshold

        def loop(x: torch.Tensor, layer: VMFKernels = layer, gate: float = gate) -> torch.Tensor:
            return naive(x, layer.weight, 30.0, gate)

        slow, fast, ratios = [], [], []
        for k in range(args.rounds + 2):
            forms = [("slow", loop), ("fast", layer)]
            results = {name: cpu_seconds(form, features, layer.weight, up) for name, form in forms[:: (-1) ** k]}
            if k >= 2:  # two rounds to warm up
                slow.append(results["slow"][0])
                fast.append(results["fast"][0])
                ratios.append(slow[-1] / fast[-1])
        median = statistics.median(ratios)
        worst = min(worst, median)
        errors = [far(results["fast"][i], results["slow"][i]) for i in (1, 2, 3)]
        print(f"threshold={threshold}")
        print(f"  naive {1e3 * statistics.median(slow):7.1f} ms   VMFKernels {1e3 * statistics.median(fast):7.1f} ms")
        print(f"  speed-up {median:.2f} (median of per-round ratios; {min(ratios):.2f} to {max(ratios):.2f})")
        print("  largest relative difference: output {:.0e}, gradients {:.0e} and {:.0e}".format(*errors))
    print(f"\nwanted: at least {WANTED}; {'met' if worst >= WANTED else 'MISSED'}")
    return 0 if worst >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
