# SPDX-License-Identifier: Apache-2.0
"""How fast is a volume segmented, against a straight port of the reference code?

One heart of 256 × 256 × 12 voxels goes from its NIfTI file to a label file, through the paper's network at 288 × 288.
The port: contiguous tensors, slice by slice, vMF activations by exp in a loop over the batch, the last up-stage of the
U-Net computed and thrown away, the image reconstructed and thrown away. Against it: ``Predictor`` with torch, ONNX
Runtime, OpenVINO and OpenVINO int8. All run in one process, interleaved; a round gives one ratio of CPU seconds and the
median of the ratios counts, so that a busy machine slows all alike.

The network is trained for 600 steps first (untrained ones have near ties everywhere and mislead), on phantom vendors A,
B and C; its weights are kept in the cache folder. Labels are compared on the benchmark volume, on phantom volumes of
each vendor and, with ``--real FOLDER``, on real scans.

Run ``python benchmarks/inference.py``; it exits with 1 if a figure is missed. ``--quick`` is a small setting that only
shows that everything runs.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads must not count as work; read when torch loads
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX10_1_512")  # AMX kills the process on some virtual machines

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor
from monai.transforms import Compose
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from vmfseg.bundle.compile import write_bundle
from vmfseg.data import LoadVolumed, SliceDataset, SliceLoader, prepare_experiment
from vmfseg.data.experiment import cache_folder
from vmfseg.engines.stages.calibration_stage import validation_slices
from vmfseg.export import export_bundle
from vmfseg.losses import VMFLoss
from vmfseg.model import Model, Predictor
from vmfseg.model.definitions import definition_of
from vmfseg.model.inputs import Job
from vmfseg.model.segment import save_prediction
from vmfseg.networks import VMFNet
from vmfseg.networks.encoder import UpBlock
from vmfseg.transforms import BatchAugment, slice_space_transforms
from vmfseg.utils import numpy_rng

#: Speed-up over the port that is wanted; ONNX Runtime and OpenVINO: of one of them.
WANTED = {"torch": 2.0, "onnx": 2.3, "openvino": 2.3, "openvino-int8": 6.0}
EITHER = ("onnx", "openvino")
INT8_DICE = 0.99
#: Side of the squares that the network is trained on.
CROP = 80
#: Side of the slices that it segments.
SIZE = 288
#: The paper's network in size and cost; kappa and activation are those of the bundles, with which it learns in minutes.
PAPER: dict[str, Any] = {
    "channels": (64, 128, 256, 512, 512),
    "hidden_channels": 64,
    "kappa": 10.0,
    "last_activation": "none",
}
QUICK: dict[str, Any] = {**PAPER, "channels": (8, 16, 32, 64, 64), "hidden_channels": 16}


class Port(nn.Module):
    """The network as the reference code runs it."""

    def __init__(self, network: VMFNet) -> None:
        super().__init__()
        self.net = network
        width = network.encoder.channels[0]
        self.last_up = UpBlock(2, network.encoder.feature_channels, width, width)
        self.last = nn.Conv2d(width, 1, kernel_size=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        features, *skips = self.net.encoder.pyramid(x)
        self.last(self.last_up(features, skips[0]))
        kernels = self.net.kernels
        samples = []
        for sample in features:
            z = sample / sample.norm(dim=0, keepdim=True).clamp_min(1e-12)
            unit = kernels.weight / kernels.weight.norm(dim=1, keepdim=True)
            cosine = F.conv2d(z[None], unit[:, :, None, None])
            samples.append(F.normalize(torch.exp(kernels.kappa * cosine), p=1, dim=1))
        activations = torch.cat(samples)
        self.net.composer(activations, kernels.unit_kernels())
        return self.net.head(activations)


def train(setting: dict[str, Any], steps: int) -> VMFNet:
    """Return the network of ``setting``, trained on crops of hearts of phantom vendors A, B and C, from the cache."""
    network = VMFNet(**setting, seed=0)
    width = "-".join(str(c) for c in setting["channels"])
    kept = cache_folder() / "benchmarks" / f"inference-{width}-{steps}.safetensors"
    if kept.is_file():
        network.load_state_dict(load_file(kept))
        return network.eval()
    source = prepare_experiment("mnms", phantom={"subjects": 24}, labeled_fraction=1.0, quiet=True)
    chain = Compose([LoadVolumed(num_classes=4), slice_space_transforms(1.2, SIZE, num_classes=4)])
    augment = BatchAugment(
        rotation=(-30.0, 30.0), integer_angles=False, flip=0.0, scale=(0.85, 1.15), gamma=(0.7, 1.5),
        contrast=(0.75, 1.25), brightness=0.1, bias_field=0.3, noise=0.05,
    )  # fmt: skip
    dataset = SliceDataset(source.labeled, chain, num_classes=4)
    loader = SliceLoader(dataset, batch_size=4, seed=0, augment=augment, balanced="foreground")
    loss = VMFLoss({"dice": 1.0, "cross_entropy": 1.0, "clustering": 0.1})
    network.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    rng = numpy_rng("benchmark", 0)
    for done, batch in enumerate(loader.stream(0, steps)):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - done / steps) ** 0.9
        image, label = crop(batch["image"], batch["label"], rng)
        optimizer.zero_grad()
        terms = loss(network(image, return_parts=True), {"image": image, "label": label})
        total = torch.stack(list(terms.values())).sum()
        total.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if (done + 1) % 20 == 0:
            text = ", ".join(f"{name} {value.item():.3f}" for name, value in terms.items())
            print(f"  training step {done + 1}/{steps}: {text}, {time.process_time():.0f} CPU s", flush=True)
    network.eval().to(memory_format=torch.contiguous_format)
    kept.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, kept)
    return network


def crop(image: torch.Tensor, label: torch.Tensor, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut one square out of every slice: two of three around a voxel of the heart, where there is one."""
    images, labels = [], []
    for slice_, mask in zip(image, label, strict=True):
        size = torch.tensor(mask.shape[1:])
        heart = mask[0].nonzero()
        middle = torch.from_numpy(rng.random(2)) * size
        if len(heart) and rng.random() < 2 / 3:
            middle = heart[int(rng.integers(len(heart)))] + torch.from_numpy(rng.uniform(-CROP / 4, CROP / 4, 2))
        i, j = (middle - CROP // 2).round().long().clamp(min=0).minimum(size - CROP).tolist()
        images.append(slice_[:, i : i + CROP, j : j + CROP])
        labels.append(mask[:, i : i + CROP, j : j + CROP])
    return torch.stack(images).contiguous(memory_format=torch.channels_last), torch.stack(labels)


def make_bundle(folder: Path, network: VMFNet, setting: dict[str, Any]) -> Path:
    """Write a bundle with the network, and slices of phantom vendors A, B and C to calibrate int8 on."""
    write_bundle("vmfnet_mnms", folder)
    root = folder / "vmfnet_mnms"
    definition = {"_target_": "vmfseg.networks.VMFNet", "level": 1, **definition_of(setting, "setting")}
    labels = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}
    model = Model.of_slices(definition, labels, 1.2, (SIZE, SIZE), name="vmfnet_mnms")
    (root / "models").mkdir(exist_ok=True)
    model.save(root / "models", network.state_dict())
    source = prepare_experiment("mnms", phantom={"subjects": 24}, quiet=True)
    predictor = Predictor.from_bundle(root, "cpu")
    slices = validation_slices(predictor, source.validation, 32)
    save_file({"slices": slices}, root / "models" / "calibration.safetensors")
    return root


