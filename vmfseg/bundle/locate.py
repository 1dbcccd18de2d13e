# SPDX-License-Identifier: Apache-2.0
"""Where a bundle lies. MONAI evaluates a config without telling it, and the current folder may be any."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from monai.bundle import ConfigWorkflow

from vmfseg.utils import VmfError

__all__ = ["find_root"]


def find_root(name: str) -> str:
    """Return the folder of bundle ``name``.

    Looked at in this order: the config file that a MONAI workflow is evaluating right now, the import path (where
    MONAI puts a bundle it runs), the current folder, and ``bundles/<name>`` below it. A folder counts when its
    ``configs/metadata.json`` carries the name. Pass ``--bundle_root`` to any config to say it yourself.

    Args:
        name: as in ``configs/metadata.json``.

    Raises:
        VmfError: VMF302 if none of them is the bundle.
    """
    for folder in _candidates(name):
        note = folder / "configs" / "metadata.json"
        if note.is_file() and _named(note, name):
            return os.path.relpath(folder) if folder.resolve().is_relative_to(Path.cwd()) else str(folder.resolve())
    raise VmfError(
        "VMF302",
        subject=f"bundle {name}",
        rule="the folder of the bundle cannot be found from here",
        found=f"current folder {Path.cwd()}",
        fix="pass --bundle_root with the folder that holds configs and models",
    )


def _candidates(name: str) -> Iterator[Path]:
    frame = sys._getframe(2)
    while frame is not None:
        workflow = frame.f_locals.get("self")
        if isinstance(workflow, ConfigWorkflow):
            yield Path(workflow.config_root_path).parent
        if frame.f_back is None:
            break
        frame = frame.f_back
    yield from (Path(entry) for entry in sys.path if entry)
    yield Path.cwd()
    yield Path.cwd() / "bundles" / name


def _named(note: Path, name: str) -> bool:
    try:
        metadata = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(metadata, dict) and metadata.get("bundle") == name
