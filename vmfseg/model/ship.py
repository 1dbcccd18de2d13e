# SPDX-License-Identifier: Apache-2.0
"""Make a model ready to be given away: half precision where that changes no label, and checksums of all its files.

Only a model that a phantom alone taught is shipped: its weights hold nothing of a patient.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes

from vmfseg.model.artifact import Model
from vmfseg.model.deploy import run_batch
from vmfseg.model.quality import QualityModel
from vmfseg.model.shift import ShiftReference
from vmfseg.model.weights import is_about, tensors_digest
from vmfseg.phantom import PhantomSlices
from vmfseg.utils import VmfError, atomic_write, derive_seed, read_json, sha256_file, write_json
from vmfseg.utils.io import StrPath, refuse_existing

__all__ = ["SHIPPED_FILES", "ShipReport", "average_models", "half_precision", "ship_model"]

#: What a shipped model consists of; the slices, for int8 exports, are the phantom's.
SHIPPED_FILES = ("model.safetensors", "manifest.json", "quality.json", "shift.json", "calibration.safetensors")
_KINDS = ("hearts", "cords")
#: How alike labels must be for half precision: share of pixels, and Dice of the worst class.
_EQUAL_PIXELS, _EQUAL_DICE = 0.9999, 0.999


@dataclass(frozen=True)
class ShipReport:
    """How the weights in half precision compare with those of the training, on phantom slices.

    Attributes:
        precision: ``"float16"``, or ``"float32"`` if labels differ too much.
        slices: how many were compared.
        equal_labels: share of pixels with the same label.
        worst_dice: between the labels, of the class where it is lowest.
        max_logit_difference: largest absolute difference of logits.
        max_logit: largest magnitude of logits.
        bytes: of all files.
    """

    precision: str
    slices: int
    equal_labels: float
    worst_dice: float
    max_logit_difference: float
    max_logit: float
    bytes: int = 0


def ship_model(
    model: StrPath,
    output: StrPath,
    *,
    slices: int = 64,
    calibration: StrPath | None = None,
    overwrite: bool = False,
) -> ShipReport:
    """Write a trained model in the form in which it is given away, and say what half precision changes.

    Matrices are stored as float16 if the labels of phantom slices stay the same; biases and statistics of batch norm
    stay float32, they take no room. ``quality.json`` and ``shift.json`` go along under the checksum of the rounded
    weights. ``model.pt`` does not: whatever reads a model takes ``model.safetensors``. ``manifest.json`` gets the
    checksum of every file, what the training cost (``cost.json`` and ``history.json`` of the run), and the comparison.

    Args:
        model: folder of a run or of its model, or a bundle.
        output: folder for the files.
        slices: how many phantom slices to compare on.
        calibration: folder with ``quality.json`` and ``shift.json`` of these weights; default beside the weights.
        overwrite: replace a model that is there.

    Raises:
        ValueError: no slice to compare on.
        VmfError: VMF332 a model that was not taught by the phantom alone, VMF333 one without its calibration, VMF338
            and VMF341 a calibration of another version of vmfseg, VMF503 a model is there; see also :meth:`Model.load`.
    """
    if slices < 1:
        raise ValueError(f"slices must be at least 1, got {slices}.")
    trained, target = Model.load(model), Path(output).expanduser()
    data = trained.facts.get("data") or {}
    if data.get("is_phantom") is not True or data.get("dataset") not in _KINDS:
        raise VmfError(
            "VMF332",
            subject=str(trained.weights),
            found=f"data {data.get('dataset')}, phantom alone: {data.get('is_phantom')}",
        )
    refuse_existing([target / name for name in SHIPPED_FILES], overwrite)
    network = trained.build_network()
    notes = _calibration(Path(calibration or trained.weights.parent), tensors_digest(network.state_dict()))
    report, tensors = _compare(trained, network, str(data["dataset"]), slices)
    atomic_write(target / "model.safetensors", safetensors_bytes(tensors, metadata={"format": "pt"}))
    digest = tensors_digest({name: tensor.to(network.state_dict()[name].dtype) for name, tensor in tensors.items()})
    for name, note in notes.items():
        write_json(target / name, {**note, "weights": digest})
    stored = trained.weights.with_name("calibration.safetensors")
    if stored.is_file():
        atomic_write(target / stored.name, stored.read_bytes())
    files = [target / name for name in SHIPPED_FILES if name != "manifest.json" and (target / name).is_file()]
    manifest = {
        **read_json(trained.weights.with_name("manifest.json")),
        "training": _training(trained, data),
        "shipped": {key: value for key, value in asdict(report).items() if key != "bytes"},
        "sha256": {file.name: sha256_file(file) for file in files},
    }
    write_json(target / "manifest.json", manifest)
    size = sum((target / name).stat().st_size for name in SHIPPED_FILES if (target / name).is_file())
    return ShipReport(**{**asdict(report), "bytes": size})


def average_models(model: StrPath, other: StrPath, output: StrPath) -> Path:
    r"""Write the mean of the weights of two models of one network, :math:`\theta = (\theta_1 + \theta_2) / 2`.

    Where the second training started from the weights of the first, both lie in one basin of the loss, and the mean is
    often better than either (Wortsman et al., Model soups, ICML 2022). Counters are those of ``model``, like everything
    in the manifest but the training, which lists both. The mean has no calibration yet.

    Args:
        model: folder of a run or of its model, or a bundle.
        other: the same, of the other model.
        output: folder for the weights, the manifest and ``cost.json``.

    Raises:
        VmfError: VMF334 two models that differ in more than their weights; see also :meth:`Model.load`.
    """
    first, second = Model.load(model), Model.load(other)
    state, others = (found.build_network().state_dict() for found in (first, second))
    shapes, other_shapes = ({name: tensor.shape for name, tensor in found.items()} for found in (state, others))
    same = {
        "weights": shapes == other_shapes,
        "preprocessing": first.preprocessing == second.preprocessing,
        "labels": first.labels == second.labels,
    }
    if not all(same.values()):
        found = ", ".join(part for part, equal in same.items() if not equal)
        raise VmfError("VMF334", subject=str(other), found=f"other {found} than {model}")
    target = Path(output)
    target.mkdir(parents=True, exist_ok=True)
    mean = {name: (t + others[name]) / 2 if t.is_floating_point() else t for name, t in state.items()}
    first.save(target, mean, selection={"mode": "mean"})
    slices = first.weights.with_name("calibration.safetensors")
    if slices.is_file():
        atomic_write(target / slices.name, slices.read_bytes())
    trainings = [
        found.facts.get("training") or _training(found, found.facts.get("data") or {}) for found in (first, second)
    ]
    write_json(target / "cost.json", {"mean_of": trainings})
    return target


def half_precision(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors with matrices in float16; what would overflow and everything else stays.

    Example:
        >>> kept = half_precision({"w": torch.rand(2, 3), "big": torch.full((1, 1), 1e9), "bias": torch.rand(3)})
        >>> {name: str(tensor.dtype) for name, tensor in kept.items()}
        {'w': 'torch.float16', 'big': 'torch.float32', 'bias': 'torch.float32'}
    """
    found = {}
    for name, tensor in state.items():
        half = tensor.detach().cpu().half() if tensor.ndim > 1 and tensor.is_floating_point() else None
        keep = half is None or not bool(torch.isfinite(half).all())
        found[name] = tensor.detach().cpu().clone() if keep or half is None else half.contiguous()
    return found


