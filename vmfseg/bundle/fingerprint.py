# SPDX-License-Identifier: Apache-2.0
"""What of a config decides the result of a stage: the closure of its section under references."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from monai.bundle.reference_resolver import ReferenceResolver

from .running import running

__all__ = ["closure", "config_closure"]

#: Keys that say where and how, not what: a run moved to another folder or device is the same run.
WHERE = frozenset(
    {
        "bundle_root",
        "dataset_dir",
        "output_dir",
        "ckpt_dir",
        "device",
        "resume",
        "fresh",
        "num_workers",
        "imports",
        "rank",
    }
)

#: Objects that look on and change nothing (MONAI's ``--tracking`` adds one, with the time of day in it).
OBSERVERS = frozenset(
    {
        "MLFlowHandler",
        "StatsHandler",
        "TensorBoardStatsHandler",
        "vmfseg.handlers.HistoryHandler",
        "vmfseg.handlers.ListedOutputHandler",
        "vmfseg.handlers.ProgressHandler",
        "vmfseg.handlers.RunWriter",
    }
)


def config_closure(*ids: str) -> dict[str, Any]:
    """Return the raw entries of the config being evaluated right now that the entries ``ids`` depend on.

    For use inside a config: ``"$vmfseg.bundle.config_closure('train')"``. Outside of one it is empty.

    Args:
        ids: config ids, such as ``"train"`` or ``"train::loss"``.
    """
    parser, _ = running()
    return closure(parser.config, ids) if parser is not None else {}


def closure(config: dict[str, Any], ids: Iterable[str]) -> dict[str, Any]:
    """Return the raw entries that ``ids`` depend on, themselves included, without those that only say where.

    Example:
        >>> config = {"a": {"x": "@b"}, "b": "$@c + 1", "c": 2, "d": 4, "output_dir": "out"}
        >>> closure(config, ["a"])
        {'a': {'x': '@b'}, 'b': '$@c + 1', 'c': 2}
    """
    found: dict[str, Any] = {}
    todo = [name.replace("#", "::") for name in ids]
    while todo:
        name = todo.pop()
        if name in found or name.split("::")[0] in WHERE:
            continue
        found[name] = _without_observers(_entry(config, name))
        todo.extend(_references(found[name]))
    return dict(sorted(found.items()))


def _entry(config: Any, name: str) -> Any:
    value = config
    for key in name.split("::"):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def _without_observers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_observers(item) for key, item in value.items() if not _observes(item)}
    if isinstance(value, list):
        return [_without_observers(item) for item in value if not _observes(item)]
    return value


def _observes(value: Any) -> bool:
    return isinstance(value, dict) and value.get("_target_") in OBSERVERS


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*(_references(v) for v in value.values()), set())
    if isinstance(value, list):
        return set().union(*(_references(v) for v in value), set())
    if isinstance(value, str):
        return {str(name) for name in ReferenceResolver.match_refs_pattern(value)}
    return set()
