# SPDX-License-Identifier: Apache-2.0
"""The network and the data of a finished run, rebuilt from its config as plain JSON: nothing in it is executed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vmfseg.data import Experiment, prepare_experiment
from vmfseg.networks import VMFNet
from vmfseg.utils import VmfError, read_json

__all__ = ["RunModel", "load_run_model", "resolve_section"]

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class RunModel:
    """A trained network with the data it was trained and judged on.

    Attributes:
        network: in evaluation mode, on the CPU.
        experiment: the data, split as in the run.
        pixdim: in-plane spacing of the network's slices in mm.
        image_size: their size in pixels.
        same_data: whether the data has the checksums that the manifest names.
        settings: top-level values of the config, with what the manifest says in their place.
    """

    network: VMFNet
    experiment: Experiment
    pixdim: float
    image_size: int
    same_data: bool
    settings: dict[str, Any]


def load_run_model(
    bundle: StrPath,
    model: StrPath | None = None,
    manifest: Mapping[str, Any] | None = None,
    dataset_dir: StrPath | None = None,
) -> RunModel:
    """Rebuild the network of a bundle, load its weights and find its data.

    ``configs/train.json`` is read as text: references to top-level values are followed, expressions are refused. Values
    that a run changed on the command line are taken from ``settings`` of the manifest, where it has them.

    Args:
        bundle: folder with ``configs/train.json``.
        model: ``model.pt``; default that of the bundle's ``models`` folder.
        manifest: of the model; default the one beside it.
        dataset_dir: the data; empty for the phantom, which is made if the cache does not hold it.

    Raises:
        VmfError: VMF301 no config or model, VMF322 a config that cannot be rebuilt, VMF323 weights of another network,
            VMF324 data that is needed and not given, VMF401 a file that holds more than tensors.
    """
    home = Path(bundle)
    weights_path = Path(model) if model is not None else home / "models" / "model.pt"
    config = read_json(home / "configs" / "train.json")
    if not isinstance(config, dict):
        raise _unclear(home / "configs" / "train.json", "no object at the top")
    if manifest is None:
        beside = weights_path.with_name("manifest.json")
        manifest = read_json(beside) if beside.is_file() else {}
    settings = {**config, **dict(manifest.get("settings", {}))}
    network = _network(home, settings, weights_path)
    source = resolve_section(settings, "source", without="given")  # which only a running program knows
    if not dataset_dir and manifest.get("phantom") is False:
        raise VmfError(
            "VMF324",
            subject="--dataset_dir",
            rule="the data of this run is needed for pictures of cases",
            found="a run on data of your own",
            fix="pass --dataset_dir with the folder that the run was trained on",
        )
    experiment = prepare_experiment(**{**source, "dataset_dir": dataset_dir or "", "quiet": True})
    known = manifest.get("data")
    plain = {key: value for key, value in settings.items() if not _is_expression(value)}
    try:
        pixdim, size = float(settings["pixdim"]), int(settings["image_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise _unclear(home / "configs" / "train.json", f"pixdim or image_size is no number ({error})") from error
    return RunModel(network, experiment, pixdim, size, known is None or known == experiment.fingerprint, plain)


def resolve_section(config: Mapping[str, Any], name: str, without: str = "") -> dict[str, Any]:
    """Return the arguments of a section but one, references to top-level values followed.

    Raises:
        VmfError: VMF322 if the section is missing or holds an expression.

    Example:
        >>> resolve_section({"kappa": 30.0, "net": {"_target_": "VMFNet", "kappa": "@kappa", "level": 1}}, "net")
        {'kappa': 30.0, 'level': 1}
    """
    section = config.get(name)
    if not isinstance(section, Mapping):
        raise _unclear(name, "no such section")
    left_out = ("_target_", without)
    return {key: _follow(config, value, f"{name}::{key}", ()) for key, value in section.items() if key not in left_out}


def _follow(config: Mapping[str, Any], value: Any, place: str, seen: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        return {key: _follow(config, item, f"{place}::{key}", seen) for key, item in value.items()}
    if isinstance(value, list):
        return [_follow(config, item, place, seen) for item in value]
    if isinstance(value, str) and value.startswith("@"):
        name = value[1:]
        if name in seen or name not in config:
            raise _unclear(place, f"{value} refers to nothing")
        if name in ("dataset_dir",):
            return ""
        return _follow(config, config[name], place, (*seen, name))
    if _is_expression(value):
        raise _unclear(place, f"the expression {value}")
    return value


def _is_expression(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(("$", "%"))


def _network(home: Path, settings: Mapping[str, Any], path: Path) -> VMFNet:
    target = settings.get("network_def", {}).get("_target_") if isinstance(settings.get("network_def"), dict) else None
    if target != "vmfseg.networks.VMFNet":
        raise _unclear("network_def", f"{target or 'nothing'} instead of vmfseg.networks.VMFNet")
    try:
        network = VMFNet(**resolve_section(settings, "network_def"))
    except TypeError as error:
        raise _unclear("network_def", str(error)) from error
    if not path.is_file():
        raise VmfError("VMF301", subject=str(path), rule="there is no model", fix="train it first")
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise VmfError(
            "VMF401",
            subject=str(path),
            rule="the file must hold tensors only",
            found=str(error).splitlines()[0] if str(error) else type(error).__name__,
            fix="use a file written by vmfseg, or train again",
        ) from error
    try:
        network.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise VmfError(
            "VMF323",
            subject=str(path),
            rule="the weights must fit the network of configs/train.json",
            found=str(error).splitlines()[-1].strip(),
            fix="the run changed the network on its command line: write these values into configs/train.json",
        ) from error
    return network.eval()


def _unclear(subject: StrPath, found: str) -> VmfError:
    return VmfError(
        "VMF322",
        subject=str(subject),
        rule="the config must say plainly which network and data it uses",
        found=found,
        fix="write plain values instead of expressions into configs/train.json",
    )
