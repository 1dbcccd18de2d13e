# SPDX-License-Identifier: Apache-2.0
"""Check a bundle without executing anything of it: its files, weights, manifest, metadata and configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from monai.bundle.properties import InferProperties, TrainProperties
from monai.utils import BundlePropertyConfig

from vmfseg.utils import VmfError, sha256_file
from vmfseg.utils.io import StrPath

from .compile import compile_bundle
from .components import config_findings
from .config import config_files, entries, overlay, read_config, references, stack
from .trust import file_findings, not_plain, read_bytes, some_of, uncompiled_configs, untrusted

__all__ = [
    "METADATA_KEYS",
    "bundle_findings",
    "check_bundle",
    "inspect_bundle",
    "metadata_problems",
    "monai_problems",
]

#: What ``metadata.json`` must have: by MONAI's specification, by the zoo's checks, and ``bundle`` by ours.
METADATA_KEYS = (
    "schema", "version", "changelog", "monai_version", "pytorch_version", "numpy_version", "required_packages_version",
    "name", "bundle", "task", "description", "authors", "copyright", "data_source", "data_type", "image_classes",
    "label_classes", "pred_classes", "eval_metrics", "intended_use", "references", "supported_apps",
    "network_data_format",
)  # fmt: skip
_TENSOR_KEYS = (
    "type", "format", "num_channels", "spatial_shape", "dtype", "value_range", "is_patch_data", "channel_def"
)  # fmt: skip
#: Networks for other runtimes: opened only if the manifest, or the note of ``vmfseg export``, knows their hash.
_NETWORKS = (".ts", ".onnx", ".pt2", ".xml", ".bin")
#: Keys that a person or a program asks for by name.
_ENTRIES = frozenset({"imports", "initialize", "run", "finalize", "training", "evaluating"})


def inspect_bundle(path: StrPath) -> list[VmfError]:
    """Return the findings about a bundle, each once; an empty list is a good bundle.

    Raises:
        VmfError: VMF318 if the folder is no bundle.
    """
    root = Path(path)
    if not (root / "configs").is_dir():
        raise VmfError(
            "VMF318",
            subject=str(path),
            found="a folder without configs" if root.is_dir() else "no such folder",
            fix="give the folder that holds configs, models and docs, or a zip file of it",
        )
    unique: dict[tuple[str, str, str], VmfError] = {}
    for finding in bundle_findings(root):
        # a mistake in train.json shows in every file that is laid over it
        place = finding.subject.rpartition("json: ")[2] if finding.exit_code == 4 else finding.subject
        unique.setdefault((finding.code, place, finding.found), finding)
    return sorted(unique.values(), key=lambda finding: finding.exit_code != 5)


def bundle_findings(path: StrPath) -> Iterator[VmfError]:
    """Yield everything that is wrong with a bundle.

    Args:
        path: folder of the bundle.

    Yields:
        VMF410 to VMF418 for what is not to be trusted, VMF310 to VMF328 for what cannot work.
    """
    root = Path(path)
    configs: dict[str, dict[str, Any]] = {}
    yield from file_findings(root)
    for file in config_files(root):
        try:
            configs[file.name] = read_config(file, f"configs/{file.name}")
        except VmfError as error:
            yield error
    differing = uncompiled_configs(root)
    if differing:
        yield untrusted(differing)
    yield from _model_findings(root)
    yield from _metadata_findings(root, configs)
    for target, files in stack(configs).items():
        try:
            merged = overlay(*(configs[file] for file in files))
        except VmfError as error:
            yield VmfError(**{**error.as_dict(), "subject": f"configs/{target}: {error.subject}"})
            continue
        yield from config_findings(merged, f"configs/{target}")


def metadata_problems(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield what ``metadata.json`` lacks. The official schema needs the network; this follows its text.

    Example:
        >>> list(metadata_problems({"version": "1"}))[:2]
        ['no schema', 'no changelog']
    """
    yield from (f"no {key}" for key in METADATA_KEYS if key not in metadata)
    changelog, formats = metadata.get("changelog"), metadata.get("network_data_format")
    if isinstance(changelog, Mapping) and metadata.get("version") not in changelog:
        yield f"no changelog of version {metadata.get('version')}"
    for side, tensor in (("inputs", "image"), ("outputs", "pred")):
        spec: Any = formats
        for key in (side, tensor):
            spec = spec.get(key) if isinstance(spec, Mapping) else None
        if not isinstance(spec, Mapping):
            yield f"no network_data_format of {side} {tensor}"
            continue
        yield from (f"{side} {tensor} has no {key}" for key in _TENSOR_KEYS if key not in spec)
        named, shape = spec.get("channel_def"), spec.get("spatial_shape")
        if not isinstance(named, Mapping) or len(named) != spec.get("num_channels"):
            yield f"{side} {tensor} must name each of its channels"
        if not isinstance(shape, list) or not all(isinstance(size, int) and size > 0 for size in shape):
            yield f"{side} {tensor} must have whole numbers as spatial_shape"


