# SPDX-License-Identifier: Apache-2.0
"""A bundle of a few kilobytes: the files of the package, a tiny network, weights that give every class somewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from vmfseg.bundle.compile import write_bundle
from vmfseg.model import Model
from vmfseg.networks import VMFNet

SIZE, PIXDIM = 32, 2.0
LABELS = {
    "vmfnet_mnms": {0: "background", 1: "LV", 2: "MYO", 3: "RV"},
    "vmfnet_scgm": {0: "background", 1: "GM", 2: "WM"},
}


def tiny_definition(classes: int = 4, **kwargs) -> dict:
    """Return the definition of the tiny network."""
    return {
        "_target_": "vmfseg.networks.VMFNet",
        "channels": [8, 16, 16],
        "num_kernels": 6,
        "hidden_channels": 8,
        "out_channels": classes,
        **kwargs,
    }


def tiny_model(trained: torch.nn.Module | None = None, name: str = "vmfnet_mnms", pixdim=PIXDIM, **changes) -> Model:
    """Return the description of the tiny model."""
    kwargs = {"kappa": float(trained.kernels.kappa)} if isinstance(trained, VMFNet) else {}
    definition = tiny_definition(len(LABELS[name]), **kwargs)
    model = Model.of_slices(definition, LABELS[name], pixdim, (SIZE, SIZE), name=name, version="0.1.0")
    return replace(model, **changes)


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


def write_tiny_bundle(folder: Path, network: torch.nn.Module, name: str = "vmfnet_mnms", **changes) -> Path:
    """Write a trained bundle for ``network`` below ``folder`` and return its own folder."""
    write_bundle(name, folder)
    root = folder / name
    (root / "models").mkdir(exist_ok=True)
    tiny_model(network, name, **changes).save(root / "models", network.state_dict())
    return root


def edit_manifest(root: Path, **entries) -> None:
    """Change entries of the manifest of a bundle."""
    path = root / "models" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))
