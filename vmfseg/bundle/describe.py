# SPDX-License-Identifier: Apache-2.0
"""What a bundle is, from its own notes: read as plain values, nothing in it is executed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
        path: folder of the bundle.

    Returns:
        ``name``, ``version``, ``title``, ``task``, ``description``, ``labels``, ``input``, ``output``, ``settings``,
        ``model`` (``None`` if it is not trained), ``scores`` (mean Dice by unseen domain and class), ``findings`` (how
        many of :func:`vmfseg.bundle.inspect_bundle`, by kind) and ``next`` (commands).

    Raises:
        VmfError: VMF318 if the folder is no bundle, VMF310 if its metadata cannot be read.
    """
    root = Path(path)
    if not (root / "configs" / "metadata.json").is_file():
        fix = "give the folder that holds configs, models and docs"
        raise VmfError("VMF318", subject=str(path), rule="this is no bundle", found="no configs/metadata.json", fix=fix)
    metadata = read_config(root / "configs" / "metadata.json", "configs/metadata.json")
    config = _optional(root / "configs" / "train.json")
    manifest = _optional(root / "models" / "manifest.json")
    model = _model(root, manifest)
    changed = _mapping(manifest.get("settings"))
    findings = [finding.exit_code for finding in bundle_findings(root)]
    return {
        "path": str(path),
        "name": str(metadata.get("bundle") or metadata.get("name") or root.name),
        "version": str(metadata.get("version", "")),
        "title": str(metadata.get("name", "")),
        "task": str(metadata.get("task", "")),
        "description": str(metadata.get("description", "")),
        "intended_use": str(metadata.get("intended_use", "")),
        "data": str(metadata.get("data_source", "")),
        "labels": _labels(metadata),
        "input": _tensor(metadata, "inputs", "image"),
        "output": _tensor(metadata, "outputs", "pred"),
        "settings": {key: changed.get(key, config.get(key)) for key in _SETTINGS if key in changed or key in config},
        "model": model,
        "scores": _scores(root),
        "findings": {"untrusted": findings.count(5), "broken": findings.count(4)},
        "next": _commands(path, trained=model is not None, own=config.get("dataset") == "folder"),
    }


def _model(root: Path, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    files = [root / "models" / name for name in ("model.safetensors", "model.pt")]
    weights = [file for file in files if file.is_file()]
    if not weights:
        return None
    noted = _mapping(manifest.get("sha256"))
    versions = _mapping(manifest.get("versions"))
    return {
        "files": [file.name for file in weights],
        "as_noted": all(sha256_file(file) == noted[file.name] for file in weights) if noted else None,
        "trained_on": {True: "the built-in phantom", False: "data of the user"}.get(manifest.get("phantom", "?"), ""),
        "seed": manifest.get("seed"),
        "source_validation_dice": _mapping(manifest.get("selection")).get("source_validation_dice"),
        "versions": {key: versions[key] for key in ("vmfseg", "torch", "monai") if key in versions},
        "quality": (root / "models" / "quality.json").is_file(),
        "shift": (root / "models" / "shift.json").is_file(),
    }


def _scores(root: Path) -> dict[str, Any] | None:
    for place in ("output", "eval"):
        content = _optional(root / place / "metrics.json")
        if content.get("format") == "vmfseg-metrics-1":
            domains = _mapping(content.get("domains"))
            return {
                "file": f"{place}/metrics.json",
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


def _tensor(metadata: Mapping[str, Any], side: str, name: str) -> dict[str, Any]:
    spec = _format(metadata, side, name)
    return {key: spec[key] for key in ("num_channels", "spatial_shape", "dtype", "value_range") if key in spec}


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