def _compare(
    model: Model, network: torch.nn.Module, kind: str, count: int
) -> tuple[ShipReport, dict[str, torch.Tensor]]:
    """Return the comparison of both precisions on slices, and the tensors of the one that is shipped."""
    tensors = half_precision(network.state_dict())
    rounded = copy.deepcopy(network)
    rounded.load_state_dict({name: t.to(network.state_dict()[name].dtype) for name, t in tensors.items()})
    drawn = PhantomSlices(
        kind, seed=derive_seed(0, "ship"), length=count, pixdim=model.pixdim, size=model.image_size[0]
    )
    equal, total, logit, difference = 0, 0, 0.0, 0.0
    classes = len(model.labels)
    overlap = torch.zeros(3, classes, dtype=torch.int64)
    for first in range(0, count, 8):
        images = torch.stack([drawn[index]["image"] for index in range(first, min(first + 8, count))])
        one, other = run_batch(network, images), run_batch(rounded, images)
        labels, others = one.argmax(dim=1), other.argmax(dim=1)
        equal, total = equal + int((labels == others).sum()), total + labels.numel()
        logit, difference = max(logit, float(one.abs().max())), max(difference, float((one - other).abs().max()))
        for value in range(classes):
            a, b = labels == value, others == value
            overlap[:, value] += torch.stack([(a & b).sum(), a.sum(), b.sum()])
    sizes = overlap[1] + overlap[2]
    dice = [float(2 * both / size) for both, size in zip(overlap[0, 1:], sizes[1:], strict=True) if size]
    share, worst = equal / total, min(dice, default=1.0)
    good = share >= _EQUAL_PIXELS and worst >= _EQUAL_DICE
    if not good:
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
    precision = "float16" if good else "float32"
    return ShipReport(precision, count, round(share, 6), round(worst, 5), difference, logit), tensors


def _calibration(folder: Path, digest: str) -> dict[str, dict[str, Any]]:
    """Return ``quality.json`` and ``shift.json``, which must be about these weights and in today's format."""
    found = {}
    readers: dict[str, Callable[[StrPath], Any]] = {
        "quality.json": QualityModel.load,
        "shift.json": ShiftReference.load,
    }
    for name, read in readers.items():
        note = folder / name
        if not note.is_file() or not is_about(note, digest):
            raise VmfError(
                "VMF333", subject=str(note), found="it is about other weights" if note.is_file() else "no such file"
            )
        read(note)
        found[name] = dict(read_json(note))
    return found


def _training(model: Model, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return seed, iterations and cost of the training, as far as the run tells."""
    facts: dict[str, Any] = {"seed": data.get("seed")}
    folder = model.weights.parent
    for place in (folder, folder.parent):
        if (place / "history.json").is_file():
            facts["iterations"] = read_json(place / "history.json")["epochs"][-1]["iteration"]
    cost = folder / "cost.json"
    return {**facts, **(dict(json.loads(cost.read_text(encoding="utf-8"))) if cost.is_file() else {})}
