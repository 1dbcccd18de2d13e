# SPDX-License-Identifier: Apache-2.0
"""Run command lines in processes of their own, forked from one that has imported everything: each saves the imports."""

from __future__ import annotations

import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["fire", "monai.bundle", "monai.engines", "monai.handlers", "torch.utils.tensorboard", "vmfseg.bundle",
     "vmfseg.cli.train_command", "vmfseg.engines", "vmfseg.phantom"]
)  # fmt: skip
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ForkedRun:
    """``python -m module words`` in a session of its own, with one thread.

    Args:
        module: what runs as ``__main__``.
        words: its arguments.
        folder: where it runs.
        environment: what is added to the environment.
        file_limit: the largest file that it may write, in bytes.

    Attributes:
        lines: what it prints, line by line, as it comes.
        pid: of the process and of its group.
    """

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        file_limit: int | None = None,
    ) -> None:
        before = {name: os.environ.get(name) for name in _ONE_THREAD}
        os.environ.update(_ONE_THREAD)  # the server reads them when it imports torch
        forkserver.ensure_running()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        reader, writer = _CONTEXT.Pipe(duplex=False)
        self._errors = tempfile.NamedTemporaryFile(suffix=".txt")  # noqa: SIM115 - lives as long as the run
        place = Path(self._errors.name)
        values = {**os.environ, **_ONE_THREAD, **(environment or {})}
        arguments = (writer, place, module, list(words), folder, values, file_limit)
        self._process = _CONTEXT.Process(target=_child, args=arguments)
        self._process.start()
        writer.close()
        self.lines: Any = os.fdopen(os.dup(reader.fileno()), "r")
        reader.close()
        self.pid = int(self._process.pid or 0)

    def signal(self, number: int) -> None:
        """Send a signal; one that kills goes to the process's workers too."""
        (os.killpg if number == signal.SIGKILL else os.kill)(self.pid, number)

    def wait(self, timeout: float | None = 600) -> subprocess.CompletedProcess[str]:
        """Read to the end and return what was printed since, and how it ended.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        out = "" if timeout is not None and timeout < 100 else self.lines.read()
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        out += self.lines.read()
        self.lines.close()
        return subprocess.CompletedProcess([], self._process.exitcode, out, Path(self._errors.name).read_text())


def _child(
    writer: Any,
    errors: Path,
    module: str,
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    file_limit: int | None,
) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(writer.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY), 2)
    writer.close()
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    sys.argv = [module, *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception:
        sys.excepthook(*sys.exc_info())  # as the interpreter does
        sys.exit(1)
