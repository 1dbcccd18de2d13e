# SPDX-License-Identifier: Apache-2.0
"""Processes that run what is measured: each takes many calls in turn, and can be watched, limited and killed."""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

__all__ = ["HANG", "Call", "Outcome", "Worker"]

#: A call that takes longer hangs, in seconds of a machine that does nothing else.
HANG = 60.0
_MEMORY = 6 << 30


@dataclass(frozen=True)
class Call:
    """A function to be called in a worker.

    Attributes:
        function: of a module, since it goes through a pipe.
        arguments: plain values.
        folder: where it runs.
        file_limit: the largest file that it may write, in bytes.
        memory: how much its address space may grow, in bytes.
        user: whose rights it has; root may do everything.
        environment: what is added to the environment.
    """

    function: Callable[..., None]
    arguments: tuple[Any, ...]
    folder: Path
    file_limit: int | None = None
    memory: int = _MEMORY
    user: int | None = None
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    Attributes:
        code: exit code; ``None`` if the process died of a signal or was killed.
        out: standard output.
        err: standard error.
        seconds: how long it took.
        hung: whether it was killed because it took longer than :data:`HANG`.
        died: the signal that ended the process.
    """

    code: int | None
    out: str
    err: str
    seconds: float
    hung: bool = False
    died: int = 0

    @property
    def text(self) -> str:
        """Everything that was printed."""
        return self.out + self.err


class Worker:
    """A child process that runs calls, one after the other, with their output in files.

    Args:
        logs: folder for the output, outside of what is measured.
    """

    def __init__(self, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._start()
        self.first = self.pid

    def _start(self) -> None:
        self._pipe, there = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._pipe.close()
                _serve(there, self._logs / f"{os.getpid()}.out", self._logs / f"{os.getpid()}.err")
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(99)
        there.close()
        self._out, self._err = (self._logs / f"{self.pid}.{end}" for end in ("out", "err"))

    def begin(self, call: Call) -> None:
        """Send a call."""
        self._out.write_bytes(b"")
        self._err.write_bytes(b"")
        self._began = time.monotonic()
        self._pipe.send(call)

    def end(self, seconds: float = HANG) -> Outcome:
        """Wait for the end of the call; a process that died is replaced."""
        code, hung, died = None, False, 0
        if self._answered(seconds):
            with suppress(EOFError, ConnectionResetError):
                code = self._pipe.recv()
        else:
            hung = True
            self.kill()
        took = time.monotonic() - self._began
        if code is None:
            died = self._bury()
        outcome = Outcome(code, self._read(self._out), self._read(self._err), took, hung, died)
        if code is None:
            self._start()
        return outcome

    def _answered(self, seconds: float) -> bool:
        """Wait for an answer for so many seconds of work or sleep; waiting for a busy processor does not count."""
        slept, last = 0.0, time.monotonic()
        start = self.worked()
        while not self._pipe.poll(0.02):
            now = time.monotonic()
            slept, last = slept + (now - last) * self._sleeps(), now
            if slept + self.worked() - start > seconds:
                return False
        return True

    def worked(self) -> float:
        """Return the processor time of the process in seconds."""
        fields = self._stat()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields else 0.0

    def _sleeps(self) -> bool:
        return self._stat()[:1] != ["R"]

    def _stat(self) -> list[str]:
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return []

    def run(self, call: Call, seconds: float = HANG) -> Outcome:
        """Send a call and wait for its end."""
        self.begin(call)
        return self.end(seconds)

    def printed(self) -> str:
        """Return the standard output so far."""
        return self._read(self._out)

    def wait_for(self, pattern: str, seconds: float = 10 * HANG) -> bool:
        """Wait until the output of the call matches a pattern; return whether it did before the call ended."""
        return self.wait_until(lambda: re.search(pattern, self.printed(), re.MULTILINE) is not None, seconds)

    def wait_until(self, condition: Callable[[], bool], seconds: float = 10 * HANG, pause: float = 0.001) -> bool:
        """Wait for a condition, asked after each pause; return whether it came before the call ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return True
            if select.select([self._pipe], [], [], pause)[0]:
                return condition()
        return False

    def signal(self, number: int) -> None:
        """Send a signal to the process alone, as a terminal's Ctrl-C or a scheduler does."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and its own workers at once."""
        for kill in (os.killpg, os.kill):  # it may not lead a group yet
            with suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process."""
        self.kill()
        self._bury()

    def _bury(self) -> int:
        self._pipe.close()
        with suppress(ChildProcessError):
            _, status = os.waitpid(self.pid, 0)
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # what it started
            return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return 0

    @staticmethod
    def _read(path: Path) -> str:
        return path.read_text(errors="replace") if path.exists() else ""


def _serve(pipe: Any, out: Path, err: Path) -> None:
    """Run calls until the pipe closes."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    former = (sys.stdout, sys.stderr)  # kept: one that is collected closes its descriptor
    # a command may put streams of its own in their place: they must not close the descriptors when they are collected
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    while former:
        try:
            call = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            os._exit(0)
        code = _perform(call)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        pipe.send(code)


def _perform(call: Call) -> int:
    with _conditions(call):
        try:
            call.function(*call.arguments)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except KeyboardInterrupt:
            traceback.print_exc()
            return 130
        except BaseException:
            traceback.print_exc()
            return 1
    return 0


@contextmanager
def _conditions(call: Call) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(dict(call.environment))
    os.chdir(call.folder)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = {resource.RLIMIT_AS: pages * resource.getpagesize() + call.memory}
    if call.file_limit is not None:
        limits[resource.RLIMIT_FSIZE] = call.file_limit
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing fails with EFBIG, as on a full disk
    old = {name: resource.getrlimit(name) for name in limits}
    for name, value in limits.items():
        resource.setrlimit(name, (value, old[name][1]))
    if call.user is not None:
        os.seteuid(call.user)
    try:
        yield
    finally:
        if call.user is not None:
            os.seteuid(0)
        for name, limit in old.items():
            resource.setrlimit(name, limit)
        os.environ.clear()
        os.environ.update(before)
        os.chdir("/")
