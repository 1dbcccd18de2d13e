# SPDX-License-Identifier: Apache-2.0
"""What the training benchmarks share: a problem (data of one split), recipes, and one training with its scores."""

from __future__ import annotations

import csv
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.data import Dataset, MetaTensor
from monai.transforms import Compose

from vmfseg.data import (
    Experiment,
    FolderDataset,
    InterleavedLoader,
    LoadVolumed,
    SliceDataset,
    SliceLoader,
    leave_one_domain_out,
    prepare_experiment,
)
from vmfseg.engines import CrossPseudoTrainer, SemiSupervisedTrainer, SliceBatchInferer
from vmfseg.engines.stages import KernelStage, PretrainingStage
from vmfseg.handlers import GradientClipHandler, PolynomialDecayHandler, RampHandler
from vmfseg.losses import VMFLoss
from vmfseg.metrics import SegmentationScores
from vmfseg.networks import ReconstructionUNet, VMFEncoder, VMFNet, VMFParts
from vmfseg.transforms import BatchAugment, slice_space_transforms
from vmfseg.utils.seeds import seeded


@dataclass(frozen=True)
class Recipe:
    """How one method is trained. The defaults are those of the bundles' train.json."""

    method: str = "vmfnet"  # or unet, vmfpseudo
    iterations: int = 300
    passes: int = 1  # labelled batches for each of the iterations
    learning_rate: float = 1e-3
    decay: float = 0.9  # learning rate to zero, (1 - t)**0.9
    channels: tuple[int, ...] = (16, 32, 64, 128, 128)
    hidden_channels: int = 16
    num_kernels: int = 12
    kappa: float = 10.0
    last_activation: str = "none"
    level: int = 0
    log_activations: bool = True
    pretraining: int = 0
    mixture: bool = False
    joint: bool = False
    accumulation: int = 1  # batches whose gradients are averaged for a step
    unlabeled: bool = True
    weights: dict[str, float] = field(
        default_factory=lambda: {"dice": 1.0, "cross_entropy": 1.0, "reconstruction": 0.1, "clustering": 1.0}
    )
    ramps: dict[str, tuple[float, float]] = field(default_factory=lambda: {"reconstruction": (0.3, 1.0)})
    balanced: str = "foreground"
    augmentation: dict[str, Any] = field(
        default_factory=lambda: {
            "rotation": (-30.0, 30.0),
            "integer_angles": False,
            "flip": 0.0,
            "scale": (0.85, 1.15),
            "gamma": (0.7, 1.5),
            "contrast": (0.75, 1.25),
            "brightness": 0.1,
            "bias_field": 0.3,
            "noise": 0.05,
        }
    )


_UNET = Recipe(method="unet", weights={"dice": 1.0, "cross_entropy": 1.0}, ramps={}, unlabeled=False)
METHODS = {
    "unet": _UNET,
    # As many optimizer steps as the others take, in turn with and without labels.
    "unet_long": replace(_UNET, passes=2),
    "vmfnet": Recipe(),
    "vmfpseudo": Recipe(  # initialized differently, as the paper says: no shared encoder, no shared kernels
        method="vmfpseudo",
        weights={"dice": 1.0, "cross_entropy": 1.0, "clustering": 1.0, "cross_pseudo": 0.1},
        ramps={"cross_pseudo": (0.3, 1.0)},
    ),
}

#: Labelled batches.
ITERATIONS = {"hearts": 600, "cords": 400}

#: What a recipe of the vMF methods is chosen from, target by target; the first is the default.
CANDIDATES: dict[str, dict[str, Any]] = {
    "in turn": {},
    "one batch": {"joint": True},
    "in turn, clustering rises": {"rising": ("clustering",)},
    # In turn as above, but one step takes the mean of a labelled and an unlabelled batch.
    "one step": {"accumulation": 2},
}


def candidate(method: str, name: str, iterations: int) -> Recipe:
    """Return the recipe of a method, varied as :data:`CANDIDATES` says (the U-Net has no such choice)."""
    recipe = replace(METHODS[method], iterations=iterations)
    if recipe.method == "unet":
        return recipe
    changes = dict(CANDIDATES[name])
    rising = changes.pop("rising", ())
    return replace(recipe, ramps={**recipe.ramps, **dict.fromkeys(rising, (0.3, 1.0))}, **changes)