def make_scan(folder: Path) -> Path:
    """Write one heart of the unseen vendor as 256 × 256 × 12 voxels of 1.4 mm."""
    row = prepare_experiment("mnms", phantom={"subjects": 24}, quiet=True).target[0]
    image = LoadVolumed("image")({"image": row["image"], "frame": row["frame"]})["image"]
    chain = slice_space_transforms(1.4, 256, keys="image", normalize=None)
    volume = chain({"image": image})["image"][0].numpy()
    volume = np.concatenate([volume, volume[..., ::-1]], axis=2)[..., :12]
    path = folder / "heart.nii.gz"
    nib.save(nib.Nifti1Image(volume.astype(np.int16), np.diag([1.4, 1.4, 10.0, 1.0])), path)
    return path


def run_port(network: Port, model: Model, scan: Path, output: Path) -> np.ndarray:
    """Segment as the reference code does: slice by slice."""
    chain = model.build_preprocessing()
    image = chain(LoadVolumed("image")({"image": str(scan)}))["image"]
    slices = image.as_tensor().permute(3, 0, 1, 2)
    with torch.no_grad():
        maps = torch.cat([network(one[None].contiguous()).sigmoid() for one in slices])
    seen = MetaTensor(maps.permute(1, 2, 3, 0), affine=image.affine, applied_operations=image.applied_operations)
    labels = chain.inverse({"image": seen})["image"].argmax(dim=0).numpy().astype(np.uint8)
    nib.save(nib.Nifti1Image(labels, nib.load(scan).affine), output)
    return labels


def run_ours(predictor: Predictor, scan: Path, output: Path) -> np.ndarray:
    """Segment as ``vmfseg segment`` does."""
    prediction = predictor.predict(scan)
    output.unlink(missing_ok=True)
    job = Job(scan, output)
    job.beside("quality", ".json").unlink(missing_ok=True)
    save_prediction(prediction, job)
    return prediction.labels


