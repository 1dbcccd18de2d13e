# SPDX-License-Identifier: Apache-2.0
"""Execute one run: a bundle command in a process of its own, watched, with its CPU seconds and its error written down.

In the folder of a run lie ``run.json`` (what it is, see :mod:`vmfseg.studies.plan`), ``overrides.json``, ``log.txt``,
``attempt.json`` (rewritten every few seconds while it runs) and in the end ``result.json``::

    {"format": "vmfseg-result-1", "state": "done", "metrics_sha256": "...", "cpu_seconds": 45.1, "seconds": 50.2,
     "peak_memory_mb": 812, "attempts": 1, "error": null}

An attempt that was killed with its machine leaves no result; the next one goes on from the last checkpoint, and the CPU
seconds of both are added up.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vmfseg.utils import VmfError, read_json, sha256_file, write_json
from vmfseg.utils.errors import find_vmf_error
from vmfseg.utils.manifest import library_versions, nnunet_versions

__all__ = [
    "ATTEMPT",
    "RESULT",
    "Execution",
    "execute",
    "failed_start",
    "forget_failure",
    "read_result",
    "train_command",
]

RESULT, ATTEMPT = "result.json", "attempt.json"
_FORMAT = "vmfseg-result-1"
_BEAT_SECONDS = 5.0
_TAIL_BYTES = 20_000
_INTERRUPTED = 130
_PATIENCE_SECONDS = 120.0
#: Asks Linux to kill the run when the process that started it ends, however that ends, and becomes the run. The signals
#: by which schedulers announce a time limit are for the process that started it.
_LAUNCHER = (
    "import ctypes, os, signal, sys\n"
    "for name in (signal.SIGUSR1, signal.SIGUSR2): signal.signal(name, signal.SIG_IGN)\n"
    "try: ctypes.CDLL(None).prctl(1, 9)\n"
    "except (OSError, AttributeError): pass\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(130)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class Execution:
    """A run that is being executed in a process of its own; it ends with the process that started it.

    Args:
        folder: of the run, with ``run.json`` and ``overrides.json``.
        cpus: threads.
        environment: what is added to the environment of the process.

    Raises:
        VmfError: VMF378 if the libraries here are others than those the run was planned with.
    """

    def __init__(self, folder: Path, cpus: int = 1, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        note = read_json(folder / "run.json")
        _check_versions(note["decides"]["versions"])
        self._before = forget_failure(folder)
        self._log = folder / "log.txt"
        self._offset = self._log.stat().st_size if self._log.is_file() else 0
        self._start, self._next_beat = time.monotonic(), 0.0
        threads = {name: str(cpus) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and command
                [sys.executable, "-S", "-c", _LAUNCHER, str(os.getpid()), *train_command(note, folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **threads, **(environment or {}), "PYTHONUNBUFFERED": "1"},
            )

    def poll(self) -> dict[str, Any] | None:
        """Return the result if the run has ended, else ``None``."""
        number, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if number == 0:
            self._beat()
            return None
        self._process.returncode = code = os.waitstatus_to_exitcode(status)
        spent = {
            "cpu_seconds": round(self._before["cpu_seconds"] + usage.ru_utime + usage.ru_stime, 2),
            "seconds": round(self._before["seconds"] + time.monotonic() - self._start, 2),
            "peak_memory_mb": round(usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)),
            "attempts": self._before["attempts"] + 1,
        }
        if code == _INTERRUPTED:  # by a scheduler or a user: no failure, the next attempt goes on
            write_json(self.folder / ATTEMPT, {**spent, "alive": False})
            return {"state": "failed", **spent, "error": _interrupted(self.folder).as_dict()}
        return _write_result(self.folder, _outcome(self.folder, code, self._tail()), spent)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of this attempt so far; 0 where the system does not say."""
        try:
            text = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii")
            fields = text.rpartition(")")[2].split()
            return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")  # its own, its dead children's
        except (OSError, ValueError):
            return 0.0

    def stop(self) -> None:
        """End the run now; it goes on from its last checkpoint the next time."""
        if self._process.poll() is None:
            self._beat(ends=True)
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _tail(self) -> str:
        with self._log.open("rb") as stream:
            stream.seek(max(self._offset, self._log.stat().st_size - _TAIL_BYTES))
            return stream.read().decode("utf-8", "replace")

    def _beat(self, ends: bool = False) -> None:
        elapsed = time.monotonic() - self._start
        if elapsed < self._next_beat and not ends:
            return
        self._next_beat = elapsed + _BEAT_SECONDS
        note = {
            "cpu_seconds": round(self._before["cpu_seconds"] + self.cpu_seconds(), 2),
            "seconds": round(self._before["seconds"] + elapsed, 2),
            "attempts": self._before["attempts"] + 1,
            "host": platform.node(),
            "alive": not ends,
        }
        try:
            write_json(self.folder / ATTEMPT, note)
        except VmfError:  # a full disk: the run itself will say so
            return