class PlainUNet(torch.nn.Module):
    """The baseline: the same encoder completed to a full U-Net; it returns parts, so that one trainer serves all."""

    def __init__(self, out_channels: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.unet = ReconstructionUNet(VMFEncoder(channels=channels))
        self.unet.out = torch.nn.Conv2d(channels[0], out_channels, kernel_size=1)

    def forward(self, x: torch.Tensor, return_parts: bool = False) -> Any:
        logits = self.unet(x)
        return VMFParts(logits, logits, logits, logits.new_zeros(1, 1)) if return_parts else logits


@dataclass
class Problem:
    """The data of one split, in slice space, read once."""

    experiment: Experiment
    pixdim: float
    size: int
    place: Any = None  # a temporary folder that has to last as long
    _datasets: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def domains(data: str, folder: str) -> list[str]:
        """Return the domains that can be left out."""
        return ["A", "B", "C", "D"] if data == "hearts" else sorted({_site(p) for p in _cords(folder)})

    def slices(self, part: str) -> SliceDataset:
        """Return the slices of a part."""
        if part not in self._datasets:
            classes = self.experiment.num_classes
            chain = Compose(
                [LoadVolumed(num_classes=classes), slice_space_transforms(self.pixdim, self.size, num_classes=classes)]
            )
            self._datasets[part] = SliceDataset(getattr(self.experiment, part), chain, num_classes=classes)
        return self._datasets[part]

    def score(self, network: torch.nn.Module, part: str) -> dict[str, Any]:
        """Return Dice per class of the volumes of a part, on their native grid."""
        experiment = self.experiment
        space = slice_space_transforms(self.pixdim, self.size, keys="image")
        scores, infer = SegmentationScores(experiment.labels), SliceBatchInferer(16)
        network.eval()
        for row in Dataset(getattr(experiment, part), LoadVolumed(num_classes=experiment.num_classes)):
            row["truth"] = row.pop("label")
            image = space({"image": row["image"]})["image"]
            with torch.no_grad():
                probabilities = infer(image[None], network)[0].sigmoid()
            seen = MetaTensor(probabilities, affine=image.affine, applied_operations=image.applied_operations)
            pred = space.inverse({"image": seen})["image"].argmax(dim=0).numpy()
            spacing = row["truth"].affine[:3, :3].norm(dim=0).tolist()
            scores.update(
                pred, row["truth"][0].numpy(), spacing, row["subject"], row["domain"], row.get("phase"),
                row.get("annotated"), row.get("frame"),
            )  # fmt: skip
        summary = scores.compute()
        classes = summary["overall"]["classes"]
        return {
            "mean_dice": round(summary["mean_dice"], 4),
            "classes": {name: round(entry["dice"]["mean"], 4) for name, entry in classes.items()},
            "hd95_mm": {name: round(entry["hd95_mm"]["mean"], 2) for name, entry in classes.items()},
        }


def heart_problem(target: str, seed: int, folder: str = "") -> Problem:
    """Phantom hearts (or M&Ms in ``folder``): a quarter of the subjects of each group is labelled."""
    experiment = prepare_experiment(
        "mnms", folder, target_domain=target, labeled_fraction=0.25, seed=0, phantom={"subjects": 24}, quiet=True
    )
    return Problem(experiment, pixdim=2.5, size=64)


def cord_problem(target: str, seed: int, folder: str, without: str = "") -> Problem:
    """Real cords: one labelled scan of each source site, the rest unlabelled; validation on the labelled scans.

    A cord goes through every slice, so an empty mask is no mask (6 of 20 slices of chum): slices at the ends of a stack
    that nobody annotated are left out of labelled and of scored scans. Taken for background, they would teach that a
    cord is none, and count a cord that is found as a mistake. The site ``without`` is not read at all.
    """
    place = tempfile.TemporaryDirectory(prefix="vmfseg-cords-")
    table = Path(place.name) / "datalist.csv"
    seen: set[str] = set()
    with open(table, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", "label", "domain", "subject"])
        for path in (path for path in _cords(folder) if _site(path) != without):
            label = path.with_name(path.name.replace(".nii.gz", "_label.nii.gz"))
            site = _site(path)
            labeled = site == target or site not in seen
            filled = np.asarray(nib.load(label).dataobj).any(axis=(0, 1)).nonzero()[0] if labeled else np.zeros(0, int)
            kept = slice(filled[0], filled[-1] + 1) if len(filled) else slice(None)
            for file in (path, label) if labeled else (path,):
                nib.save(nib.load(file).slicer[:, :, kept], Path(place.name) / file.name)
            writer.writerow([path.name, label.name if labeled else "", site, path.name[:-7]])
            seen.add(site)
    labels = {0: "background", 1: "GM", 2: "WM"}
    datalist = FolderDataset(place.name, table, labels=labels).datalist()
    split = leave_one_domain_out(datalist, target, labeled_fraction=1.0, validation_fraction=0.0)
    return Problem(Experiment(datalist, split), pixdim=0.5, size=64, place=place)


def train_and_score(problem: Problem, recipe: Recipe, seed: int, unseen: bool = True) -> dict[str, Any]:
    """Train by ``recipe`` and score the target; ``unseen=False`` scores source validation only (to choose a recipe)."""
    network = train(problem, recipe, seed)
    validation = problem.score(network, "validation")["mean_dice"]
    return {**(problem.score(network, "target") if unseen else {}), "validation": validation}


def train(problem: Problem, recipe: Recipe, seed: int) -> torch.nn.Module:
    """Train by ``recipe`` and return the network (the first one of vMFPseudo)."""
    classes = problem.experiment.num_classes
    count = 2 if recipe.method == "vmfpseudo" else 1
    networks = [_network(recipe, classes, seed + k).to(memory_format=torch.channels_last) for k in range(count)]
    augment = BatchAugment(**recipe.augmentation)
    labeled = SliceLoader(problem.slices("labeled"), seed=seed, augment=augment, balanced=recipe.balanced)
    unlabeled = SliceLoader(problem.slices("unlabeled"), seed=seed, augment=augment) if recipe.unlabeled else None
    steps = 25
    loader = InterleavedLoader(labeled, unlabeled, steps_per_epoch=steps, joint=recipe.joint and recipe.unlabeled)
    if recipe.method != "unet":
        images = problem.slices("images")
        with tempfile.TemporaryDirectory() as folder:
            PretrainingStage(
                networks, SliceLoader(images, seed=seed, augment=augment), recipe.pretraining,
                learning_rate=recipe.learning_rate,
            ).run(Path(folder), False)  # fmt: skip
            plain = SliceLoader(images, batch_size=8, shuffle=False)
            KernelStage(networks, plain, seed=seed, enabled=recipe.mixture).run(Path(folder), False)
    optimizers = [torch.optim.Adam(n.parameters(), recipe.learning_rate) for n in networks]
    loss = VMFLoss(recipe.weights, ramps=recipe.ramps)
    arguments: dict[str, Any] = {
        "device": "cpu",
        "max_epochs": -(-recipe.iterations * recipe.passes // steps),
        "train_data_loader": loader,
        "loss_function": loss,
        "accumulation_steps": recipe.accumulation,
        "train_handlers": [GradientClipHandler(0.1), RampHandler(loss)],
    }
    if recipe.method == "vmfpseudo":
        trainer: Any = CrossPseudoTrainer(networks=networks, optimizers=optimizers, **arguments)
    else:
        trainer = SemiSupervisedTrainer(network=networks[0], optimizer=optimizers[0], **arguments)
    PolynomialDecayHandler(optimizers, recipe.decay).attach(trainer)
    trainer.run()
    return networks[0]


def _network(recipe: Recipe, classes: int, seed: int) -> torch.nn.Module:
    if recipe.method == "unet":
        with seeded(seed, "network"):
            return PlainUNet(classes, recipe.channels)
    return VMFNet(
        out_channels=classes,
        channels=recipe.channels,
        level=recipe.level,
        num_kernels=recipe.num_kernels,
        kappa=recipe.kappa,
        last_activation=recipe.last_activation,
        log_activations=recipe.log_activations,
        hidden_channels=recipe.hidden_channels,
        reconstruct=bool(recipe.weights.get("reconstruction")),
        seed=seed,
    )


def _cords(folder: str) -> list[Path]:
    return sorted(path for path in Path(folder).glob("*.nii.gz") if not path.name.endswith("_label.nii.gz"))


def _site(path: Path) -> str:
    return path.name.split("_")[0]


__all__ = [
    "CANDIDATES",
    "ITERATIONS",
    "METHODS",
    "Problem",
    "Recipe",
    "candidate",
    "cord_problem",
    "heart_problem",
    "replace",
    "train",
    "train_and_score",
]
