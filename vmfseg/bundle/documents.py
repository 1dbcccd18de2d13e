# SPDX-License-Identifier: Apache-2.0
"""Configs of a bundle as plain values: JSON or YAML of sane size, read without building any object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from vmfseg.utils import VmfError

__all__ = ["CONFIG_SUFFIXES", "config_files", "entries", "read_config", "stack"]

CONFIG_SUFFIXES = (".json", ".yaml", ".yml")
_MAX_BYTES = 2_000_000
_MAX_ENTRIES = 100_000
_MAX_DEPTH = 60


def config_files(root: Path) -> list[Path]:
    """Return the configs of a bundle, ``metadata.json`` among them, by name."""
    folder = root / "configs"
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in CONFIG_SUFFIXES and path.is_file())


def read_config(path: Path, name: str = "") -> dict[str, Any]:
    """Read one config. Nothing in it is executed, and aliases of YAML, which can blow up, are refused.

    Args:
        path: a ``.json``, ``.yaml`` or ``.yml`` file.
        name: what messages call it; default the path.

    Raises:
        VmfError: VMF310 if the file cannot be read (with line and column), has a key twice or no object at the top,
            VMF416 if it is too large or too deep, VMF410 if YAML asks for Python objects.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "train.json"
        >>> _ = file.write_text('{"kappa": 10,}')
        >>> read_config(file, "train.json")
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF310: the config cannot be read
          about  train.json, line 1, column ...
          found  ...
          fix    correct this place; JSON allows no comment and no comma before a closing bracket
    """
    name = name or str(path)
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise _too_large(name, f"{size} bytes; {_MAX_BYTES} are allowed")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _broken(name, f"no UTF-8 text: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise _broken(name, error.strerror or type(error).__name__) from error
    try:
        content = _json(text, name) if path.suffix.lower() == ".json" else _yaml(text, name)
        count = sum(1 for _ in entries(content))
    except RecursionError as error:
        raise _too_large(name, "nested too deeply") from error
    if count > _MAX_ENTRIES:
        raise _too_large(name, f"{count} entries; {_MAX_ENTRIES} are allowed")
    if not isinstance(content, dict):
        raise _broken(name, f"{type(content).__name__} at the top instead of an object")
    return content


def entries(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield every entry of a config, sections included, with its id.

    Raises:
        RecursionError: below the depth that a config may have.

    Example:
        >>> list(entries({"a": {"b": [1]}}))
        [('a', {'b': [1]}), ('a::b', [1]), ('a::b::0', 1)]
    """
    if depth > _MAX_DEPTH:
        raise RecursionError(name)
    if isinstance(value, Mapping | list):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in pairs:
            place = f"{name}::{key}" if name else str(key)
            yield place, item
            yield from entries(item, place, depth + 1)


def stack(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return which files are laid over each other: ``train`` alone, what edits it above it, ``inference`` alone.

    Example:
        >>> stack({"train.json": {"run": "$1"}, "paper.json": {"kappa": 30}, "metadata.json": {}})
        {'train.json': ('train.json',), 'paper.json': ('train.json', 'paper.json')}
    """
    base = next((file for file in configs if Path(file).stem == "train"), None)
    alone = {"train", "inference"}
    found: dict[str, tuple[str, ...]] = {}
    for file, config in configs.items():
        if Path(file).stem == "metadata":
            continue
        whole = Path(file).stem in alone or base is None or "network_def" in config
        found[file] = (file,) if whole else (str(base), file)
    return dict(sorted(found.items(), key=lambda item: (len(item[1]), item[0] != base)))


def _json(text: str, name: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise _broken(name, f"the key {twice!r} twice in one object")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise VmfError(
            "VMF310",
            subject=f"{name}, line {error.lineno}, column {error.colno}",
            rule="the config cannot be read",
            found=f"{error.msg}: {_line(text, error.lineno)}",
            fix="correct this place; JSON allows no comment and no comma before a closing bracket",
        ) from error


class _Loader(yaml.SafeLoader):
    """Safe, and strict about keys that come twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if not isinstance(key, str | int) or keys.count(key) > 1:
                problem = f"the key {key!r} comes twice or is no text"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return {str(key): value for key, value in super().construct_mapping(node, deep).items()}


def _yaml(text: str, name: str) -> Any:
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise _too_large(_place(name, event), f"the alias *{event.anchor}")
            tag = getattr(event, "tag", None)
            if tag and "python" in tag:
                raise VmfError(
                    "VMF410",
                    subject=_place(name, event),
                    rule="YAML must hold plain values",
                    found=tag,
                    fix="do not run this bundle unless you wrote it",
                )
        return yaml.load(text, Loader=_Loader)  # noqa: S506 # a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise VmfError(
            "VMF310",
            subject=name + place,
            rule="the config cannot be read",
            found=str(error.problem),
            fix="correct this place",
        ) from error
    except yaml.YAMLError as error:
        raise _broken(name, str(error)) from error


def _place(name: str, event: yaml.Event) -> str:
    return f"{name}, line {event.start_mark.line + 1}" if event.start_mark is not None else name


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return lines[number - 1].strip()[:60] if 0 < number <= len(lines) else "end of the file"


def _broken(name: str, found: str) -> VmfError:
    return VmfError("VMF310", subject=name, rule="the config cannot be read", found=found, fix="correct the file")


def _too_large(name: str, found: str) -> VmfError:
    return VmfError(
        "VMF416",
        subject=name,
        rule="a config must be of sane size, without aliases",
        found=found,
        fix="write it out, or do not use this bundle",
    )