def multiplications(network: nn.Module) -> int:
    """Return how many a slice takes: what a speed-up tends to where arithmetic is all that counts."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, 1, SIZE, SIZE))
    return int(counter.get_total_flops())


def dice(one: np.ndarray, other: np.ndarray) -> float:
    """Return the mean over the foreground classes that occur."""
    scores = [
        2 * ((one == k) & (other == k)).sum() / ((one == k).sum() + (other == k).sum())
        for k in range(1, 4)
        if (one == k).any() or (other == k).any()
    ]
    return float(np.mean(scores)) if scores else 1.0


def measure(runs: dict[str, Callable[[], np.ndarray]], rounds: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return CPU seconds of every run in every round, and the labels."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    labels: dict[str, np.ndarray] = {}
    for k in range(rounds + 1):  # the first warms up
        for name in list(runs)[:: (-1) ** k]:
            start = time.process_time()
            labels[name] = runs[name]()
            if k:
                seconds[name].append(time.process_time() - start)
    return seconds, labels


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600, help="training steps")
    parser.add_argument("--real", default="", help="folder with real heart scans, to compare int8 labels on")
    parser.add_argument("--quick", action="store_true", help="small network and images; figures mean nothing")
    args = parser.parse_args()
    setting = QUICK if args.quick else PAPER
    network = train(setting, args.steps)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        root, scan = make_bundle(folder, network, setting), make_scan(folder)
        exports = [("onnx", False), ("openvino", False), ("openvino", True)]
        for to, int8 in exports:
            report = export_bundle(root, to, int8=int8)
            print(f"export {to}{' int8' if int8 else ''}: max logit difference {report.max_logit_difference:.2g}")
        predictors = {name: Predictor.from_bundle(root, "cpu", name) for name in WANTED}
        port, model = Port(network).eval(), predictors["torch"].model
        runs: dict[str, Callable[[], np.ndarray]] = {
            "port": lambda: run_port(port, model, scan, folder / "port.nii.gz")
        }
        for name, predictor in predictors.items():
            runs[name] = lambda predictor=predictor, name=name: run_ours(predictor, scan, folder / f"{name}.nii.gz")
        seconds, labels = measure(runs, args.rounds)
        print(f"\none 256 x 256 x 12 volume, file to file, network {network.encoder.channels} at {SIZE} x {SIZE}")
        machine = torch.backends.cpu.get_cpu_capability()
        print(f"torch {torch.__version__}, {machine}, {torch.get_num_threads()} thread(s), {args.rounds} rounds")
        print(f"the port's multiplications are {multiplications(port) / multiplications(network):.2f} times ours\n")
        missed, ratios = [], {}
        print("wanted of onnx and openvino: of one of the two")
        print(f"{'':14}{'CPU s':>8}{'speed-up':>10}{'wanted':>8}   labels against the port's")
        for name in runs:
            found = [a / b for a, b in zip(seconds["port"], seconds[name], strict=True)]
            ratio, wanted = statistics.median(found), WANTED.get(name, 1.0)
            ratios[name] = ratio
            equal = float((labels[name] == labels["port"]).mean())
            score = dice(labels[name], labels["port"])
            print(f"{name:14}{statistics.median(seconds[name]):8.2f}{ratio:10.2f}{wanted:8.1f}   ", end="")
            print(f"{100 * equal:.4f} % equal, Dice {score:.4f}")
            enough = score >= INT8_DICE if name.endswith("int8") else equal == 1.0
            if not enough:
                missed.append(f"labels of {name}")
            if ratio < wanted and name not in EITHER:
                missed.append(f"speed of {name}")
        if max(ratios[name] for name in EITHER) < min(WANTED[name] for name in EITHER):
            missed.append("speed of " + " or ".join(EITHER))
        missed += compare_int8(predictors, args.real)
    print(f"\nclasses found: {np.unique(labels['port']).tolist()}")
    print("MISSED: " + ", ".join(missed) if missed else "all met")
    return 1 if missed else 0


def compare_int8(predictors: dict[str, Predictor], real: str) -> list[str]:
    """Compare int8 labels with float32 labels, vendor by vendor and on real scans; return what is missed."""
    experiment = prepare_experiment("mnms", phantom={"subjects": 24}, quiet=True)
    rows = {row["domain"]: row for row in [*experiment.validation, *experiment.target]}
    scans = {f"phantom {domain}": (row["image"], [row["frame"]]) for domain, row in sorted(rows.items())}
    if real:
        files = [path for path in sorted(Path(real).glob("*.nii.gz")) if not path.name.endswith("_label.nii.gz")]
        scans.update({path.name: (str(path), None) for path in files})
    print("\nint8 against float32 labels")
    missed = []
    for name, (path, frames) in scans.items():
        full, small = (predictors[key].predict(path, frames).labels for key in ("torch", "openvino-int8"))
        score = dice(full, small)
        print(f"  {name:32} Dice {score:.4f}")
        if score < INT8_DICE:
            missed.append(f"int8 on {name}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
