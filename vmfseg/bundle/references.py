# SPDX-License-Identifier: Apache-2.0
"""Look whether a config can mean anything: references that lead somewhere, arguments that exist, values of their kind.

MONAI finds these out one by one, while it builds, and prints pages. Here each is a refusal with file, key and the
nearest valid key; nothing is built.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from monai.bundle.reference_resolver import ReferenceResolver

from vmfseg.utils import VmfError, did_you_mean

from .documents import entries
from .expressions import broken_expression
from .keys import normalize_key
from .targets import find_target, missing_target

__all__ = ["check_config", "config_findings"]

_RUNS = ("initialize", "run", "training", "evaluating", "finalize")
_MISSING = object()


def check_config(config: Mapping[str, Any], file: str = "", runs: Sequence[str] = _RUNS) -> None:
    """Refuse a config that cannot work, see :func:`config_findings`.

    Raises:
        VmfError: the first finding.
    """
    for finding in config_findings(config, file, runs):
        raise finding


def config_findings(config: Mapping[str, Any], file: str = "", runs: Sequence[str] = _RUNS) -> Iterator[VmfError]:
    """Yield what is wrong with a config, all files laid over each other.

    Args:
        config: raw, with ``@`` and ``$``.
        file: what messages call it.
        runs: the entries that are run.

    Yields:
        VMF311 a reference to nothing, VMF312 a ``_target_`` that does not exist, VMF313 references in a circle, VMF314
        an expression that is no Python, VMF315 a value of the wrong kind, VMF316 a missing or unknown argument or
        nothing to run, VMF317 a value that was left open.

    Example:
        >>> print(next(config_findings({"kappa": 10, "run": "$@kapa * 2"}, "train.json")))
        error VMF311: a reference must lead to an entry
          about  train.json: run
          found  @kapa
          fix    Did you mean 'kappa'?
    """
    prefix = f"{file}: " if file else ""
    places = dict(entries(config))
    known = [name for name in places if not name.startswith("_meta_")]
    if not any(name in config for name in runs):
        fix = did_you_mean(runs[0], config).strip() or f"add the entry {runs[0]}"
        yield VmfError("VMF316", subject=file, rule="the config has nothing to run", found=_some(config), fix=fix)
    for place in known:
        yield from _entry_findings(places, place, prefix)
    circle = _circle(places, [name for name in (*runs, *known) if name in places])
    if circle:
        yield VmfError(
            "VMF313",
            subject=prefix + circle[0],
            rule="references must not lead in a circle",
            found=" -> ".join(f"@{name}" for name in circle),
            fix="break the circle; what a trainer's handler needs of the trainer it gets when it is attached",
        )
    for place in _reached(places, runs):
        value = places[place]
        if isinstance(value, Mapping) and isinstance(value.get("_target_"), str) and not value.get("_disabled_"):
            yield from _argument_findings(places, place, value, prefix)


def _entry_findings(places: Mapping[str, Any], place: str, prefix: str) -> Iterator[VmfError]:
    """Yield what is wrong with one entry, whatever it is used for."""
    value, subject = places[place], prefix + place
    text = value if isinstance(value, str) else ""
    if text and not text.strip("?"):
        yield VmfError("VMF317", subject=subject, rule="a value was left open", found=text, fix="write the value")
    named = missing_target(text) if place.endswith("_target_") else None
    wrong = named or (broken_expression(text) if text.startswith("$") else None)
    if wrong is not None:
        yield VmfError(**{**wrong.as_dict(), "subject": subject})
    for name in _own_references(value):
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
        if accepts is not None and key not in accepts:
            fix = did_you_mean(key, accepts).strip() or f"its arguments are {_some(accepts)}"
            yield VmfError(
                "VMF316", subject=f"{prefix}{place}::{key}", rule=f"{short} takes no such argument", found=key, fix=fix
            )
    for key in needs:
        if key not in given:
            yield VmfError(
                "VMF316",
                subject=f"{prefix}{place}",
                rule=f"{short} needs the argument {key}",
                found=f"arguments {_some(given)}",
                fix=did_you_mean(key, given).strip() or f"add {place}::{key}",
            )
    for key in given:
        value, source = _follow(places, component[key], f"{place}::{key}")
        if value is not _MISSING and key in hints and not _fits(value, hints[key]):
            used = "" if source == f"{place}::{key}" else f", used as {place}::{key}"
            yield VmfError(
                "VMF315",
                subject=f"{prefix}{source}{used}",
                rule=f"{short} takes {_words(hints[key])} for {key}",
                found=repr(value)[:80],
                fix="write a value of this kind",
            )


@cache
def _signature(target: str) -> tuple[frozenset[str] | None, tuple[str, ...], dict[str, Any]] | None:
    """Return which arguments a target takes (``None`` for any), which it needs, and our own type hints."""
    found = find_target(target)
    if found is None:
        return None
    parameters = inspect.signature(found).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    needs = tuple(name for name, p in named.items() if p.default is p.empty)
    hints: dict[str, Any] = {}
    if target.startswith("vmfseg."):
        maker = found.__init__ if inspect.isclass(found) else found
        try:
            hints = typing.get_type_hints(maker)
        except (NameError, TypeError):
            hints = {}  # a hint that is only there for the type checker
    return (None if anything else frozenset(named)), needs, hints


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value can be of a type; where that is not plain to see, it can."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in inner)
    if hint in (None, type(None)):
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint in (int, float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (hint is float or float(value).is_integer())
    if hint is str:
        return isinstance(value, str)
    plain = value is None or isinstance(value, bool | int | float | str)
    if origin in (list, tuple, Sequence) or getattr(origin, "__name__", "") == "Sequence":
        if not isinstance(value, list):
            return not plain
        return all(_fits(item, inner[0]) for item in value) if inner and isinstance(inner[0], type) else True
    if getattr(origin, "__name__", "") in ("Mapping", "dict"):
        return not plain and not isinstance(value, list)
    return True


def _follow(places: Mapping[str, Any], value: Any, place: str) -> tuple[Any, str]:
    """Return the plain value that an entry stands for and where it is written; nothing for what must be computed."""
    seen = set()
    while isinstance(value, str) and value.startswith("@"):
        name = normalize_key(value[1:])
        if name in seen or name not in places:
            return _MISSING, place
        seen.add(name)
        value, place = places[name], name
    computed = isinstance(value, str) and value.startswith(("$", "%"))
    if computed or isinstance(value, Mapping) or (isinstance(value, list) and not all(map(_is_plain, value))):
        return _MISSING, place
    return value, place


def _is_plain(value: Any) -> bool:
    return not isinstance(value, Mapping | list) and not (isinstance(value, str) and value[:1] in ("@", "$", "%"))


def _own_references(value: Any) -> list[str]:
    """Return the ids that a text refers to; files of macros are another matter."""
    if not isinstance(value, str):
        return []
    if value.startswith("%"):
        return [] if Path(value.split("::")[0].split("#")[0]).suffix else [normalize_key(value[1:])]
    return [normalize_key(str(name)) for name in ReferenceResolver.match_refs_pattern(value)]


def _circle(places: Mapping[str, Any], starts: Sequence[str]) -> list[str]:
    """Return the ids of a circle of references, first and last the same, or nothing."""
    done: set[str] = set()
    for start in starts:
        path: list[str] = []
        todo: list[tuple[str, Iterator[str]]] = []
        if start not in done:
            path, todo = [start], [(start, _needs(places, start))]
        while todo:
            name, needed = todo[-1]
            following = next(needed, None)
            if following is None:
                done.add(name)
                todo.pop()
                path.pop()
            elif following in path:
                return [*path[path.index(following) :], following]
            elif following in places and following not in done:
                path.append(following)
                todo.append((following, _needs(places, following)))
    return []


def _reached(places: Mapping[str, Any], runs: Sequence[str]) -> list[str]:
    """Return the entries that a run builds, those inside of others included; MONAI leaves all others alone."""
    found: dict[str, None] = {}
    todo = [name for name in runs if name in places]
    while todo:
        name = todo.pop()
        if name in found or name not in places:
            continue
        found[name] = None
        value = places[name]
        if isinstance(value, Mapping | list):
            todo.extend(f"{name}::{key}" for key in (value if isinstance(value, Mapping) else range(len(value))))
        todo.extend(_own_references(value))
    return [place for place in places if place in found]


def _needs(places: Mapping[str, Any], name: str) -> Iterator[str]:
    value = places[name]
    yield from _own_references(value)
    if isinstance(value, Mapping | list):
        for _, item in entries(value):
            yield from _own_references(item)


def _some(names: Any) -> str:
    words = sorted(str(name) for name in names if not str(name).startswith("_"))
    return (", ".join(words[:8]) + (f" and {len(words) - 8} more" if len(words) > 8 else "")) or "none"


def _words(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_words(part) for part in typing.get_args(hint))
    origin = getattr(typing.get_origin(hint), "__name__", "")
    if origin in ("list", "tuple", "Sequence"):
        return "a list"
    return names.get(hint, "an object" if origin in ("Mapping", "dict") else str(getattr(hint, "__name__", hint)))
