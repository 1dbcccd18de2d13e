# SPDX-License-Identifier: Apache-2.0
"""The config that is being evaluated right now, for functions that a config calls by ``$``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from monai.bundle import ConfigParser, ConfigWorkflow

__all__ = ["given_rows", "running"]


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
