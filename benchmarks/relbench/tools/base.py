# SPDX-License-Identifier: Apache-2.0
"""What a tool must offer to be measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.relbench.process import Call, Outcome, Worker

__all__ = ["Job", "Tool", "Wanted"]


@dataclass(frozen=True)
class Job:
    """What a tool is asked to do, in the folder of the case; results go to ``out`` there.

    Attributes:
        verb: ``segment``, ``verify``, ``train``, ``check``, ``unpack``, ...
        words: arguments of vmfseg's command.
        plain: the same for plain MONAI; ``None`` if it has no such thing.
        limits: fields of :class:`~benchmarks.relbench.process.Call`.
    """

    verb: str
    words: tuple[str, ...] = ()
    plain: Mapping[str, Any] | None = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)

    def having(self, *words: str, **plain: Any) -> Job:
        """Return the job with more words."""
        both = None if self.plain is None else {**self.plain, **plain}
        return replace(self, words=(*self.words, *words), plain=both)


@dataclass(frozen=True)
class Wanted:
    """What a good message holds.

    Attributes:
        cause: a pattern of the true cause.
        file: a pattern of the file, key or option that is named.
        code: a pattern of vmfseg's code.
        exit: vmfseg's exit code.
        noted: the input is accepted with a notice, so that no cure is needed.
    """

    cause: str
    file: str
    code: str = r"VMF\d\d\d"
    exit: int = 3
    noted: bool = False


class Tool:
    """A tool and the process that runs it.

    Args:
        home: folder of the models, read only.
        logs: folder for what it prints.
    """

    name = ""

    def __init__(self, home: Path, logs: Path) -> None:
        self.home, self.logs = home, logs
        self.worker = Worker(logs)
        #: Results of undisturbed runs, by what was run.
        self.memory: dict[Any, Any] = {}

    def call(self, job: Job, place: Path) -> Call | None:
        """Return what a worker has to call, or ``None`` without a counterpart."""
        raise NotImplementedError

    def parts(self, outcome: Outcome, wanted: Wanted) -> dict[str, bool]:
        """Return which parts of a good message came."""
        raise NotImplementedError

    def digest(self, job: Job, place: Path) -> str:
        """Return a hash of the result of a job, empty without a result."""
        raise NotImplementedError

    def again(self, job: Job) -> Job:
        """Return the job of a second try in the same folder."""
        return job

    def whole(self, path: Path) -> bool:
        """Whether a result is complete and can be used."""
        raise NotImplementedError

    def run(self, job: Job, place: Path) -> Outcome | None:
        """Do a job to its end."""
        call = self.call(job, place)
        return None if call is None else self.worker.run(call)

    def start(self, job: Job, place: Path) -> Worker | None:
        """Begin a job in a process of its own, which may be killed."""
        call = self.call(job, place)
        if call is None:
            return None
        worker = Worker(self.logs)
        worker.begin(call)
        return worker

    def remembered(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what was made before under a key."""
        if key not in self.memory:
            self.memory[key] = make()
        return self.memory[key]

    def close(self) -> None:
        """End the processes."""
        self.worker.close()
        if "server" in self.memory:
            self.memory["server"].close()

    def _call(self, function: Callable[..., None], job: Job, place: Path, *arguments: Any) -> Call:
        environment = {"TMPDIR": place / "tmp", "VMFSEG_CACHE": place / "tmp", "COLUMNS": "300", "HOME": place / "tmp"}
        os.makedirs(place / "tmp", exist_ok=True)
        os.chmod(place / "tmp", 0o777)  # noqa: S103 - some calls run as another user
        given = dict(job.limits.get("environment", ()))
        both = {key: str(value) for key, value in {**environment, **given}.items()}
        more = {key: value for key, value in job.limits.items() if key != "environment"}
        return Call(function, arguments, place, environment=tuple(both.items()), **more)
