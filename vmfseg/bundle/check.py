# SPDX-License-Identifier: Apache-2.0
"""Look at a bundle without running it: does it agree with its layers, and can its configs mean anything at all?"""

from __future__ import annotations

import inspect
import json
import pydoc
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from monai.bundle.config_item import ComponentLocator
from monai.bundle.properties import InferProperties, TrainProperties
from monai.bundle.reference_resolver import ReferenceResolver
from monai.utils import BundlePropertyConfig

from vmfseg.bundle.compile import compile_bundle
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath

__all__ = ["METADATA_KEYS", "bundle_problems", "check_bundle", "config_problems", "metadata_problems", "overlay"]

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

#: Keys that a person or a program asks for by name.
_ENTRIES = frozenset({"imports", "initialize", "run", "finalize", "training", "evaluating"})
#: Overlays and what they are laid over.
_STACKS = {
    "train.json": ("train.json",),
    "evaluate.json": ("train.json", "evaluate.json"),
    "paper.json": ("train.json", "paper.json"),
    "multi_gpu_train.json": ("train.json", "multi_gpu_train.json"),
    "inference.json": ("inference.json",),
}
_MAY_BE_EMPTY = frozenset({"dataset_dir"})
_FIELD = re.compile(r"\{[A-Z_]+\}")


def check_bundle(name: str, folder: StrPath = "bundles") -> None:
    """Refuse a bundle that differs from its layers or whose configs cannot work. No config is run.

    Args:
        name: of the bundle.
        folder: where the bundles are.

    Raises:
        VmfError: VMF307 with the first problems; VMF303 and VMF304 from the layers.
    """
    problems = list(bundle_problems(name, folder))
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise VmfError(
            "VMF307",
            subject=str(Path(folder) / name),
            rule="the bundle must agree with its layers and its configs with themselves",
            found="; ".join(problems[:3]) + more,
            fix="edit vmfseg/bundle/layers, then python -m vmfseg.bundle build",
        )


def bundle_problems(name: str, folder: StrPath = "bundles") -> Iterator[str]:
    """Yield what is wrong with a bundle, a line each."""
    root, files = Path(folder) / name, compile_bundle(name)
    for relative, content in files.items():
        path = root / relative
        if not path.is_file():
            yield f"{relative} is missing"
        elif path.read_text(encoding="utf-8") != content:
            yield f"{relative} is not what its layers say"
        if _FIELD.search(content):
            yield f"{relative} has an unset field {_FIELD.search(content)[0]}"  # type: ignore[index] # just matched
    for place in ("configs", "docs"):
        for path in sorted((root / place).glob("*")):
            if path.relative_to(root).as_posix() not in files:
                yield f"{place}/{path.name} comes from no layer"
    configs = {Path(key).name: json.loads(text) for key, text in files.items() if key.endswith(".json")}
    yield from metadata_problems(configs["metadata.json"], name)
    for target, stack in _STACKS.items():
        try:
            merged = overlay(*(configs[part] for part in stack))
        except KeyError as error:
            yield f"{target}: nothing to lay {error.args[0]} over"
            continue
        properties = InferProperties if target == "inference.json" else TrainProperties
        for problem in config_problems(merged, properties):
            yield f"{target}: {problem}"


def overlay(*configs: Mapping[str, Any]) -> dict[str, Any]:
    """Lay configs over each other as MONAI's parser does: ``a::b`` edits, ``+a`` merges, everything else replaces.

    Raises:
        KeyError: if the parent of an edited entry does not exist.

    Example:
        >>> overlay({"a": {"b": 1}, "c": [1]}, {"a::b": 2, "+c": [2]})
        {'a': {'b': 2}, 'c': [1, 2]}
    """
    merged: dict[str, Any] = {}
    for config in configs:
        for key, value in config.items():
            *parents, last = key.lstrip("+").replace("#", "::").split("::")
            node: Any = merged
            for parent in parents:
                if isinstance(node, list):
                    node = node[int(parent)]
                elif isinstance(node, Mapping) and parent in node:
                    node = node[parent]
                else:
                    raise KeyError(key)
            if key.startswith("+"):
                node[last] = node[last] + value if isinstance(value, list) else {**node[last], **value}
            else:
                node[last] = deepcopy(value)
    return merged


