# SPDX-License-Identifier: Apache-2.0
"""What an engine is: a way to execute a list of runs. Nothing else of a study knows about machines."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from vmfseg.studies.study_parts import Resources
from vmfseg.utils import check_choice

__all__ = ["ENGINES", "Engine", "make_engine"]

#: Module and class of each engine, by the word after ``--on``.
ENGINES = {
    "local": ("local_engine", "LocalEngine"),
    "ray": ("ray_engine", "RayEngine"),
    "slurm": ("slurm_engine", "SlurmEngine"),
}


class Engine(Protocol):
    """Executes runs, as many at a time as it has room for.

    Built as ``Engine(resources, jobs, options)``: it refuses there and then if its package or its cluster is missing.
    """

    def submit(self, folders: Sequence[Path]) -> None:
        """Take prepared folders of runs to execute, in this order."""
        ...

    def poll(self) -> dict[Path, dict[str, Any]]:
        """Do what is due and return the results that came in since the last call, by folder."""
        ...

    def busy(self) -> bool:
        """Tell whether a result is still to come."""
        ...

    def stop(self) -> None:
        """End what runs here; a run that was ended goes on from its last checkpoint the next time."""
        ...


def make_engine(name: str, resources: Resources, jobs: int = 0, options: Mapping[str, str] | None = None) -> Engine:
    """Return an engine by its name.

    Args:
        name: one of :data:`ENGINES`.
        resources: of one run.
        jobs: runs at the same time; 0 for as many as there is room for.
        options: of the engine, by name.

    Raises:
        VmfError: VMF530 if its package is not installed, VMF379 if its cluster cannot be used.
    """
    check_choice("--on", name, ENGINES)
    module, kind = ENGINES[name]
    found = getattr(importlib.import_module(f"vmfseg.studies.{module}"), kind)
    engine: Engine = found(resources, jobs, dict(options or {}))
    return engine
