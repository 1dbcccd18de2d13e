# SPDX-License-Identifier: Apache-2.0
"""How fast is one optimizer step of the paper's network against a straight port of the reference's forms?

Both do the same maths on the same weights: a labelled step (Dice, reconstruction, clustering; backward; clipping;
Adam), batch 4, 288 × 288, 17 455 173 parameters. The port loops over the samples in the vMF layer, the composition and
the losses, computes the last up-stage of the U-Net that nothing uses, keeps the contiguous layout and clips and steps
parameter by parameter. Ours is ``VMFNet`` with ``VMFLoss`` and fused Adam, in the channels-last layout of the bundles,
in which convolutions of many channels go Winograd's way (``vmfseg.networks.convolution``).

The two alternate in one run; a round gives one ratio of CPU seconds and the median of the ratios counts, so that a busy
machine slows both alike. Run ``python benchmarks/step.py``; it exits with 1 if the median is below 1.25.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads must not count as work; read when torch loads
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F

from vmfseg.losses import VMFLoss
from vmfseg.networks import ReconstructionUNet, VMFNet
from vmfseg.networks.convolution import Conv3x3
from vmfseg.utils import torch_rng

WANTED = 1.25
CLIP = 0.1
WEIGHTS = {"dice": 1.0, "reconstruction": 1.0, "clustering": 1.0}


class Stopwatch:
    """CPU seconds by part."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Add the time of the block to a part."""
        start = time.process_time()
        yield
        self.parts[part] = self.parts.get(part, 0.0) + time.process_time() - start


class Port(nn.Module):
    """The reference's forms around the layers of a ``VMFNet``."""

    def __init__(self, net: VMFNet) -> None:
        super().__init__()
        self.net = net
        self.dead = ReconstructionUNet(copy.deepcopy(net.encoder)).ups  # the up-stage whose result is thrown away
        self.dead_out = nn.Conv2d(64, 4, kernel_size=1)
        for module in self.modules():
            if isinstance(module, Conv3x3):
                module.__class__ = nn.Conv2d  # the reference's layer

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features, and compute what nothing uses."""
        maps = self.net.encoder.pyramid(x)
        self.dead_out(self.dead[0](maps[0], maps[1]))
        return maps[0]

    def activate(self, features: torch.Tensor) -> torch.Tensor:
        """Return the vMF activations, sample by sample."""
        samples = []
        for sample in features:
            norm = sample.norm(dim=0, keepdim=True)
            z = sample / torch.where(norm == 0, torch.ones_like(norm), norm)
            weight = self.net.kernels.weight
            cosine = F.conv2d(z[None], (weight / weight.norm(dim=1, keepdim=True))[:, :, None, None])
            activation = torch.exp(30.0 * cosine) * (cosine > 0)
            samples.append(activation / activation.sum(dim=1, keepdim=True).clamp_min(1e-12))
        return torch.cat(samples)

    def compose(self, activations: torch.Tensor) -> torch.Tensor:
        """Return the recomposed features, sample by sample."""
        samples = []
        for sample in activations:
            flat = sample.flatten(1)
            samples.append((self.net.kernels.weight.t() @ flat).view(-1, *sample.shape[1:]))
        return torch.stack(samples)

    def losses(
        self, logits: torch.Tensor, image: torch.Tensor, made: torch.Tensor, label: torch.Tensor, features: torch.Tensor
    ) -> torch.Tensor:
        """Return Dice class by class, reconstruction, and clustering sample by sample."""
        p = torch.sigmoid(logits)
        loss = F.l1_loss(made, image)
        for n in range(p.shape[1]):
            truth = (label[:, 0] == n).float()
            overlap = (p[:, n] * truth).sum()
            loss = loss + 1 - (2 * overlap + 0.1) / (p[:, n].sum() + truth.sum() + 0.1)
        for sample in features.detach():
            norm = sample.norm(dim=0, keepdim=True)
            z = sample / torch.where(norm == 0, torch.ones_like(norm), norm)
            weight = self.net.kernels.weight
            cosine = F.conv2d(z[None], (weight / weight.norm(dim=1, keepdim=True))[:, :, None, None])
            loss = loss + 1 - cosine.amax(dim=1).mean()
        return loss


def reference_step(port: Port, optimizer: torch.optim.Optimizer, image: torch.Tensor, label: torch.Tensor) -> Stopwatch:
    watch = Stopwatch()
    port.train()
    optimizer.zero_grad()
    with watch("encoder"):
        features = port.encode(image)
    with watch("vMF layer"):
        activations = port.activate(features)
    with watch("segmentation head"):
        logits = port.net.head(activations)
    with watch("reconstruction"):
        made = port.net.composer.decoder(port.compose(activations))
    with watch("losses"):
        loss = port.losses(logits, image, made, label, features)
    with watch("backward"):
        loss.backward()
    with watch("clip and Adam"):
        for parameter in port.parameters():
            if parameter.grad is not None:
                parameter.grad.clamp_(-CLIP, CLIP)
        optimizer.step()
    watch.loss = float(loss.detach())  # type: ignore[attr-defined]
    return watch


def our_step(net: VMFNet, optimizer: torch.optim.Optimizer, image: torch.Tensor, label: torch.Tensor) -> Stopwatch:
    watch, loss_function = Stopwatch(), VMFLoss(WEIGHTS, squared_pred=False, clustering_reduction="sum")
    names = {
        "encoder": net.encoder,
        "vMF layer": net.kernels,
        "segmentation head": net.head,
        "reconstruction": net.composer,
    }
    starts: dict[str, float] = {}
    hooks = []
    for part, module in names.items():
        hooks.append(module.register_forward_pre_hook(lambda *_, part=part: starts.update({part: time.process_time()})))
        hooks.append(
            module.register_forward_hook(
                lambda *_, part=part: watch.parts.update({part: time.process_time() - starts[part]}) or None
            )
        )
    net.train()
    optimizer.zero_grad()
    parts = net(image, return_parts=True)
    with watch("losses"):
        loss = torch.stack(list(loss_function(parts, {"image": image, "label": label}).values())).sum()
    with watch("backward"):
        loss.backward()
    with watch("clip and Adam"):
        torch.nn.utils.clip_grad_value_(net.parameters(), CLIP)
        optimizer.step()
    for hook in hooks:
        hook.remove()
    watch.loss = float(loss.detach())  # type: ignore[attr-defined]
    return watch


def network() -> VMFNet:
    return VMFNet(linear_decoder=True, raw_kernels=True, threshold=0.0, seed=0)


def batch(size: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch_rng(0, "benchmark", "step")
    label = torch.randint(0, 4, (4, 1, size // 16, size // 16), generator=generator).float()
    label = F.interpolate(label, size=(size, size), mode="nearest")
    return (label / 4 + 0.2 * torch.rand(label.shape, generator=generator)).to(dtype), label.long()


def gradients(
    dtype: torch.dtype, size: int, layout: torch.memory_format
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the gradients of the parameters, of our form and of the port."""
    net = network().to(dtype)
    port = Port(copy.deepcopy(net)).to(dtype)
    net = net.to(memory_format=layout)
    image, label = batch(size, dtype)
    our_step(net, torch.optim.SGD(net.parameters(), 0.0), image.to(memory_format=layout), label)
    reference_step(port, torch.optim.SGD(port.parameters(), 0.0), image, label)
    pairs = zip(net.parameters(), port.net.parameters(), strict=True)
    both = [(a.grad, b.grad) for a, b in pairs if a.grad is not None and b.grad is not None]
    return [a for a, _ in both], [b for _, b in both]


