# SPDX-License-Identifier: Apache-2.0
"""Static checks of a config: references that lead somewhere, classes that exist, arguments that they take.

MONAI finds these one by one, while it builds, and prints pages. Here each is an error with file, key and the nearest
valid key. Classes of MONAI, PyTorch, Ignite and vmfseg are imported to look at their arguments; nothing is built.
"""

from __future__ import annotations

import ast
import graphlib
import inspect
import pydoc
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from vmfseg.model.definitions import full_name
from vmfseg.utils import VmfError, did_you_mean

from .config import closure, entries, normalize_key, references

__all__ = ["argument_names", "config_findings"]

_RUNS = ("initialize", "run", "training", "evaluating", "finalize")
_PACKAGES = ("ignite.", "monai.", "torch.nn.", "torch.optim.", "vmfseg.")
_TARGET = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*", re.ASCII)
_REFERENCE = re.compile(r"@(?:::)*[\w:]+")
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}


def config_findings(config: Mapping[str, Any], file: str = "", runs: Sequence[str] = _RUNS) -> Iterator[VmfError]:
    """Yield what cannot work in a config, all files laid over each other. Nothing of it is executed.

    Args:
        config: raw, with ``@`` and ``$``.
        file: what messages call it.
        runs: the entries that are run; arguments are looked at where a run needs them.

    Yields:
        VMF311 a reference to nothing, VMF312 a ``_target_`` that does not exist, VMF313 references in a circle, VMF314
        an expression that is no Python, VMF315 a value of the wrong kind, VMF316 an unknown argument, VMF317 a value
        that is not set, VMF325 a missing argument, VMF326 nothing to run.

    Example:
        >>> print(next(config_findings({"kappa": 10, "run": "$@kapa * 2"}, "train.json")))
        error VMF311: a reference must lead to an entry
          about  train.json: run
          found  @kapa
          fix    Did you mean 'kappa'?
    """
    prefix = f"{file}: " if file else ""
    places = {name: value for name, value in entries(config) if not name.startswith("_meta_")}
    if not any(name in places for name in runs):
        fix = did_you_mean(runs[0], config).strip() or f"add the entry {runs[0]}"
        yield VmfError("VMF326", subject=file, found=_list(config), fix=fix)
    for place, value in places.items():
        if isinstance(value, str):
            yield from _text_findings(places, place, value, prefix + place)
    circle = _circle(places)
    if circle:
        yield VmfError("VMF313", subject=prefix + circle[0], found=" -> ".join(f"@{name}" for name in circle))
    for place, value in closure(config, runs).items():
        if not isinstance(value, Mapping) or str(value.get("_disabled_")).lower() == "true":
            continue
        if isinstance(value.get("_target_"), str):
            yield from _argument_findings(places, place, value, prefix)


def argument_names(target: str) -> frozenset[str] | None:
    """Return the arguments that a ``_target_`` takes; ``None`` if it takes any, or is of no known package.

    Example:
        >>> sorted(argument_names("vmfseg.handlers.GradientClipHandler"))
        ['value']
    """
    signature = _signature(target)
    return signature[0] if signature else None


def _text_findings(places: Mapping[str, Any], place: str, text: str, subject: str) -> Iterator[VmfError]:
    if text and not text.strip("?"):
        yield VmfError("VMF317", subject=subject, found=text)
    if place.endswith("_target_") and _is_missing(text):
        fix = _nearest(text).strip() or "check the name against the documentation of the package"
        rule = "_target_ names a class that does not exist"
        yield VmfError("VMF312", subject=subject, rule=rule, found=text, fix=fix)
    if text.startswith("$"):
        try:
            ast.parse(_REFERENCE.sub("x", normalize_key(text[1:])).strip())
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            found = f"{getattr(error, 'msg', type(error).__name__)}: {text[:80]}"
            rule = "the text after $ is no Python expression"
            yield VmfError("VMF314", subject=subject, rule=rule, found=found)
    for name in references(text):
        if name not in places:
            fix = did_you_mean(name, places).strip() or "add the entry, or correct the name after @"
            rule = "a reference must lead to an entry"
            yield VmfError("VMF311", subject=subject, rule=rule, found=f"@{name}", fix=fix)