def check_bundle(name: str, folder: StrPath = "bundles") -> None:
    """Refuse a packaged bundle that differs from its layers or whose configs cannot work. No config is executed.

    Args:
        name: of the bundle.
        folder: where the bundles are.

    Raises:
        VmfError: VMF307 with the first problems; VMF303 and VMF304 from the layers.
    """
    root, files = Path(folder) / name, compile_bundle(name)
    there = {f"{place}/{path.name}" for place in ("configs", "docs") for path in (root / place).glob("*")}
    problems = [f"{file} is missing" for file in files if not (root / file).is_file()]
    problems += [
        f"{file} is not what its layers say" for file in files if read_bytes(root / file) != files[file].encode()
    ]
    problems += [f"{file} comes from no layer" for file in sorted(there - set(files))]
    if not problems:
        problems += [f"{f.subject}: {f.rule}, {f.found}" for f in inspect_bundle(root)]
        configs = {path.name: read_config(path) for path in config_files(root)}
        for target, parts in stack(configs).items():
            properties = InferProperties if target == "inference.json" else TrainProperties
            found = monai_problems(overlay(*(configs[part] for part in parts)), properties)
            problems += [f"{target}: {problem}" for problem in found]
    if problems:
        raise VmfError("VMF307", subject=str(root), found=some_of(problems))


def monai_problems(config: Mapping[str, Any], properties: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the entries that MONAI requires and a config lacks, and those that nothing uses.

    Args:
        config: all files laid over each other.
        properties: MONAI's ``TrainProperties`` or ``InferProperties``.

    Example:
        >>> list(monai_problems({"run": "$@a::x", "a": {"x": 1, "y": 2}, "c": 2}, {}))
        ['a::y is used by nothing', 'c is used by nothing']
    """
    required = {str(about[BundlePropertyConfig.ID]): bool(about.get("required")) for about in properties.values()}
    places, referred = dict(entries(config)), set(references(config))
    missing = [name for name, needed in required.items() if needed and name not in places]
    yield from (f"{name} is missing, which MONAI requires" for name in missing)
    named = {*referred, *required, *_ENTRIES}
    used = {"::".join(name.split("::")[:depth]) for name in named for depth in range(1, name.count("::") + 2)}
    for name, value in config.items():
        if name not in used:
            yield f"{name} is used by nothing"
        elif isinstance(value, Mapping) and "_target_" not in value and name not in referred:
            yield from (f"{name}::{key} is used by nothing" for key in value if f"{name}::{key}" not in used)


def _model_findings(root: Path) -> Iterator[VmfError]:
    """Yield what in ``models/manifest.json`` is not plain or not allowed, and files that it does not know by hash."""
    models = root / "models"
    manifest: Mapping[str, Any] = {}
    if (models / "manifest.json").is_file():
        try:
            manifest = read_config(models / "manifest.json", "models/manifest.json")
        except VmfError as error:
            yield error
    for section, value in manifest.items():
        if any(place.endswith("_target_") for place, _ in entries({section: value})):
            for place, found in not_plain({section: value}, set()):
                rule = "a manifest may hold plain values and classes of the allow-list only"
                fix = "get the model again, or train again"
                yield VmfError("VMF418", subject=f"models/manifest.json: {place}", rule=rule, found=found, fix=fix)
    noted = manifest.get("sha256")
    noted = noted if isinstance(noted, Mapping) else {}
    for name, digest in noted.items():
        path = models / str(name)
        if Path(str(name)).name == name and path.is_file() and sha256_file(path) != digest:
            yield VmfError(
                "VMF412",
                subject=f"models/{name}",
                rule="the file is not the one that models/manifest.json notes",
                found=f"sha256 {sha256_file(path)[:12]} instead of {str(digest)[:12]}",
                fix="get the bundle again, or train again",
            )
    for path in sorted(models.glob("*")):
        beside = path.with_name(f"{path.stem}.xml.json" if path.suffix == ".bin" else f"{path.name}.json")
        if path.suffix in _NETWORKS and path.name not in noted and not beside.is_file():
            yield VmfError("VMF417", subject=f"models/{path.name}", found="no note about it")


def _metadata_findings(root: Path, configs: Mapping[str, Mapping[str, Any]]) -> Iterator[VmfError]:
    if not (root / "configs" / "metadata.json").is_file():
        yield VmfError("VMF327", subject="configs/metadata.json")
    problems = list(metadata_problems(configs["metadata.json"])) if "metadata.json" in configs else []
    if problems:
        yield VmfError("VMF328", subject="configs/metadata.json", found=some_of(problems))