def same_maths() -> float:
    """Return the largest difference of the gradients of both forms in double precision, relative to the largest."""
    ours, theirs = gradients(torch.float64, 32, torch.contiguous_format)
    return max(float((a - b).abs().max()) / max(float(b.abs().max()), 1e-6) for a, b in zip(ours, theirs, strict=True))


def rounding(layout: torch.memory_format) -> tuple[float, float]:
    """Return the error of single precision, median over the filters: ours, the port's."""
    exact = gradients(torch.float64, 96, torch.contiguous_format)[0]
    errors = []
    for found in gradients(torch.float32, 96, layout):
        pairs = [(a, b) for a, b in zip(found, exact, strict=True) if b.ndim == 4]
        errors.append(statistics.median(float((a - b).norm() / b.norm()) for a, b in pairs))
    return errors[0], errors[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=288)
    parser.add_argument("--contiguous", action="store_true", help="ours without the channels-last layout")
    args = parser.parse_args()
    print(f"one labelled step, batch 4, {args.size} x {args.size}, CPU seconds; torch {torch.__version__}, ", end="")
    print(f"{torch.get_num_threads()} thread(s), {torch.backends.cpu.get_cpu_capability()}, ", end="")
    print(f"{args.rounds} rounds after one to warm up")
    layout = torch.contiguous_format if args.contiguous else torch.channels_last
    print(f"same maths: gradients in double precision differ by {same_maths():.0e} of the largest")
    ours_off, port_off = rounding(layout)
    print(f"single precision, gradients of the filters against double: port {port_off:.1e}, ours {ours_off:.1e}\n")
    image, label = batch(args.size)
    ours = network()
    print(f"{sum(p.numel() for p in ours.parameters()):,} parameters")
    port = Port(copy.deepcopy(ours))
    ours = ours.to(memory_format=layout)
    fast = torch.optim.Adam(ours.parameters(), 1e-4, fused=True)
    slow = torch.optim.Adam(port.parameters(), 1e-4, foreach=False)
    runs: dict[str, list[Stopwatch]] = {"port": [], "ours": []}
    for k in range(args.rounds + 1):
        forms = [
            ("port", lambda: reference_step(port, slow, image, label)),
            ("ours", lambda: our_step(ours, fast, image.to(memory_format=layout), label)),
        ]
        for name, form in forms[:: (-1) ** k]:
            watch = form()
            if k:
                runs[name].append(watch)
    totals = {name: [sum(w.parts.values()) for w in watches] for name, watches in runs.items()}
    ratios = [slow_s / fast_s for slow_s, fast_s in zip(totals["port"], totals["ours"], strict=True)]
    print(f"\n{'part':<18} {'port':>15} {'ours':>15}")
    for part in runs["port"][0].parts:
        cells = []
        for name in ("port", "ours"):
            seconds = statistics.median(w.parts[part] for w in runs[name])
            cells.append(f"{seconds:6.2f} s {100 * seconds / statistics.median(totals[name]):4.1f} %")
        print(f"{part:<18} {cells[0]:>15} {cells[1]:>15}")
    print(f"{'all':<18} {statistics.median(totals['port']):6.2f} s {'':6} {statistics.median(totals['ours']):6.2f} s")
    median = statistics.median(ratios)
    print(f"\nspeed-up {median:.2f} (median of {args.rounds} ratios; {min(ratios):.2f} to {max(ratios):.2f})")
    print(f"wanted: at least {WANTED}; {'met' if median >= WANTED else 'MISSED'}")
    return 0 if median >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
