# SPDX-License-Identifier: Apache-2.0
"""What of a config decides the result of a stage: the closure of its section under references."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from monai.bundle import ConfigParser, ConfigWorkflow

from .config import references

__all__ = ["closure", "config_closure", "given_rows", "running"]

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
        found[name] = _without_observers(_find(config, name))
        todo.extend(references(found[name]))
    return dict(sorted(found.items()))


def _find(config: Any, name: str) -> Any:
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


def running() -> tuple[ConfigParser | None, ConfigWorkflow | None]:
    """Return the parser, and the workflow if there is one, on whose behalf the caller was called."""
    parser = None
    for frame in _frames():
        candidate = frame.f_locals.get("self")
        if parser is None and isinstance(candidate, ConfigParser):
            parser = candidate
        if isinstance(candidate, ConfigWorkflow):
            return parser, candidate
    return parser, None


def given_rows() -> dict[str, Any] | None:
    """Return the rows that a program put in place of the bundle's own data, or ``None``.

    MONAI Label's app replaces ``train::dataset::data`` and ``validate::dataset::data`` by lists of images and labels
    and knows of no further data. For use inside a config, as ``given`` of
    :func:`vmfseg.data.prepare_experiment`: so nothing else is learnt from or judged by.

    Returns:
        ``labeled`` and ``validation``, lists of dictionaries; ``labels``, class names by value.
    """
    parser, _ = running()
    config = parser.config if parser is not None else {}
    labeled = _entry(config, "train", "dataset", "data")
    if not isinstance(labeled, list):
        return None
    validation = _entry(config, "validate", "dataset", "data")
    names = _entry(config, "_meta_", "network_data_format", "outputs", "pred", "channel_def") or {}
    classes = range(int(_entry(config, "num_classes") or len(names)))
    return {
        "labeled": labeled,
        "validation": validation if isinstance(validation, list) else [],
        "labels": {value: str(names.get(str(value), f"class {value}" if value else "background")) for value in classes},
    }


def _entry(config: Any, *path: str) -> Any:
    for key in path:
        config = config.get(key) if isinstance(config, dict) else None
    return config


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back