def execute(folder: Path, cpus: int = 1) -> dict[str, Any]:
    """Execute a run to its end and return its result. What cannot even start is a failed run too.

    If an attempt on a node that died has not ended yet, this waits for it.
    """
    patience = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            execution = Execution(folder, cpus)
        except VmfError as error:
            return failed_start(folder, error)
        try:
            while (result := execution.poll()) is None:
                time.sleep(0.1)
        finally:
            execution.stop()
        occupied = (result["error"] or {}).get("code") == "VMF504"
        if not occupied or time.monotonic() > patience:
            return result
        time.sleep(2)


def failed_start(folder: Path, error: VmfError) -> dict[str, Any]:
    """Write down and return the result of a run that could not even start."""
    return _write_result(folder, error, _earlier(folder))


def forget_failure(folder: Path) -> dict[str, Any]:
    """Remove the result of a run that failed and is to be tried again, and return what its attempts have cost."""
    spent, known = _earlier(folder), read_result(folder)
    if (folder / RESULT).exists() and (known is None or known["state"] == "failed"):
        write_json(folder / ATTEMPT, {**spent, "alive": False})
        (folder / RESULT).unlink(missing_ok=True)
    return spent


def train_command(note: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the bundle command of a run: ``vmfseg train`` with its overrides and its folder."""
    flags = ["--resume", *(["--paper"] if note["paper"] else []), *(["--trust"] if note["trust"] else [])]
    options = ["--config", str(folder / "overrides.json"), "-o", str(folder), *flags]
    return [sys.executable, "-m", "vmfseg.cli.main", "train", note["bundle"], *options]


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return the result of a run, ``None`` if it has none or if its figures are not those that it names."""
    try:
        result = read_json(folder / RESULT)
        if result["format"] != _FORMAT or result["state"] not in ("done", "failed"):
            return None
        if result["state"] == "done" and sha256_file(folder / "metrics.json") != result["metrics_sha256"]:
            return None
    except (VmfError, KeyError, TypeError, OSError):
        return None
    return dict(result)


def _write_result(folder: Path, error: VmfError | None, spent: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {"format": _FORMAT, "state": "done" if error is None else "failed"}
    if error is None:
        result["metrics_sha256"] = sha256_file(folder / "metrics.json")
    result |= {**spent, "error": None if error is None else error.as_dict()}
    try:
        write_json(folder / RESULT, result)
    except VmfError as problem:  # a full disk: the result stands in the driver's table at least
        result |= {"state": "failed", "error": (error or problem).as_dict()}
    return result


def _outcome(folder: Path, code: int, tail: str) -> VmfError | None:
    """Return why a run has no figures, or ``None`` if it has."""
    if code == 0 and (folder / "metrics.json").is_file():
        return None
    last = tail[max(0, tail.rfind("error VMF")) :]
    named = find_vmf_error(RuntimeError(last)) if code > 0 else None
    if named is not None:
        return named
    log = str(folder / "log.txt")
    if code < 0:
        name = signal.Signals(-code).name
        likely = "the system ran out of memory, or somebody ended it" if name == "SIGKILL" else "the process crashed"
        fix = "free memory or raise resources, memory_gb, in the study; then --retry"
        return VmfError("VMF377", subject=log, rule="the run was killed", found=f"{name}: {likely}", fix=fix)
    lines = [line for line in tail.splitlines() if line.strip()]
    found = f"exit code {code}: {lines[-1].strip()}" if lines else f"exit code {code}"
    return VmfError("VMF376", subject=log, rule="the run ended without figures", found=found, fix="read the log")


def _interrupted(folder: Path) -> VmfError:
    fix = "run the study again: it goes on from the last checkpoint"
    return VmfError("VMF377", subject=str(folder / "log.txt"), rule="the run was interrupted", fix=fix)


def _earlier(folder: Path) -> dict[str, Any]:
    """Return what earlier attempts cost."""
    spent: dict[str, Any] = {"cpu_seconds": 0.0, "seconds": 0.0, "attempts": 0}
    for name in (RESULT, ATTEMPT):
        try:
            note = read_json(folder / name)
            found = {key: type(value)(note[key]) for key, value in spent.items()}
        except (VmfError, KeyError, TypeError, ValueError):
            continue
        spent = max(spent, found, key=lambda one: float(one["cpu_seconds"]))
    return spent


def _check_versions(planned: Mapping[str, str]) -> None:
    here = {**library_versions(), **(nnunet_versions() if "nnunetv2" in planned else {})}
    other = [
        f"{name} {here.get(name)} instead of {version}"
        for name, version in planned.items()
        if here.get(name) != version
    ]
    if other:
        raise VmfError(
            "VMF378",
            subject=platform.node(),
            rule="a run needs the versions that its study was planned with",
            found=", ".join(other),
            fix="install the same versions on every node, or plan the study again",
        )
