# SPDX-License-Identifier: Apache-2.0
"""Refuse misspelt keys of overrides. MONAI's parser takes up unknown keys, and nothing ever reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vmfseg.utils import VmfError, did_you_mean

from .components import argument_names
from .config import normalize_key, references

__all__ = ["check_keys"]

_MONAI_KEYS = frozenset({"imports", "initialize", "run", "finalize", "save_execute_config"})


def check_keys(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Refuse an override that nothing in the config would read.

    Accepted are ids that the config has; further arguments of a ``_target_`` that its signature takes; entries of a
    dictionary that something refers to as a whole, such as ``loss_weights::dice``; and new keys that another entry
    refers to.

    Args:
        config: the raw config, all files merged.
        overrides: values by id, with ``::`` or ``#`` between the parts.

    Raises:
        VmfError: VMF110 with the nearest key.

    Example:
        >>> check_keys({"kappa": 30, "net": {"_target_": "vmfseg.networks.VMFNet", "kappa": "@kappa"}}, {"kapa": 10})
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF110: the config has no such key
          about  kapa
          fix    Did you mean 'kappa'?
    """
    used = set(references([config, overrides]))
    values = {normalize_key(key): value for key, value in overrides.items()}
    replaced = {name: value for name, value in values.items() if name in config and isinstance(value, Mapping)}
    config = {**config, **replaced}
    for name in values:
        _check(config, name, used, values)


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
    accepted = argument_names(target)
    if accepted is not None and argument not in accepted:
        fix = did_you_mean(argument, accepted).strip() or _list("arguments", accepted)
        _refuse(name, f"{target.rsplit('.', 1)[-1]} takes no argument {argument}", fix)


def _refuse(name: str, found: str = "", fix: str = "check the id against the config") -> None:
    raise VmfError("VMF110", subject=name, rule="the config has no such key", found=found, fix=fix)


def _list(what: str, names: Iterable[str]) -> str:
    public = sorted(name for name in names if not name.startswith("_"))
    return f"{what}: {', '.join(public) or 'none'}"
