# SPDX-License-Identifier: Apache-2.0
"""What a bundle says about its network and its slice space, read as plain JSON: nothing in it is executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from monai.transforms import Compose

from vmfseg.networks import VMFNet
from vmfseg.transforms import slice_space_transforms
from vmfseg.utils import VmfError, did_you_mean, read_json
from vmfseg.utils.io import StrPath

__all__ = ["BundleSpec", "find_bundle", "resolve"]

_NETWORK = "vmfseg.networks.VMFNet"
_SPACE = "vmfseg.transforms.slice_space_transforms"
_CONFIGS = ("inference.json", "train.json")


@dataclass(frozen=True)
class BundleSpec:
    """A bundle, described by values alone.

    The configs are read as text: references to other values are followed, ``$`` expressions and ``_target_`` other than
    our own network and slice space are refused. Values that a run changed on its command line are taken from
    ``settings`` of ``manifest.json`` beside the weights, where it has them.

    Attributes:
        root: folder of the bundle.
        name: of the bundle.
        version: of the bundle.
        network: arguments of :class:`VMFNet`.
        space: arguments of :func:`slice_space_transforms`.
        labels: class names by value, 0 is the background.
        weights: file of the weights.

    Example:
        >>> BundleSpec.load("no/such/bundle")
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF330: there is no such bundle
        ...
    """

    root: Path
    name: str
    version: str
    network: dict[str, Any]
    space: dict[str, Any]
    labels: dict[int, str]
    weights: Path

    @classmethod
    def load(cls, bundle: StrPath, checkpoint: StrPath | None = None) -> BundleSpec:
        """Read a bundle.

        Args:
            bundle: its folder, or a name below ``bundles``.
            checkpoint: weights other than ``models/model.safetensors`` or ``models/model.pt``.

        Raises:
            VmfError: VMF330 no such bundle, VMF331 no config, VMF332 a value that is no plain value, VMF333 another
                network, VMF334 no slice space, VMF335 no weights, VMF301 unreadable JSON.
        """
        root = find_bundle(bundle)
        metadata = _read_object(root / "configs" / "metadata.json")
        file, config = _read_config(root)
        weights = _weights(root, checkpoint)
        note = weights.with_name("manifest.json")
        settings = _read_object(note).get("settings", {}) if note.is_file() else {}
        config = {**config, **{key: settings[key] for key in settings if key in config}}
        network = _network(config, file)
        classes = int(network.get("out_channels", 4))
        return cls(
            root=root,
            name=str(metadata.get("bundle") or metadata.get("name") or root.name),
            version=str(metadata.get("version", "")),
            network=network,
            space=_space(config, file),
            labels=_labels(metadata, classes),
            weights=weights,
        )

    def build_network(self) -> VMFNet:
        """Return the network without weights, on the meta device: a config cannot ask for memory.

        Raises:
            VmfError: VMF333 if the arguments are none of the network's.
        """
        try:
            with torch.device("meta"):
                return VMFNet(**self.network)
        except (TypeError, ValueError) as error:
            raise _another_network(self.root, str(error)) from error

    def transforms(self) -> Compose:
        """Return the chain from a loaded image to slice space."""
        try:
            return slice_space_transforms(**{**self.space, "keys": "image"})
        except (TypeError, ValueError) as error:
            raise VmfError(
                "VMF334",
                subject=f"{self.root}: preprocessing",
                rule="the slice space must be described by its own arguments",
                found=str(error),
                fix="compare the entry with another bundle of vmfseg",
            ) from error

    @property
    def image_size(self) -> tuple[int, int]:
        """In-plane size of the network's slices.

        Raises:
            VmfError: VMF334 if the bundle leaves the size open.
        """
        roi = self.space.get("roi", 288)
        sizes = [roi, roi] if isinstance(roi, int) else list(roi or ())
        if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise VmfError(
                "VMF334",
                subject=f"{self.root}: preprocessing",
                rule="the slices must have a size",
                found=f"roi {roi}",
                fix="set image_size in the config",
            )
        return int(sizes[0]), int(sizes[1])


def find_bundle(bundle: StrPath) -> Path:
    """Return the folder of a bundle given as a folder, as one of its files, or as a name below ``bundles``.

    Raises:
        VmfError: VMF330 if there is none.
    """
    given = Path(bundle).expanduser()
    for folder in (given, given.parent.parent, Path("bundles") / given):
        if (folder / "configs" / "metadata.json").is_file():
            return folder
    known = [path.parent.parent.name for path in Path("bundles").glob("*/configs/metadata.json")]
    hint = did_you_mean(given.name, known)
    raise VmfError(
        "VMF330",
        subject=str(bundle),
        rule="there is no such bundle",
        found="a folder without configs/metadata.json" if given.is_dir() else "no such folder",
        fix=f"give the folder that holds configs and models.{hint}",
    )


def resolve(config: Mapping[str, Any], value: Any, place: str, seen: tuple[str, ...] = ()) -> Any:
    """Return ``value`` with all references of MONAI's form ``@a::b`` replaced by what they refer to.

    Args:
        config: the whole config.
        value: what to resolve.
        place: where it stands, for messages.
        seen: references on the way here.

    Raises:
        VmfError: VMF332 for an expression, a macro, a circle, or a reference to nothing.

    Example:
        >>> resolve({"kappa": 30.0, "net": {"kappa": "@kappa"}}, {"a": ["@net::kappa"]}, "x")
        {'a': [30.0]}
        >>> resolve({}, "$__import__('os').getcwd()", "network_def::kappa")
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF332: only plain values are read from a config...
    """
    if isinstance(value, Mapping):
        return {key: resolve(config, item, f"{place}::{key}", seen) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve(config, item, f"{place}::{index}", seen) for index, item in enumerate(value)]
    if not isinstance(value, str) or not value.startswith(("@", "$", "%")):
        return value
    name = value[1:].replace("#", "::")
    if value[0] == "@" and name not in seen:
        found: Any = config
        for key in name.split("::"):
            found = found.get(key) if isinstance(found, Mapping) else None
        if found is not None:
            return resolve(config, found, place, (*seen, name))
    raise VmfError(
        "VMF332",
        subject=place,
        rule="only plain values are read from a config, nothing in it is executed",
        found=value,
        fix="write the value itself, or run the config by python -m monai.bundle if you trust it",
    )


def _read_config(root: Path) -> tuple[Path, dict[str, Any]]:
    for name in _CONFIGS:
        file = root / "configs" / name
        if file.is_file():
            return file, _read_object(file)
    raise VmfError(
        "VMF331",
        subject=str(root / "configs"),
        rule="a bundle must have a config",
        found="no inference.json and no train.json",
        fix="give a bundle made by vmfseg",
    )


def _read_object(file: Path) -> dict[str, Any]:
    content = read_json(file)
    if not isinstance(content, dict):
        raise VmfError(
            "VMF331", subject=str(file), rule="a config must be an object", found=type(content).__name__, fix="mend it"
        )
    return content


def _network(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    described = config.get("network_def")
    target = described.get("_target_") if isinstance(described, Mapping) else None
    if not isinstance(described, Mapping) or target != _NETWORK:
        raise _another_network(file, str(target or "no network_def"))
    # the seed is of weights that are replaced, and may be an expression
    plain = {key: value for key, value in described.items() if key not in ("_target_", "seed")}
    arguments: dict[str, Any] = resolve(config, plain, "network_def")
    return arguments


def _space(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    found = _find_target(config.get("preprocessing"), _SPACE)
    if found is None:
        raise VmfError(
            "VMF334",
            subject=f"{file}: preprocessing",
            rule="the bundle must say how slices are made",
            found=f"no {_SPACE}",
            fix="run a foreign bundle by python -m monai.bundle",
        )
    used = ("pixdim", "roi", "normalize", "percentiles")
    plain = {key: value for key, value in found.items() if key in used}
    arguments: dict[str, Any] = resolve(config, plain, "preprocessing")
    return arguments


def _find_target(value: Any, target: str) -> Mapping[str, Any] | None:
    if isinstance(value, Mapping):
        if value.get("_target_") == target:
            return value
        value = list(value.values())
    if isinstance(value, list):
        return next((found for item in value if (found := _find_target(item, target)) is not None), None)
    return None


def _labels(metadata: Mapping[str, Any], classes: int) -> dict[int, str]:
    described: Any = metadata
    for key in ("network_data_format", "outputs", "pred", "channel_def"):
        described = described.get(key) if isinstance(described, Mapping) else None
    named = {}
    if isinstance(described, Mapping):
        named = {int(key): str(name) for key, name in described.items() if str(key).isdigit()}
    return {value: named.get(value, str(value) if value else "background") for value in range(classes)}


def _weights(root: Path, checkpoint: StrPath | None) -> Path:
    files = [root / "models" / name for name in ("model.safetensors", "model.pt")]
    if checkpoint is not None:
        given = Path(checkpoint).expanduser()
        files = [given / "model.safetensors", given / "model.pt"] if given.is_dir() else [given]
    for file in files:
        if file.is_file():
            return file
    raise VmfError(
        "VMF335",
        subject=str(files[0]),
        rule="there is no model",
        found=f"no {' and no '.join(file.name for file in files)}",
        fix="train the bundle first (vmfseg train BUNDLE), or give the file of the weights by --checkpoint",
    )


def _another_network(subject: StrPath, found: str) -> VmfError:
    return VmfError(
        "VMF333",
        subject=str(subject),
        rule=f"network_def must be a {_NETWORK} with its own arguments",
        found=found,
        fix="run a bundle with another network by python -m monai.bundle",
    )
