# SPDX-License-Identifier: Apache-2.0
"""What a training costs: hours, seconds of processor time, and on which processor."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events

from vmfseg.utils import VmfError, read_json, write_json

__all__ = ["CostHandler", "processor_name"]


class CostHandler:
    """Write ``cost.json`` after every epoch: ``hours``, ``cpu_seconds`` with loader processes, ``processor``.

    A resumed run adds to what was spent before. It is a file of its own, because it is never the same twice, while the
    model of equal settings is.

    Args:
        path: the file.
        resume: add to what the file says.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "cost.json"
        >>> trainer = Engine(lambda engine, batch: None)
        >>> CostHandler(path).attach(trainer)
        >>> _ = trainer.run([0], max_epochs=1)
        >>> sorted(read_json(path))
        ['cpu_seconds', 'hours', 'processor', 'threads']
    """

    def __init__(self, path: Path, resume: bool = False) -> None:
        self.path = path
        self._before = _spent(path) if resume else (0.0, 0.0)
        self._start = (time.monotonic(), _cpu_seconds())

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer."""
        engine.add_event_handler(Events.STARTED, self._begin)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._write)

    def _begin(self) -> None:
        self._start = (time.monotonic(), _cpu_seconds())

    def _write(self, engine: Any) -> None:
        if getattr(engine.state, "rank", 0):
            return
        seconds, cpu = (now - start for now, start in zip((time.monotonic(), _cpu_seconds()), self._start, strict=True))
        write_json(
            self.path,
            {
                "hours": round(self._before[0] + seconds / 3600, 4),
                "cpu_seconds": round(self._before[1] + cpu, 1),
                "processor": processor_name(),
                "threads": torch.get_num_threads(),
            },
        )


def processor_name() -> str:
    """Return the name of the processor as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not on Linux
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _cpu_seconds() -> float:
    try:
        import resource
    except ImportError:  # not on Windows
        return time.process_time()
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in usage)


def _spent(path: Path) -> tuple[float, float]:
    try:
        note = read_json(path)
        return float(note["hours"]), float(note["cpu_seconds"])
    except (VmfError, KeyError, TypeError, ValueError):
        return 0.0, 0.0
