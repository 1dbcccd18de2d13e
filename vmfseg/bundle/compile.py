# SPDX-License-Identifier: Apache-2.0
"""Compile bundles: commented YAML layers in, self-contained JSON configs and texts out.

A bundle is described in ``layers/bundles.yaml``: which layers make each of its configs, and the values that fill the
``{NAME}`` fields. Layers are merged in order: dictionaries key by key, everything else is replaced; ``null`` removes a
key. ``_like_: a::b`` inside a dictionary stands for the entries of ``a::b``, over which its own entries are laid. Every
plain value at the top of ``train.json`` is a field too (``image_size`` is ``{IMAGE_SIZE}``), and so are the number and
names of its ``labels`` (``{NUM_CLASSES}``, ``{CLASS_LIST}``, ``{CLASS_NAMES}``), so metadata and model card cannot
drift from it. The result is written below ``bundles/`` and committed; ``python -m vmfseg.bundle check`` compiles again
and compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from vmfseg.utils import VmfError, atomic_write, did_you_mean
from vmfseg.utils.io import StrPath

__all__ = [
    "bundle_names",
    "compile_bundle",
    "compile_spec",
    "described_bundles",
    "format_json",
    "merge_layers",
    "resolve_likes",
    "write_bundle",
    "write_files",
]

_FIELD = re.compile(r"\{([A-Z_]+)\}")
_WIDTH = 120


def bundle_names() -> list[str]:
    """Return the names of the bundles that are described."""
    return sorted(described_bundles())


def described_bundles() -> dict[str, dict[str, Any]]:
    """Return what ``layers/bundles.yaml`` says about each bundle: its ``fields``, and ``configs`` of its own."""
    return dict(_layer("bundles.yaml")["bundles"])


def compile_bundle(name: str) -> dict[str, str]:
    """Return the files of bundle ``name``: path below the bundle's folder to content.

    Args:
        name: one of :func:`bundle_names`.

    Raises:
        VmfError: VMF303 for an unknown bundle, VMF304 for a field without a value.
    """
    described = described_bundles()
    if name not in described:
        raise VmfError(
            "VMF303",
            subject=name,
            found=f"known are {', '.join(bundle_names())}",
            fix=f"use one of them.{did_you_mean(name, described)}",
        )
    return compile_spec(name, described[name])


def compile_spec(name: str, spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of a bundle that is described by ``spec``, as an entry of ``layers/bundles.yaml`` would be.

    Args:
        name: of the bundle.
        spec: its ``fields``, and layers of ``configs`` and ``files`` where they are not the usual ones; ``None`` for
            a config that it does not have.

    Raises:
        VmfError: VMF303 for an unknown layer, VMF304 for a field without a value.
    """
    described = _layer("bundles.yaml")
    fields = {**described.get("fields", {}), **spec.get("fields", {}), "BUNDLE": name}
    files: dict[str, str] = {}
    for target, layers in {**described["configs"], **spec.get("configs", {})}.items():
        if layers is None:  # a config that this bundle does not have
            continue
        names = [_fill(layer, fields, target) for layer in layers]
        merged = resolve_likes(merge_layers(*(_layer(layer) for layer in names)))
        merged = _fill(merged, fields, target)
        if target == "train.json":
            fields = {**_plain(merged.get("network_def", {})), **_plain(merged), **fields}
            fields = {key: _fill(value, fields, target) for key, value in fields.items()}
        files[f"configs/{target}"] = format_json(merged) + "\n"
    for target, sources in {**described["files"], **spec.get("files", {})}.items():
        texts = [_text(_fill(source, fields, target)) for source in sources]
        files[target] = _fill("\n".join(texts), fields, target)
    return files


def write_bundle(name: str, folder: StrPath) -> list[Path]:
    """Write the files of bundle ``name`` below ``folder`` and return their paths; unchanged files are left alone."""
    return write_files(compile_bundle(name), Path(folder) / name)


def write_files(files: Mapping[str, str], root: StrPath) -> list[Path]:
    """Write compiled files below ``root`` and return their paths; unchanged files are left alone."""
    written = []
    for relative, content in files.items():
        path = Path(root) / relative
        if not path.is_file() or path.read_text(encoding="utf-8") != content:
            atomic_write(path, content)
        written.append(path)
    return written