def _argument_findings(
    places: Mapping[str, Any], place: str, component: Mapping[str, Any], prefix: str
) -> Iterator[VmfError]:
    target = str(component["_target_"])
    signature = _signature(target)
    if signature is None or component.get("_mode_", "default") != "default":
        return
    accepts, needs, hints = signature
    given = [key for key in component if not (key.startswith("_") and key.endswith("_"))]
    short = target.rsplit(".", 1)[-1]
    for key in given:
        value, source = _follow(places, component[key], f"{place}::{key}")
        if accepts is not None and key not in accepts:
            fix = did_you_mean(key, accepts).strip() or f"its arguments are {_list(accepts)}"
            rule = f"{short} takes no such argument"
            yield VmfError("VMF316", subject=f"{prefix}{place}::{key}", rule=rule, found=key, fix=fix)
        elif key in hints and not _fits(value, hints[key]):
            used = "" if source == f"{place}::{key}" else f", used as {place}::{key}"
            rule = f"{short} takes {_words(hints[key])} for {key}"
            fix = "write a value of this kind"
            yield VmfError("VMF315", subject=f"{prefix}{source}{used}", rule=rule, found=repr(value)[:80], fix=fix)
    for key in needs:
        if key not in given:
            fix = did_you_mean(key, given).strip() or f"add {place}::{key}"
            rule, found = f"{short} needs the argument {key}", f"arguments {_list(given)}"
            yield VmfError("VMF325", subject=prefix + place, rule=rule, found=found, fix=fix)


def _circle(places: Mapping[str, Any]) -> list[str]:
    """Return the ids of a circle of references, first and last the same, or nothing."""
    graph = {name: [ref for ref in references(value) if ref in places] for name, value in places.items()}
    for name in places:
        if "::" in name:  # a section is built with its entries
            graph[name.rpartition("::")[0]].append(name)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


class _Computed:
    """Stands for a value that only an evaluation would give."""


def _follow(places: Mapping[str, Any], value: Any, place: str) -> tuple[Any, str]:
    """Return the plain value that an entry stands for, and where it is written."""
    seen = set()
    while isinstance(value, str) and value.startswith("@"):
        name = normalize_key(value[1:])
        if name in seen or name not in places:
            return _Computed, place
        seen.add(name)
        value, place = places[name], name
    parts = value if isinstance(value, list) else [value]
    plain = all(not isinstance(x, Mapping | list) and not str(x).startswith(("@", "$", "%")) for x in parts)
    return (value, place) if plain else (_Computed, place)


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a plain value can be of a type; in doubt it can."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if value is _Computed or (origin is None and hint not in _KINDS and hint is not None):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in inner)
    if hint in (int, float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (hint is float or float(value).is_integer())
    if origin is None:
        return isinstance(value, hint or type(None))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return isinstance(value, list) and (not inner or all(_fits(item, inner[0]) for item in value))
    return not (isinstance(origin, type) and issubclass(origin, Mapping))  # what is no mapping is no plain value here


def _words(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(part) for part in typing.get_args(hint))
    if isinstance(origin, type):
        return "a list" if issubclass(origin, Sequence) else "an object"
    return _KINDS.get(hint, str(getattr(hint, "__name__", hint)))


@cache
def _signature(target: str) -> tuple[frozenset[str] | None, tuple[str, ...], dict[str, Any]] | None:
    """Return which arguments a target takes (``None`` for any), which it needs, and the type hints of ours."""
    found = _find(target)
    if found is None:
        return None
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return None
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    needs = tuple(name for name, p in named.items() if p.default is p.empty)
    hints: dict[str, Any] = {}
    if target.startswith("vmfseg."):
        try:
            hints = typing.get_type_hints(found.__init__ if inspect.isclass(found) else found)
        except (NameError, TypeError):
            hints = {}  # a hint that is only there for the type checker
    return (None if anything else frozenset(named)), needs, hints


def _find(target: str) -> Any:
    """Return the class or function of a target of a known package, or ``None``."""
    if not _TARGET.fullmatch(target):
        return None
    found = _import(full_name(target))
    return found if callable(found) else None


def _is_missing(target: str) -> bool:
    if not _TARGET.fullmatch(target) or _find(target) is not None:
        return False
    return target.startswith(_PACKAGES) if "." in target else bool(_nearest(target))


def _nearest(target: str) -> str:
    module, _, name = target.rpartition(".")
    if module:
        return did_you_mean(target, (f"{module}.{word}" for word in _classes(module)))
    packages = ("data", "engines", "handlers", "inferers", "losses", "metrics", "networks.nets", "transforms")
    return did_you_mean(name, (word for package in packages for word in _classes(f"monai.{package}")))


def _classes(module: str) -> list[str]:
    return [name for name, value in vars(_import(module) or object).items() if inspect.isclass(value)]


def _import(name: str) -> Any:
    try:
        return pydoc.locate(name) if f"{name}.".startswith(_PACKAGES) else None
    except pydoc.ErrorDuringImport:
        return None


def _list(names: Iterable[Any]) -> str:
    words = sorted(str(name) for name in names if not str(name).startswith("_"))
    return (", ".join(words[:8]) + (f" and {len(words) - 8} more" if len(words) > 8 else "")) or "none"
