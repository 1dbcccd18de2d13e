# SPDX-License-Identifier: Apache-2.0
"""Which keys a config has, so that a misspelt one is an error. MONAI adds unknown keys and never reads them."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from monai.bundle.config_item import ComponentLocator
from monai.bundle.reference_resolver import ReferenceResolver

from vmfseg.utils import VmfError, did_you_mean

__all__ = ["check_keys", "new_keys", "normalize_key", "union"]

_MONAI_KEYS = frozenset({"imports", "initialize", "run", "finalize", "save_execute_config"})


def check_keys(config: Mapping[str, Any], overrides: Mapping[str, Any], context: Any = None) -> None:
    """Refuse an override that nothing in the config would read.

    Accepted are ids that the config has; further arguments of a ``_target_`` that its signature takes; entries of a
    dictionary that something refers to as a whole, such as ``loss_weights::dice``; and new keys that another entry
    refers to.

    Args:
        config: the raw config, all files merged.
        overrides: values by id, with ``::`` or ``#`` between the parts.
        context: what else may refer to a new key.

    Raises:
        VmfError: VMF110 with the nearest key.

    Example:
        >>> check_keys({"kappa": 30, "net": {"_target_": "vmfseg.networks.VMFNet", "kappa": "@kappa"}}, {"kapa": 10})
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF110: the config has no such key
          about  kapa
          fix    Did you mean 'kappa'?
    """
    used = set(_references([config, overrides, context]))
    values = {normalize_key(key): value for key, value in overrides.items()}
    for name in values:
        _check(config, name, used, values)


def new_keys(config: Mapping[str, Any], known: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the ids of ``config`` that ``known`` has not; below a new id nothing more is reported.

    Example:
        >>> list(new_keys({"a": 1, "b": {"x": 1, "y": 2}}, {"a": 0, "b": {"x": 0}}))
        ['b::y']
    """
    for key, value in config.items():
        if key not in known:
            yield prefix + key
        elif isinstance(value, Mapping) and isinstance(known[key], Mapping):
            yield from new_keys(value, known[key], f"{prefix}{key}::")


def union(configs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a dictionary with the ids of all ``configs``.

    Example:
        >>> union([{"a": {"x": 1}}, {"a::y": 2, "b": 3}])
        {'a': {'x': 1, 'y': 2}, 'b': 3}
    """
    merged: dict[str, Any] = {}
    edits: dict[str, Any] = {}  # an overlay edits what another file defines
    for config in configs:
        for key, value in config.items():
            plain = normalize_key(key)
            below = merged.get(plain)
            if "::" in plain:
                edits[plain] = value
            elif isinstance(value, Mapping) and (below is None or isinstance(below, Mapping)):
                merged[plain] = union([below or {}, value])
            else:
                merged.setdefault(plain, value)
    for name, value in edits.items():
        *parents, last = name.split("::")
        node: Any = merged
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.setdefault(last, value)
    return merged


def normalize_key(key: str) -> str:
    """Return an id as MONAI's parser keeps it: ``::`` between the parts, no ``+`` of a merge in front.

    Example:
        >>> normalize_key("+train#loader#batch_size")
        'train::loader::batch_size'
    """
    return key.lstrip("+").replace("#", "::")


def _check(config: Mapping[str, Any], name: str, used: set[str], values: Mapping[str, Any]) -> None:
    node: Any = config
    parts = name.split("::")
    for depth, part in enumerate(parts):
        path = "::".join(parts[: depth + 1])
        if isinstance(node, list):
            if not part.isdigit() or int(part) >= len(node):
                _refuse(name, f"the list has the entries 0 to {len(node) - 1}")
            node = node[int(part)]
            continue
        if not isinstance(node, Mapping):
            _refuse(name, f"{'::'.join(parts[:depth])} is a value, not a section")
        if part not in node:
            if part.startswith("_") and part.endswith("_") and depth:
                return  # MONAI's own words, such as _target_ and _disabled_
            if "_target_" in node:
                target = values.get(f"{'::'.join(parts[:depth])}::_target_", node["_target_"])
                _check_argument(str(target), part, name)
                return
            whole = {"::".join(parts[: i + 1]) for i in range(depth + 1)}
            if not (whole & used or (depth == 0 and part in _MONAI_KEYS)):
                options = [path[: -len(part)] + key for key in node]
                _refuse(name, fix=did_you_mean(path, options).strip() or _list("keys there", node))
            return
        if "_target_" in node and isinstance(node[part], Mapping) and "_target_" not in node[part]:
            return  # an argument that is data; who takes it judges it
        node = node[part]


def _check_argument(target: str, argument: str, name: str) -> None:
    if "." not in target:
        module = ComponentLocator().get_component_module_name(target)
        target = f"{module if isinstance(module, str) else module[0]}.{target}" if module else target
    found = pydoc.locate(target)
    if found is None or not callable(found):
        return  # MONAI says so itself
    accepted = inspect.signature(found).parameters
    if argument in accepted or any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        return
    fix = did_you_mean(argument, accepted).strip() or _list("arguments", accepted)
    _refuse(name, f"{target.rsplit('.', 1)[-1]} takes no argument {argument}", fix)


def _refuse(name: str, found: str = "", fix: str = "check the id against the config") -> None:
    raise VmfError("VMF110", subject=name, rule="the config has no such key", found=found, fix=fix)


def _list(what: str, names: Iterable[str]) -> str:
    public = sorted(name for name in names if not name.startswith("_"))
    return f"{what}: {', '.join(public) or 'none'}"


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _references(item)
    elif isinstance(value, str):
        yield from (normalize_key(str(name)) for name in ReferenceResolver.match_refs_pattern(value))