def merge_layers(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge dictionaries key by key; later ones win, ``None`` removes.

    Example:
        >>> merge_layers({"a": {"x": 1, "y": 2}, "b": [1]}, {"a": {"y": 3, "x": None}, "b": [2, 3]})
        {'a': {'y': 3}, 'b': [2, 3]}
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if value is None:
                merged.pop(key, None)
            elif isinstance(value, Mapping):
                below = merged.get(key)
                merged[key] = merge_layers(below if isinstance(below, Mapping) else {}, value)
            else:
                merged[key] = value
    return merged


def resolve_likes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Replace every ``_like_: id`` by the entries it names, over which the entries beside it are laid.

    Raises:
        VmfError: VMF304 if there is no such id.

    Example:
        >>> resolve_likes({"a": {"x": 1, "y": {"z": 2}}, "b": {"_like_": "a", "y": {"z": 3}}})["b"]
        {'x': 1, 'y': {'z': 3}}
    """

    def resolve(value: Any) -> Any:
        if isinstance(value, Mapping):
            own = {key: resolve(item) for key, item in value.items() if key != "_like_"}
            return merge_layers(resolve(find(str(value["_like_"]))), own) if "_like_" in value else own
        return [resolve(item) for item in value] if isinstance(value, list) else value

    def find(name: str) -> Any:
        below: Any = config
        for key in name.split("::"):
            if not isinstance(below, Mapping) or key not in below:
                raise VmfError(
                    "VMF304", subject=f"_like_: {name}", rule="there is no such entry", fix="check the layers"
                )
            below = below[key]
        return below

    return dict(resolve(config))


def format_json(value: Any, indent: int = 0, taken: int = 0) -> str:
    """Return JSON with everything on one line that fits, so that a config reads top to bottom.

    Below the knobs at the top, neighboring entries that only refer to others (``@``, ``$``) share lines; a value that
    one may want to change has a line of its own.

    Example:
        >>> part = {"_target_": "A", "data": "@data", "seed": "@seed", "size": 64, "text": "x" * 60}
        >>> print(format_json({"channels": [16, 32], "part": part}))
        {
            "channels": [16, 32],
            "part": {
                "_target_": "A",
                "data": "@data", "seed": "@seed",
                "size": 64,
                "text": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
            }
        }
    """
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or (indent and indent + taken + len(line) < _WIDTH):
        return line
    items = value.items() if isinstance(value, dict) else [("", item) for item in value]
    lines: list[str] = []
    joins = False  # whether the entry before was a reference, too
    for key, item in items:
        name = f"{json.dumps(key, ensure_ascii=False)}: " if isinstance(value, dict) else ""
        entry = name + format_json(item, indent + 4, len(name) + 1)
        refers = isinstance(item, str) and item.startswith(("@", "$")) and (indent > 0 or isinstance(value, list))
        if refers and joins and indent + 4 + len(lines[-1]) + len(entry) + 2 < _WIDTH:
            lines[-1] += f", {entry}"
        else:
            lines.append(entry)
        joins = refers
    pad, (start, end) = "\n" + " " * (indent + 4), "{}" if isinstance(value, dict) else "[]"
    return start + pad + f",{pad}".join(lines) + "\n" + " " * indent + end


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values at the top of a config as fields, and the names of its classes in words."""
    plain: dict[str, Any] = {}
    labels = config.get("labels")
    if isinstance(labels, Mapping):
        plain["NUM_CLASSES"] = len(labels)
        plain["CLASS_LIST"] = ", ".join(f"{value} {label}" for value, label in labels.items())
        plain["CLASS_NAMES"] = ", ".join(str(label) for value, label in labels.items() if int(value))
    for key, value in config.items():
        parts = value if isinstance(value, list) else [value]
        if all(isinstance(part, str | int | float) and not str(part).startswith(("$", "@", "%")) for part in parts):
            plain[key.upper()] = value
    return plain


def _fill(value: Any, fields: Mapping[str, Any], target: str) -> Any:
    if isinstance(value, dict):
        return {key: _fill(item, fields, target) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, fields, target) for item in value]
    if not isinstance(value, str):
        return value
    whole = _FIELD.fullmatch(value)
    if whole and whole.group(1) in fields:
        return fields[whole.group(1)]

    def replace(match: re.Match[str]) -> str:
        if match.group(1) not in fields:
            raise VmfError(
                "VMF304",
                subject=target,
                rule=f"the field {match.group(0)} has no value",
                fix=f"add it to layers/bundles.yaml.{did_you_mean(match.group(1), fields)}",
            )
        return str(fields[match.group(1)])

    return _FIELD.sub(replace, value)


@cache
def _layer(name: str) -> dict[str, Any]:
    content = yaml.safe_load(_text(name))
    return dict(content or {})


def _text(name: str) -> str:
    path = resources.files("vmfseg.bundle") / "layers" / name
    if not path.is_file():
        raise VmfError("VMF329", subject=f"layers/{name}")
    return path.read_text(encoding="utf-8")