def config_problems(config: Mapping[str, Any], properties: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what a config lacks or has too much of.

    Args:
        config: all files laid over each other.
        properties: MONAI's ``TrainProperties`` or ``InferProperties``.

    Example:
        >>> list(config_problems({"run": "$@a + @b", "a": 1, "c": 2, "d": None}, {}))
        ['d is not set', '@b refers to nothing', 'c is used by nothing', 'd is used by nothing']
    """
    ids = {str(p[BundlePropertyConfig.ID]): p for p in properties.values()}
    for name, about in ids.items():
        if about.get("required") and not _has(config, name):
            yield f"{name} is missing, which MONAI requires"
    yield from (f"{name} is not set" for name in _unset(config))
    references = _references(config)
    yield from (f"@{name} refers to nothing" for name in sorted(references) if not _has(config, name))
    used = {part for name in (*references, *ids, *_ENTRIES) for part in _prefixes(name)}
    for name, value in config.items():
        if name not in used:
            yield f"{name} is used by nothing"
        elif isinstance(value, Mapping) and "_target_" not in value and name not in references:
            yield from (f"{name}::{key} is used by nothing" for key in value if f"{name}::{key}" not in used)
    yield from _wrong_arguments(config)


def metadata_problems(metadata: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield what ``metadata.json`` lacks. The official schema needs the network; this follows its text.

    Example:
        >>> list(metadata_problems({"bundle": "a"}, "b"))[:2]
        ['metadata.json has no schema', 'metadata.json has no version']
    """
    yield from (f"metadata.json has no {key}" for key in METADATA_KEYS if key not in metadata)
    if metadata.get("bundle") != name:
        yield f"metadata.json is of the bundle {metadata.get('bundle')}"
    if metadata.get("version") not in metadata.get("changelog", {}):
        yield f"metadata.json has no changelog of version {metadata.get('version')}"
    formats = metadata.get("network_data_format", {})
    for side, tensor in (("inputs", "image"), ("outputs", "pred")):
        spec = formats.get(side, {}).get(tensor, {})
        yield from (f"metadata.json: {side} {tensor} has no {key}" for key in _TENSOR_KEYS if key not in spec)
        if len(spec.get("channel_def", ())) != spec.get("num_channels"):
            yield f"metadata.json: {side} {tensor} must name each of its channels"
        if not all(isinstance(size, int) and size > 0 for size in spec.get("spatial_shape", ())):
            yield f"metadata.json: {side} {tensor} must have whole numbers as spatial_shape"


def _wrong_arguments(value: Any, name: str = "") -> Iterator[str]:
    """Yield the arguments that a ``_target_`` does not take. It is imported for that, not called."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            place = f"{name}::{key}" if name else str(key)
            accepted = _accepted(str(value["_target_"])) if "_target_" in value else None
            if accepted is not None and key not in accepted and not str(key).startswith("_"):
                yield f"{place}: {str(value['_target_']).rsplit('.', 1)[-1]} takes no argument {key}"
            yield from _wrong_arguments(item, place)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _wrong_arguments(item, f"{name}::{index}")


@cache
def _accepted(target: str) -> frozenset[str] | None:
    """Return the arguments of a target; ``None`` if it takes any."""
    module = "" if "." in target else _locator().get_component_module_name(target)
    found = pydoc.locate(f"{module if isinstance(module, str) else module[0]}.{target}" if module else target)
    if found is None or not callable(found):
        return frozenset()
    parameters = inspect.signature(found).parameters
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) else frozenset(parameters)


@cache
def _locator() -> Any:
    return ComponentLocator()  # it reads all of MONAI once


def _prefixes(name: str) -> list[str]:
    parts = name.split("::")
    return ["::".join(parts[: i + 1]) for i in range(len(parts))]


def _has(config: Any, name: str) -> bool:
    node = config
    for key in name.split("::"):
        if isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        elif isinstance(node, Mapping) and key in node:
            node = node[key]
        else:
            return False
    return True


def _unset(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _unset(item, f"{name}::{key}" if name else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unset(item, f"{name}::{index}")
    elif value is None or (isinstance(value, str) and not value.strip("?") and name not in _MAY_BE_EMPTY):
        yield name


def _references(value: Any) -> set[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return set().union(*map(_references, value), set())
    if not isinstance(value, str):
        return set()
    if value.startswith("%"):
        return {value[1:].replace("#", "::")}
    return {str(name) for name in ReferenceResolver.match_refs_pattern(value)}
