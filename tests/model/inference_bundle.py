# SPDX-License-Identifier: Apache-2.0
"""A bundle of a few kilobytes: the files of the package, a tiny network, weights that give every class somewhere."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from vmfseg.bundle.compile import write_bundle
from vmfseg.networks import VMFNet

SIZE, PIXDIM = 32, 2.0


def tiny_network(seed: int = 0, classes: int = 4, **kwargs) -> VMFNet:
    """Return a network whose batch norm and head are as uneven as after a training."""
    network = VMFNet(channels=(8, 16, 16), num_kernels=6, hidden_channels=8, out_channels=classes, seed=seed, **kwargs)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.copy_(0.1 * torch.randn(module.running_mean.shape, generator=generator))
                module.running_var.copy_(0.5 + torch.rand(module.running_var.shape, generator=generator))
                module.weight.copy_(0.5 + torch.rand(module.weight.shape, generator=generator))
                module.bias.copy_(0.1 * torch.randn(module.bias.shape, generator=generator))
        network.eval()
        last = network.head.decoder[-1]
        last.weight.mul_(30)
        logits = network(smooth_slices(8, SIZE, generator))
        last.bias.sub_(logits.mean(dim=(0, 2, 3)))
    return network


def smooth_slices(count: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """Return slices with structures of a few pixels, in [0, 1]."""
    coarse = torch.rand(count, 1, size // 4, size // 4, generator=generator)
    return torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")


def write_tiny_bundle(folder: Path, network: VMFNet, name: str = "vmfnet_mnms") -> Path:
    """Write a bundle for ``network`` below ``folder`` and return its own folder."""
    write_bundle(name, folder)
    root = folder / name
    for config in ("inference.json", "train.json"):
        path = root / "configs" / config
        content = json.loads(path.read_text())
        content["network_def"]["level"] = 1  # whatever the recipe has
        content.update(
            channels=[8, 16, 16], num_kernels=6, hidden_channels=8, image_size=SIZE, pixdim=PIXDIM, kappa=30.0,
            last_activation="relu", log_activations=False,
        )  # fmt: skip
        path.write_text(json.dumps(content))
    (root / "models").mkdir(exist_ok=True)
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, root / "models" / "model.safetensors")
    torch.save(network.state_dict(), root / "models" / "model.pt")
    return root
