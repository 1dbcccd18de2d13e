# SPDX-License-Identifier: Apache-2.0
"""Read and walk configs as plain values: bounded reading, overlays, ids, references. Nothing is built or evaluated.

Ids are written as MONAI's parser keeps them: ``train::loader::batch_size``, list entries by number. ``#`` between the
parts, MONAI's older spelling, is the same as ``::``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from monai.bundle.reference_resolver import ReferenceResolver

from vmfseg.utils import VmfError

__all__ = ["closure", "config_files", "entries", "normalize_key", "overlay", "read_config", "references", "stack"]

_MAX_BYTES = 2_000_000
_MAX_ENTRIES = 100_000
_MAX_DEPTH = 60


def config_files(root: Path) -> list[Path]:
    """Return the JSON and YAML files in ``configs`` of a bundle, ``metadata.json`` among them, by name."""
    suffixes = (".json", ".yaml", ".yml")
    return sorted(path for path in (root / "configs").glob("*") if path.suffix.lower() in suffixes and path.is_file())


def read_config(path: Path, name: str = "") -> dict[str, Any]:
    """Read one JSON or YAML config of bounded size as plain values.

    Args:
        path: a ``.json``, ``.yaml`` or ``.yml`` file.
        name: what messages call it; default the path.

    Raises:
        VmfError: VMF310 if the file cannot be read (with line and column), has a key twice, asks for Python objects or
            has no object at the top; VMF416 if it is too large, nested too deeply or has YAML aliases, which can blow
            up.

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
        raise _unreadable(name, f"no UTF-8 text: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise _unreadable(name, error.strerror or type(error).__name__) from error
    try:
        content = _json(text, name) if path.suffix.lower() == ".json" else _yaml(text, name)
        count = sum(1 for _ in entries(content))
    except RecursionError as error:
        raise _too_large(name, "nested too deeply") from error
    if count > _MAX_ENTRIES:
        raise _too_large(name, f"{count} entries; {_MAX_ENTRIES} are allowed")
    if not isinstance(content, dict):
        raise _unreadable(name, f"{type(content).__name__} at the top instead of an object")
    return content


def entries(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield every entry of a config with its id, sections before their content.

    Raises:
        RecursionError: below the depth that a config may have.

    Example:
        >>> list(entries({"a": {"b": [1]}}))
        [('a', {'b': [1]}), ('a::b', [1]), ('a::b::0', 1)]
    """
    if depth > _MAX_DEPTH:
        raise RecursionError(name)
    if isinstance(value, Mapping | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            place = f"{name}::{normalize_key(str(key))}" if name else normalize_key(str(key))
            yield place, item
            yield from entries(item, place, depth + 1)


def normalize_key(key: str) -> str:
    """Return an id as MONAI's parser keeps it: ``::`` between the parts, no ``+`` of a merge in front.

    Example:
        >>> normalize_key("+train#loader#batch_size")
        'train::loader::batch_size'
    """
    return key.lstrip("+").replace("#", "::")


def references(value: Any) -> list[str]:
    """Return the ids that a value, or anything in it, refers to by ``@``, or by ``%`` within the same config.

    Example:
        >>> references({"a": "@b#c", "d": ["$@e + 1", "%run", "%other.json::x"]})
        ['b::c', 'e', 'run']
    """
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [name for item in value for name in references(item)]
    if not isinstance(value, str):
        return []
    if value.startswith("%"):
        name = normalize_key(value[1:])
        return [] if Path(name.split("::")[0]).suffix else [name]
    return [normalize_key(str(name)) for name in ReferenceResolver.match_refs_pattern(value)]


def closure(config: Mapping[str, Any], ids: Iterable[str]) -> dict[str, Any]:
    """Return the entries that ``ids`` need, themselves and all that is inside of them included, by id.

    Example:
        >>> sorted(closure({"a": {"x": "@b"}, "b": "$@c + 1", "c": 2, "d": 4}, ["a"]))
        ['a', 'a::x', 'b', 'c']
    """
    places = dict(entries(config))
    found: dict[str, Any] = {}
    todo = [normalize_key(name) for name in ids]
    while todo:
        name = todo.pop()
        if name in places and name not in found:
            found[name] = value = places[name]
            todo += [f"{name}::{inner}" for inner, _ in entries(value)] + references(value)
    return {name: places[name] for name in places if name in found}


def overlay(*configs: Mapping[str, Any]) -> dict[str, Any]:
    """Lay configs over each other as MONAI's parser does: ``a::b`` edits, ``+a`` merges, everything else replaces.

    Raises:
        VmfError: VMF319 if an edited entry has no parent, or two values cannot be merged.

    Example:
        >>> overlay({"a": {"b": 1}, "c": [1]}, {"a::b": 2, "+c": [2]})
        {'a': {'b': 2}, 'c': [1, 2]}
    """
    merged: dict[str, Any] = {}
    for config in configs:
        for key, value in config.items():
            *parents, last = normalize_key(key).split("::")
            node: Any = merged
            try:
                for parent in parents:
                    node = node[int(parent)] if isinstance(node, list) else node[parent]
                place: Any = int(last) if isinstance(node, list) else last
                if key.startswith("+") and (isinstance(node, list) or place in node):
                    below = node[place]
                    node[place] = below + value if isinstance(below, list) else {**below, **value}
                else:
                    node[place] = deepcopy(value)
            except (KeyError, TypeError, IndexError, ValueError) as error:
                raise VmfError("VMF319", subject=key, found=f"{type(error).__name__}: {error}") from error
    return merged


def stack(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return which files are laid over each other: ``train`` alone, what edits it above it, ``inference`` alone.

    Example:
        >>> stack({"train.json": {"run": "$1"}, "paper.json": {"kappa": 30}, "metadata.json": {}})
        {'train.json': ('train.json',), 'paper.json': ('train.json', 'paper.json')}
    """
    base = next((file for file in configs if Path(file).stem == "train"), None)
    found: dict[str, tuple[str, ...]] = {}
    for file, config in configs.items():
        if Path(file).stem == "metadata":
            continue
        whole = Path(file).stem in ("train", "inference") or base is None or "network_def" in config
        found[file] = (file,) if whole else (str(base), file)
    return dict(sorted(found.items(), key=lambda item: (len(item[1]), item[0] != base)))


def _json(text: str, name: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            raise _unreadable(name, f"the key {next(key for key in keys if keys.count(key) > 1)!r} twice in one object")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        lines = text.splitlines()
        line = lines[error.lineno - 1].strip()[:60] if error.lineno <= len(lines) else "end of the file"
        fix = "correct this place; JSON allows no comment and no comma before a closing bracket"
        place = f"{name}, line {error.lineno}, column {error.colno}"
        raise _unreadable(place, f"{error.msg}: {line}", fix) from error
    except VmfError:
        raise
    except ValueError as error:  # a number of more digits than Python reads
        raise _unreadable(name, str(error)) from error


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which refuses keys that come twice."""

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
                raise _too_large(_place(name, event.start_mark), f"the alias *{event.anchor}")
        return yaml.load(text, Loader=_Loader)  # noqa: S506 # a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        raise _unreadable(_place(name, error.problem_mark), str(error.problem)) from error
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, VmfError):
            raise
        raise _unreadable(name, str(error)) from error


def _place(name: str, mark: Any) -> str:
    return name if mark is None else f"{name}, line {mark.line + 1}, column {mark.column + 1}"


def _unreadable(name: str, found: str, fix: str = "correct this place") -> VmfError:
    return VmfError("VMF310", subject=name, found=found, fix=fix)


def _too_large(name: str, found: str) -> VmfError:
    return VmfError("VMF416", subject=name, found=found)
