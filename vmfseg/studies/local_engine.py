# SPDX-License-Identifier: Apache-2.0
"""Engine of this machine: processes, as many as cores and memory allow."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vmfseg.studies.execution import Execution, failed_start
from vmfseg.studies.study_parts import Resources
from vmfseg.utils import VmfError
from vmfseg.utils.machine import usable_cores
from vmfseg.utils.memory import available_memory

__all__ = ["LocalEngine", "room"]

_GB = 1e9


class LocalEngine:
    """Execute runs in processes of this machine. See :class:`vmfseg.studies.engine.Engine`.

    A run starts when a core is free and as much memory as ``resources`` ask for, or when nothing else runs. Runs end
    with this process, also if it is killed.

    Args:
        resources: of one run.
        jobs: runs at the same time; 0 for :func:`room`.
        options: none.
    """

    def __init__(self, resources: Resources, jobs: int = 0, options: Mapping[str, str] | None = None) -> None:
        self.resources, self.jobs = resources, jobs or room(resources)
        self._waiting: deque[Path] = deque()
        self._running: list[Execution] = []
        self._slots: dict[Path, int] = {}

    def submit(self, folders: Sequence[Path]) -> None:
        """Take runs to execute."""
        self._waiting.extend(folders)

    def poll(self) -> dict[Path, dict[str, Any]]:
        """Start what there is room for and return the results that came in."""
        results = {execution.folder: execution.poll() for execution in self._running}
        ended = {folder: result for folder, result in results.items() if result is not None}
        self._running = [execution for execution in self._running if execution.folder not in ended]
        for folder in ended:
            self._slots.pop(folder, None)
        while self._waiting and len(self._running) < self.jobs and self._fits():
            folder = self._waiting.popleft()
            try:
                self._running.append(Execution(folder, self.resources.cpus, self._devices(folder)))
            except VmfError as error:
                ended[folder] = failed_start(folder, error)
        return ended

    def busy(self) -> bool:
        """Tell whether a run waits or runs."""
        return bool(self._waiting or self._running)

    def stop(self) -> None:
        """End the processes."""
        for execution in self._running:
            execution.stop()
        self._running.clear()
        self._waiting.clear()

    def _devices(self, folder: Path) -> dict[str, str]:
        """Return the environment that gives a run GPUs of its own, if it asks for some and there are some."""
        share, present = self.resources.gpus, _gpus()
        if not share or not present:
            return {}
        self._slots[folder] = slot = min({*range(self.jobs)} - {*self._slots.values()})
        first = int(slot * share) % len(present)
        return {"CUDA_VISIBLE_DEVICES": ",".join(present[first : first + math.ceil(share)])}

    def _fits(self) -> bool:
        free = available_memory()
        return not self._running or free is None or free >= self.resources.memory_gb * _GB


def room(resources: Resources) -> int:
    """Return how many runs this machine takes at the same time: by its cores, its free memory and its GPUs."""
    cores = usable_cores()
    free = available_memory()
    by_memory = cores if free is None else int(free // (resources.memory_gb * _GB))
    present = len(_gpus())
    by_gpus = int(present / resources.gpus) if resources.gpus and present else cores
    return max(1, min(cores // resources.cpus, by_memory, by_gpus))


def _gpus() -> list[str]:
    """Return the numbers of the GPUs that this process may use."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    return [str(number) for number in found] if chosen is None else chosen.split(",")[: len(found)]
