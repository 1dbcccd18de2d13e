# SPDX-License-Identifier: Apache-2.0
"""Check a bundle without executing anything of it: its files, weights, manifest, metadata and configs.

A config can run any code, so it is executed only by training, and only if it is byte for byte what the layers of this
package give, or the user passes ``--trust``. Everything else that is read here is plain values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from monai.bundle.properties import InferProperties, TrainProperties
from monai.utils import BundlePropertyConfig

from vmfseg.model.definitions import is_allowed
from vmfseg.utils import VmfError, sha256_file
from vmfseg.utils.io import StrPath
from vmfseg.utils.weights import check_weights

from .compile import compile_bundle
from .components import config_findings
from .config import config_files, entries, overlay, read_config, references, stack
from .new import compiled_files

__all__ = [
    "METADATA_KEYS",
    "bundle_findings",
    "check_bundle",
    "inspect_bundle",
    "metadata_problems",
    "monai_problems",
    "read_overlay",
    "require_trusted",
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
#: What a bundle may hold. MONAI puts its folder on the import path, so one Python file anywhere could stand for torch.
_SUFFIXES = frozenset(
    [
        ".json", ".yaml", ".yml", ".conf", ".md", ".txt", ".rst", ".csv", ".html", ".png", ".jpg", ".jpeg", ".svg",
        ".gif", ".pdf", ".cff", ".pt", ".safetensors", ".onnx", ".xml", ".bin", ".pt2", ".ts", ".nii", ".gz", ".nrrd",
        ".mha", ".ipynb",
    ]
)  # fmt: skip
_NAMES = frozenset({"LICENSE", "LICENCE", "NOTICE", "DONE", ".gitkeep", ".gitignore", ".gitattributes", ".lock"})
_TEXTS = (".json", ".yaml", ".yml", ".conf", ".txt", ".md")
#: Networks for other runtimes: opened only if the manifest, or the note of ``vmfseg export``, knows their hash.
_NETWORKS = (".ts", ".onnx", ".pt2", ".xml", ".bin")
_RUNS = ("output", "eval")  # what runs wrote; weights there are read as tensors only
#: Files that a training reads by itself; others count only if a user names them.
_EXECUTED = frozenset(
    {"train.json", "paper.json", "evaluate.json", "multi_gpu_train.json", "metadata.json", "logging.conf"}
)
#: Keys that a person or a program asks for by name.
_ENTRIES = frozenset({"imports", "initialize", "run", "finalize", "training", "evaluating"})
_MAX_FILES = 10_000
_MAX_FILE = 4_000_000_000
_MAX_TEXT = 20_000_000


def require_trusted(path: StrPath, trust: bool = False) -> None:
    """Refuse to train a bundle whose configs are not what the layers of this package give. Nothing is executed.

    Compared byte for byte are the files that a training uses (``train.json``, its overlays, ``metadata.json``,
    ``logging.conf``) with those of the packaged bundle of that name, or of ``vmfseg bundle new`` with the settings that
    ``metadata.json`` notes. Files that Python could import are refused too, because MONAI puts the folder on the import
    path.

    Args:
        path: folder of the bundle. What is no bundle passes: whoever opens it will say so.
        trust: the user vouches for the bundle (``--trust``); nothing is looked at.

    Raises:
        VmfError: VMF410 with the files that differ, VMF411 for a file that does not belong into a bundle.

    Example:
        >>> import json, tempfile
        >>> configs = Path(tempfile.mkdtemp()) / "configs"
        >>> configs.mkdir()
        >>> _ = (configs / "train.json").write_text(json.dumps({"run": "$__import__('os').system('id')"}))
        >>> require_trusted(configs.parent, trust=True)
        >>> require_trusted(configs.parent)
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF410: a config that the layers of vmfseg do not give is not executed
          about  configs/train.json of ...
          fix    pass --trust if you know who wrote it; vmfseg bundle check shows more
    """
    root = Path(path)
    if trust or not (root / "configs").is_dir():
        return
    found = next((f for f in _file_findings(root, weights=False) if f.code == "VMF411"), None)
    if found is None:
        differing = [name for name in _uncompiled(root) if name in _EXECUTED]
        found = _untrusted(differing) if differing else None
    if found is not None:
        raise VmfError(**{**found.as_dict(), "subject": f"{found.subject} of {path}"})


def read_overlay(path: StrPath, config: Mapping[str, Any], trust: bool = False) -> dict[str, Any]:
    """Read a config file that a user lays over a trusted one; it may hold plain values and allowed classes only.

    Args:
        path: a JSON or YAML file.
        config: what it is laid over.
        trust: the user vouches for the file; it is read as it is.

    Raises:
        VmfError: VMF419 for an expression, a macro, a reference to nothing or a class that is not on the allow-list of
            :mod:`vmfseg.model.definitions`; VMF310 and VMF416 for a file that cannot be read.
    """
    content = read_config(Path(path))
    if trust:
        return content
    known = {name for name, _ in entries(overlay(config, content))}
    for place, found in _not_plain(content, known):
        raise VmfError(
            "VMF419",
            subject=f"{path}: {place}",
            rule="an overlay may hold plain values, references and classes of the allow-list only",
            found=found,
            fix="write the value itself, or pass --trust if you know who wrote it",
        )
    return content


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
            rule="this is no bundle",
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
    yield from _file_findings(root)
    for file in config_files(root):
        try:
            configs[file.name] = read_config(file, f"configs/{file.name}")
        except VmfError as error:
            yield error
    differing = _uncompiled(root)
    if differing:
        yield _untrusted(differing)
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
    problems += [f"{file} is not what its layers say" for file in files if _bytes(root / file) != files[file].encode()]
    problems += [f"{file} comes from no layer" for file in sorted(there - set(files))]
    if not problems:
        problems += [f"{f.subject}: {f.rule}, {f.found}" for f in inspect_bundle(root)]
        configs = {path.name: read_config(path) for path in config_files(root)}
        for target, parts in stack(configs).items():
            properties = InferProperties if target == "inference.json" else TrainProperties
            found = monai_problems(overlay(*(configs[part] for part in parts)), properties)
            problems += [f"{target}: {problem}" for problem in found]
    if problems:
        raise VmfError(
            "VMF307",
            subject=str(root),
            rule="the bundle must agree with its layers and its configs with themselves",
            found=_some(problems),
            fix="edit vmfseg/bundle/layers, then python -m vmfseg.bundle build",
        )


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


def _uncompiled(root: Path) -> list[str]:
    """Return the names of the files in ``configs`` that are not byte for byte what the layers give."""
    compiled = compiled_files(root)
    files = sorted(file for file in (root / "configs").iterdir() if file.is_file())
    return [file.name for file in files if _bytes(file) != compiled.get(f"configs/{file.name}", "").encode()]


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.stat().st_size <= _MAX_TEXT else b"too large"
    except OSError as error:
        return f"cannot be read: {error}".encode()


def _untrusted(names: list[str]) -> VmfError:
    return VmfError(
        "VMF410",
        subject=_some([f"configs/{name}" for name in names]),
        rule="a config that the layers of vmfseg do not give is not executed",
        fix="pass --trust if you know who wrote it; vmfseg bundle check shows more",
    )


def _file_findings(root: Path, weights: bool = True) -> Iterator[VmfError]:
    """Yield the files of a bundle that do not belong there, are too large, or are weights with more than tensors."""
    count, home = 0, root.resolve()
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder) / name
            place = path.relative_to(root).as_posix()
            run = place.split("/")[0] in _RUNS
            count += 1
            hidden = name.startswith(".") and name not in _NAMES and not (run and name in files)
            known = path.suffix.lower() in _SUFFIXES or name in _NAMES or name.startswith("events.out.tfevents")
            if path.is_symlink():
                if not path.resolve().is_relative_to(home):
                    yield _foreign(place, "a link must not lead out of the bundle", os.readlink(path))
            elif hidden:
                yield _foreign(place, "a bundle must not have hidden files or folders", name)
            elif name in files and not path.is_file():
                yield _foreign(place, "a bundle must hold regular files", "a pipe or a device")
            elif name in files and not known:
                yield _foreign(place, "the file does not belong into a bundle", f"the kind {path.suffix or name}")
            elif name in files:
                yield from _content_findings(path, place, weights and not run)
        folders[:] = [name for name in folders if not name.startswith(".")]
        if count > _MAX_FILES:
            yield _too_large(str(root), f"over {_MAX_FILES} files")
            return


def _content_findings(path: Path, place: str, weights: bool) -> Iterator[VmfError]:
    size, suffix = path.stat().st_size, path.suffix.lower()
    if size > (_MAX_TEXT if suffix in _TEXTS else _MAX_FILE):
        yield _too_large(place, f"{size} bytes")
    elif weights and suffix in (".pt", ".safetensors"):
        try:
            check_weights(path)
        except VmfError as error:
            yield VmfError(**{**error.as_dict(), "subject": place})


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
            for place, found in _not_plain({section: value}, set()):
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
            yield VmfError(
                "VMF417",
                subject=f"models/{path.name}",
                rule="a network for another runtime must be noted in models/manifest.json",
                found="no note about it",
                fix="remove it; vmfseg export makes it again from the weights",
            )


def _metadata_findings(root: Path, configs: Mapping[str, Mapping[str, Any]]) -> Iterator[VmfError]:
    if not (root / "configs" / "metadata.json").is_file():
        fix = "copy it from another bundle and adapt it"
        yield VmfError("VMF327", subject="configs/metadata.json", rule="a bundle must have metadata.json", fix=fix)
    problems = list(metadata_problems(configs["metadata.json"])) if "metadata.json" in configs else []
    if problems:
        yield VmfError(
            "VMF328",
            subject="configs/metadata.json",
            rule="the metadata must be complete",
            found=_some(problems),
            fix="compare it with the metadata.json of a packaged bundle",
        )


def _not_plain(value: Any, known: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the entries that are more than plain values, allowed classes and references to ``known`` ids."""
    for place, item in entries(value):
        key = place.rpartition("::")[2]
        if key == "_target_":
            if not isinstance(item, str) or not is_allowed(item):
                yield place, str(item)
        elif key in ("_mode_", "_requires_") or (isinstance(item, str) and item.startswith(("$", "%"))):
            yield place, str(item)
        elif isinstance(item, str) and item.startswith("@") and not {*references(item)} & known:
            yield place, item


def _some(words: Sequence[str]) -> str:
    return "; ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


def _foreign(place: str, rule: str, found: str) -> VmfError:
    fix = "remove it if you know that nothing needs it, or pass --trust"
    return VmfError("VMF411", subject=place, rule=rule, found=found, fix=fix)


def _too_large(place: str, found: str) -> VmfError:
    rule = "a bundle must be of sane size"
    return VmfError("VMF420", subject=place, rule=rule, found=found, fix="remove what nothing needs")
