# SPDX-License-Identifier: Apache-2.0
"""The trained model on disk: weights, and a manifest with the plain definitions of network and transforms.

``manifest.json`` beside the weights::

    {"format": "vmfseg-model-1", "name": "vmfnet_mnms", "version": "0.1.0",
     "network": {"_target_": "vmfseg.networks.VMFNet", "channels": [16, 32], ...},
     "preprocessing": [{"_target_": "vmfseg.data.LoadVolumed", ...}, {"_target_": "ScaleIntensityd", ...}, ...],
     "postprocessing": [{"_target_": "Activationsd", ...}, {"_target_": "AsDiscreted", ...}],
     "labels": {"0": "background", "1": "LV"}, "input": {"channels": 1, "shape": [64, 64]},
     "data": {"dataset": "mnms", "target_domain": "D", ...}, "provenance": {"seed": 0, ...}, "versions": {...},
     "sha256": {"model.pt": "...", "model.safetensors": "..."}}

Everything that comes after the training builds network and transforms from it, see
:mod:`vmfseg.model.definitions`: what was trained is what segments, whatever a config or a command line said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from monai.transforms import Compose, MapTransform, RandomizableTrait
from safetensors.torch import save as safetensors_bytes

from vmfseg.handlers.checkpoint import save_tensors
from vmfseg.model.definitions import build, build_network, definition_of
from vmfseg.model.shelves import known_bundles, on_shelf
from vmfseg.model.weights import fill_network, find_weights, read_tensors, weights_at
from vmfseg.networks.parts import bare_network
from vmfseg.utils import VmfError, atomic_write, did_you_mean, read_json, sha256_file, write_json
from vmfseg.utils.io import StrPath
from vmfseg.utils.manifest import library_versions

__all__ = ["MODEL_FILES", "Model", "find_bundle"]

FORMAT = "vmfseg-model-1"
#: What a training writes.
MODEL_FILES = ("model.pt", "model.safetensors", "manifest.json")
_MAX_CLASSES = 256


@dataclass(frozen=True)
class Model:
    """A trained model, described by plain values.

    Attributes:
        network: definition of the network.
        preprocessing: definitions of the transforms from a row to the network's slices, in order.
        postprocessing: definitions of the transforms from logits to labels, in order.
        labels: class names by value, 0 is the background.
        channels: image channels.
        image_size: in-plane size of the network's slices.
        name: of the bundle.
        version: of the bundle.
        root: folder of the bundle, or of the weights where they lie in none.
        weights: file of the weights.
        facts: the rest of the manifest.
        trust: build targets beyond the allow-list too.

    Example:
        >>> Model.load("no/such/bundle")
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF330: there is no bundle at this place
        ...
    """

    network: dict[str, Any]
    preprocessing: list[dict[str, Any]]
    postprocessing: list[dict[str, Any]]
    labels: dict[int, str]
    channels: int
    image_size: tuple[int, int]
    name: str = ""
    version: str = ""
    root: Path = Path()
    weights: Path = Path("model.safetensors")
    facts: dict[str, Any] = field(default_factory=dict)
    trust: bool = False

    @classmethod
    def load(cls, bundle: StrPath, checkpoint: StrPath | None = None, *, trust: bool = False) -> Model:
        """Read the manifest of a trained model; nothing is built yet.

        Args:
            bundle: its folder, the name of a bundle, or a folder that holds weights and manifest.
            checkpoint: weights other than those in ``models``: a file, or the folder of a run or of a model.
            trust: build targets beyond the allow-list too.

        Raises:
            VmfError: VMF330 no such bundle, VMF335 no weights, VMF331 no manifest or one that is broken.
        """
        root = find_bundle(bundle)
        place = root / "models" if checkpoint is None and (root / "configs").is_dir() else checkpoint or root
        weights = find_weights(place)
        if weights is None:
            raise VmfError(
                "VMF335",
                subject=str(place),
                rule="there is no model",
                found="no model.safetensors and no model.pt",
                fix="train the bundle first (vmfseg train BUNDLE), or give the weights by --checkpoint",
            )
        return cls.read(weights, root, trust=trust)

    @classmethod
    def read(cls, weights: Path, root: Path | None = None, *, trust: bool = False) -> Model:
        """Read the manifest beside ``weights``."""
        note = weights.with_name("manifest.json")
        if not note.is_file():
            raise _broken(note, "no such file")
        content = read_json(note)
        try:
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}")
            labels = {int(value): str(name) for value, name in content["labels"].items()}
            height, width = (int(size) for size in content["input"]["shape"])
            before, after = ([dict(step) for step in content[part]] for part in ("preprocessing", "postprocessing"))
            if list(labels) != list(range(len(labels))) or not 2 <= len(labels) <= _MAX_CLASSES:
                raise ValueError(f"labels {labels}")
            known = ("format", "network", "preprocessing", "postprocessing", "labels", "input", "name", "version")
            return cls(
                dict(content["network"]),
                before,
                after,
                labels,
                int(content["input"]["channels"]),
                (height, width),
                str(content.get("name", "")),
                str(content.get("version", "")),
                root or weights.parent,
                weights,
                {key: value for key, value in content.items() if key not in known},
                trust,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _broken(note, f"{type(error).__name__}: {error}") from error

    @classmethod
    def describe(
        cls,
        network: torch.nn.Module,
        preprocessing: Any,
        postprocessing: Any,
        labels: Mapping[int, str],
        channels: int,
        image_size: Sequence[int],
        **about: Any,
    ) -> Model:
        """Describe objects that were built from a config.

        Args:
            network: trained, or to be.
            preprocessing: a ``Compose`` from a row to slices.
            postprocessing: a ``Compose`` from logits to labels.
            labels: class names by value.
            channels: image channels.
            image_size: in-plane size of the slices.
            about: further attributes.

        Raises:
            VmfError: VMF320 for what is no plain value.
        """
        plain = definition_of(bare_network(network), "network_def")
        before = list(_steps(definition_of(preprocessing, "preprocessing")))
        after = list(_steps(definition_of(postprocessing, "postprocessing")))
        named = {int(value): str(name) for value, name in sorted(labels.items(), key=lambda item: int(item[0]))}
        height, width = (int(size) for size in image_size)
        return cls(plain, before, after, named, channels, (height, width), **about)

    @classmethod
    def of_slices(
        cls,
        network: Mapping[str, Any],
        labels: Mapping[int, str],
        pixdim: float,
        image_size: Sequence[int],
        **about: Any,
    ) -> Model:
        """Describe a network with the transforms of the bundles: slices of one spacing and size, sigmoid, argmax.

        Args:
            network: definition of the network.
            labels: class names by value.
            pixdim: in-plane spacing in mm.
            image_size: in-plane size in pixels.
            about: further attributes.
        """
        both = {"keys": ["image", "label"], "allow_missing_keys": True}
        height, width = (int(size) for size in image_size)
        before = [
            {"_target_": "vmfseg.transforms.ToSliceStackd", **both},
            {
                "_target_": "vmfseg.transforms.InPlaneSpacingd",
                **both,
                "pixdim": pixdim,
                "mode": ["bilinear", "nearest"],
            },
            {"_target_": "vmfseg.transforms.PercentileNormalized", "keys": "image", "lower": 0.5, "upper": 99.5},
            {"_target_": "ResizeWithPadOrCropd", **both, "spatial_size": [height, width, -1]},
        ]
        after = [
            {"_target_": "Activationsd", "keys": "pred", "sigmoid": True},
            {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
        ]
        return cls(dict(network), before, after, dict(labels), **{"channels": 1, **about}, image_size=(height, width))

    @property
    def pixdim(self) -> float:
        """In-plane spacing of the network's slices in mm; 1 where the preprocessing does not say."""
        steps = [step for step in self.preprocessing if str(step.get("_target_", "")).endswith("InPlaneSpacingd")]
        return float(steps[0]["pixdim"]) if steps else 1.0

    def save(self, folder: Path, state: Mapping[str, torch.Tensor], **facts: Any) -> Sequence[str]:
        """Write ``model.pt``, ``model.safetensors`` and ``manifest.json``; return their names."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        save_tensors(folder / "model.pt", tensors)
        # safetensors refuses tensors that share memory
        atomic_write(
            folder / "model.safetensors",
            safetensors_bytes({name: tensor.clone() for name, tensor in tensors.items()}, metadata={"format": "pt"}),
        )
        manifest = {
            "format": FORMAT,
            "name": self.name,
            "version": self.version,
            "network": self.network,
            "preprocessing": self.preprocessing,
            "postprocessing": self.postprocessing,
            "labels": {str(value): name for value, name in self.labels.items()},
            "input": {"channels": self.channels, "shape": list(self.image_size)},
            **self.facts,
            **facts,
            "versions": library_versions(),
            "sha256": {name: sha256_file(folder / name) for name in MODEL_FILES[:2]},
        }
        write_json(folder / "manifest.json", json.loads(json.dumps(manifest, default=str)))
        return list(MODEL_FILES)

    def build_network(self) -> torch.nn.Module:
        """Return the network with its weights.

        Raises:
            VmfError: VMF322, VMF323 and VMF418 for a definition that cannot be built, VMF412 for files that are not
                those that the manifest notes, VMF306 and VMF402 for weights that do not fit or are not finite.
        """
        if "shipped" in self.facts:
            self.check_files()
        network = build_network(self.network, "network", trust=self.trust)
        fill_network(network, read_tensors(self.weights), self.weights)
        self.check_files()  # a flipped bit gives other labels and no error
        return network.eval()

    def check_files(self) -> None:
        """Refuse weights, and the calibration of a shipped model, that are not those of the manifest.

        Raises:
            VmfError: VMF412 with the file.
        """
        noted = self.facts.get("sha256")
        for name in (self.weights.name, "quality.json", "shift.json"):
            file = self.weights.with_name(name)
            expected = noted.get(name) if isinstance(noted, Mapping) else None
            if expected is not None and file.is_file() and sha256_file(file) != expected:
                raise VmfError(
                    "VMF412",
                    subject=str(file),
                    rule="the file is damaged, or belongs to another model than manifest.json beside it",
                    found=f"sha256 {sha256_file(file)[:12]} instead of {str(expected)[:12]}",
                    fix="install or copy the model again, or train again",
                )

    def build_preprocessing(self) -> Compose:
        """Return the deterministic transforms of the image, without the reading of files."""
        return Compose(list(self._transforms(self.preprocessing, "preprocessing", "image")))

    def build_postprocessing(self) -> Compose:
        """Return the transforms from logits to labels."""
        return Compose(list(self._transforms(self.postprocessing, "postprocessing", "pred")))

    def _transforms(self, chain: Sequence[Mapping[str, Any]], part: str, key: str) -> Iterator[Any]:
        for index, step in enumerate(chain):
            if str(step.get("_target_", "")).rsplit(".", 1)[-1] == "LoadVolumed":
                continue
            transform = build(step, f"{part}::{index}", trust=self.trust)
            if isinstance(transform, RandomizableTrait):
                continue
            if isinstance(transform, MapTransform):
                if key not in transform.keys:
                    continue
                transform.allow_missing_keys = True
            yield transform


def find_bundle(bundle: StrPath) -> Path:
    """Return the folder of a bundle given as a folder, as one of its files, or by its name.

    A folder that holds weights with a manifest is returned too. What lies at the path itself comes first, then the
    bundles of :mod:`vmfseg.model.shelves`: ``./bundles``, the repository, the installed package.

    Raises:
        VmfError: VMF330 if there is none.
    """
    given = Path(bundle).expanduser()
    for folder in (given, *([given.parent.parent] if given.is_file() else [])):
        if (folder / "configs" / "metadata.json").is_file():
            return folder
    found = weights_at(given)
    if found is not None and found.with_name("manifest.json").is_file():
        return given if given.is_dir() else given.parent
    named = on_shelf(bundle)
    if named is not None:
        return named
    hint = did_you_mean(given.name, known_bundles())
    raise VmfError(
        "VMF330",
        subject=str(bundle),
        found="a folder without configs/metadata.json" if given.is_dir() else "no such folder",
        fix=f"give the folder that holds configs and models.{hint}",
    )


def _steps(definition: Any) -> Iterator[dict[str, Any]]:
    """Yield the single transforms of nested ``Compose``."""
    if str(definition.get("_target_", "")).rsplit(".", 1)[-1] == "Compose":
        for step in definition.get("transforms") or []:
            yield from _steps(step)
    else:
        yield definition


def _broken(note: Path, found: str) -> VmfError:
    return VmfError("VMF331", subject=str(note), found=found[:200])
