# SPDX-License-Identifier: Apache-2.0
"""Refuse overrides before anything is built: misspelt keys, which MONAI's parser takes up silently, and bad values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from vmfseg.data.sampling import BALANCES
from vmfseg.utils import VmfError, did_you_mean
from vmfseg.utils.checks import usable_device, whole_number

from .components import argument_names
from .config import normalize_key, references

__all__ = ["check_keys", "check_knob", "check_knobs"]

_MONAI_KEYS = frozenset({"imports", "initialize", "run", "finalize", "save_execute_config"})
_MANY = 10**9
#: Whole numbers: the least and the largest.
_WHOLE = {
    "max_iterations": (1, _MANY), "epoch_length": (1, _MANY), "max_epochs": (1, _MANY), "val_interval": (1, _MANY),
    "pretraining_iterations": (0, _MANY), "batch_size": (1, 65536), "unlabeled_batch_size": (1, 65536),
    "accumulation_steps": (1, 65536), "image_size": (8, 16384), "num_workers": (0, 256),
    "calibration_slices": (0, _MANY), "seed": (-(2**63), 2**63 - 1),
}  # fmt: skip
#: Other numbers: above the first, up to the second.
_REAL = {"learning_rate": (0.0, 1e30), "labeled_fraction": (0.0, 1.0)}
_WORDS = {"protocol": ("clean", "paper"), "selection": ("best", "last"), "balanced": BALANCES}


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
            number = whole_number(part)
            if number is None or number >= len(node):
                _refuse(name, f"the list has the entries 0 to {len(node) - 1}")
            node = node[number]
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


def _refuse(name: str, found: str = "", fix: str = "check the id against the config") -> NoReturn:
    raise VmfError("VMF110", subject=name, found=found, fix=fix)


def _list(what: str, names: Iterable[str]) -> str:
    public = sorted(name for name in names if not name.startswith("_"))
    return f"{what}: {', '.join(public) or 'none'}"


def check_knobs(config: Mapping[str, Any], places: Mapping[str, str] | None = None) -> None:
    """Refuse settings of a config that no training can use; references and expressions are left to the config.

    Args:
        config: the settings by name.
        places: the file that a setting was read from, by name; the others are options of the command line.

    Raises:
        VmfError: VMF100 for an option, VMF315 for a setting of a file.

    Example:
        >>> check_knobs({"max_iterations": -5})
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF100: max_iterations must be a whole number from 1 to 1000000000
          about  --max_iterations
          found  -5
          fix    give another value
        >>> check_knobs({"batch_size": "ten"}, {"batch_size": "configs/train.json"})
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF315: batch_size must be a whole number from 1 to 65536
          about  configs/train.json: batch_size
          found  'ten'
          fix    correct the value in the file, or give another by --batch_size
    """
    for name, value in config.items():
        if not (isinstance(value, str) and value.startswith(("$", "@", "%", "???"))):
            check_knob(name, value, (places or {}).get(name, ""))


def check_knob(name: str, value: Any, place: str = "") -> None:
    """Refuse one setting (VMF100, or VMF315 if a file is its place); names that have no rule pass."""
    rule, found = "", repr(value)[:80]
    fix = f"correct the value in the file, or give another by --{name}" if place else "give another value"
    if name in _WHOLE:
        low, high = _WHOLE[name]
        if not _is_number(value) or not low <= value <= high or value != int(value):
            rule = f"a whole number from {low} to {high}"
    elif name in _REAL:
        above, most = _REAL[name]
        if not _is_number(value) or not above < value <= most:
            rule = f"a number above {above:g} and at most {most:g}"
            fix = "write 5 % as 0.05" if name == "labeled_fraction" else fix
    elif name in _WORDS and value not in _WORDS[name]:
        rule, fix = f"one of {', '.join(_WORDS[name])}", did_you_mean(str(value), _WORDS[name]).strip() or fix
    elif name == "device" and isinstance(value, str):
        try:
            usable_device(value)
        except ValueError as error:
            rule, found, fix = "there", str(error), "--device cpu"
    if rule:
        code, subject = ("VMF315", f"{place}: {name}") if place else ("VMF100", f"--{name}")
        raise VmfError(code, subject=subject, rule=f"{name} must be {rule}", found=found, fix=fix)


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (isinstance(value, int) or math.isfinite(value))
    )
