# SPDX-License-Identifier: Apache-2.0
"""Describe a bundle or a trained model by its own notes: plain values, nothing in it is executed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vmfseg.model import Model
from vmfseg.utils import VmfError, sha256_file
from vmfseg.utils.io import StrPath

from .check import bundle_findings
from .config import read_config

__all__ = ["describe_bundle"]

_SETTINGS = (
    "dataset", "target_domain", "labeled_fraction", "protocol", "seed", "pixdim", "image_size", "num_kernels", "kappa",
    "channels", "max_iterations", "batch_size",
)  # fmt: skip


def describe_bundle(path: StrPath) -> dict[str, Any]:
    """Return what a bundle is: task, labels, inputs and outputs, settings, whether it is trained, and its figures.

    Args:
        path: folder of the bundle, or of a run with its model.

    Returns:
        ``name``, ``version``, ``title``, ``task``, ``description``, ``labels``, ``input``, ``output``, ``settings``,
        ``model`` (``None`` if it is not trained), ``scores`` (mean Dice by unseen domain and class), ``findings`` (how
        many of :func:`vmfseg.bundle.check.inspect_bundle`, by kind) and ``next`` (commands).

    Raises:
        VmfError: VMF318 if the folder is neither, VMF310 if its metadata and VMF331 if its manifest cannot be read.
    """
    root = Path(path)
    is_bundle = (root / "configs" / "metadata.json").is_file()
    try:
        model = Model.load(root)
    except VmfError as error:
        if error.code not in ("VMF330", "VMF335"):
            raise
        model = None
    if model is None and not is_bundle:
        fix = "give the folder that holds configs, models and docs"
        raise VmfError("VMF318", subject=str(path), found="no configs/metadata.json", fix=fix)
    metadata = read_config(root / "configs" / "metadata.json", "configs/metadata.json") if is_bundle else {}
    config = _optional(root / "configs" / "train.json")
    network = _mapping(config.get("network_def") if model is None else model.network)
    values = {**config, **network, **({} if model is None else _mapping(model.facts.get("data")))}
    findings = [finding.exit_code for finding in bundle_findings(root)] if is_bundle else []
    return {
        "path": str(path),
        "name": str(metadata.get("bundle") or (model.name if model else "") or root.name),
        "version": str(metadata.get("version") or (model.version if model else "")),
        "title": str(metadata.get("name", "")),
        "task": str(metadata.get("task", "")),
        "description": str(metadata.get("description", "")),
        "intended_use": str(metadata.get("intended_use", "")),
        "data": str(metadata.get("data_source", "")),
        "labels": _labels(metadata) if model is None else {str(value): name for value, name in model.labels.items()},
        "input": _tensor(metadata, "inputs", "image", model),
        "output": _tensor(metadata, "outputs", "pred", model),
        "settings": {key: values[key] for key in _SETTINGS if key in values and not str(values[key]).startswith("$")},
        "model": None if model is None else _model(model),
        "scores": _scores(root),
        "findings": {"untrusted": findings.count(5), "broken": findings.count(4)},
        "next": _commands(path, trained=model is not None, own=config.get("dataset") == "folder"),
    }


def _model(model: Model) -> dict[str, Any]:
    folder, facts = model.weights.parent, model.facts
    noted, versions = _mapping(facts.get("sha256")), _mapping(facts.get("versions"))
    files = [folder / name for name in ("model.safetensors", "model.pt") if (folder / name).is_file()]
    phantom = _mapping(facts.get("data")).get("is_phantom", "?")
    return {
        "files": [file.name for file in files],
        "network": str(model.network.get("_target_", "")).rsplit(".", 1)[-1],
        "as_noted": all(noted.get(file.name) == sha256_file(file) for file in files) if noted else None,
        "trained_on": {True: "the built-in phantom", False: "data of the user"}.get(phantom, "data that is not noted"),
        "seed": _mapping(facts.get("data")).get("seed"),
        "source_validation_dice": _mapping(facts.get("selection")).get("source_validation_dice"),
        "versions": {key: versions[key] for key in ("vmfseg", "torch", "monai") if key in versions},
        "quality": (folder / "quality.json").is_file(),
        "quality_error": _mapping(_optional(folder / "quality.json").get("model")).get("error"),
        "shift": (folder / "shift.json").is_file(),
    }


def _scores(root: Path) -> dict[str, Any] | None:
    for place in ("output/", "eval/", ""):
        content = _optional(root / f"{place}metrics.json")
        if content.get("format") == "vmfseg-metrics-1":
            domains = _mapping(content.get("domains"))
            return {
                "file": f"{place}metrics.json",
                "protocol": content.get("protocol"),
                "mean_dice": content.get("mean_dice"),
                "domains": {name: _dice(_mapping(entry)) for name, entry in domains.items()},
            }
    return None


def _dice(entry: Mapping[str, Any]) -> dict[str, Any]:
    classes = _mapping(entry.get("classes")).items()
    return {name: _mapping(_mapping(figures).get("dice")).get("mean") for name, figures in classes}


def _commands(path: StrPath, *, trained: bool, own: bool) -> list[str]:
    data = " --dataset_dir DIR --target_domain DOMAIN" if own else ""
    if not trained:
        return [f"vmfseg train {path}{data}", f"vmfseg bundle check {path}"]
    return [
        f"vmfseg segment {path} SCAN.nii.gz -o OUT",
        f"vmfseg explain {path} SCAN.nii.gz -o OUT",
        f"vmfseg report {path}",
        f"vmfseg shift {path} DATA",
    ]


def _labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    named = _mapping(_format(metadata, "outputs", "pred").get("channel_def"))
    return {str(value): str(name) for value, name in named.items()}


def _tensor(metadata: Mapping[str, Any], side: str, name: str, model: Model | None) -> dict[str, Any]:
    spec = _format(metadata, side, name)
    found = {key: spec[key] for key in ("num_channels", "spatial_shape", "dtype", "value_range") if key in spec}
    if model is not None:
        channels = model.channels if side == "inputs" else len(model.labels)
        found |= {"num_channels": channels, "spatial_shape": list(model.image_size)}
    return found


def _format(metadata: Mapping[str, Any], side: str, name: str) -> Mapping[str, Any]:
    return _mapping(_mapping(_mapping(metadata.get("network_data_format")).get(side)).get(name))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _optional(path: Path) -> dict[str, Any]:
    """Read a note that may be missing; one that is broken is among the findings."""
    if not path.is_file():
        return {}
    try:
        return read_config(path)
    except VmfError:
        return {}
