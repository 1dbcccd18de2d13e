# SPDX-License-Identifier: Apache-2.0
"""Signals and output streams of the command line: no interruption, pipe or terminal ends in a traceback.

Imported first by :mod:`vmfseg.cli.main`, and imports nothing that takes time.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import Any, NoReturn

__all__ = ["interruptible", "launch", "leave_when_interrupted", "safe_streams"]


def leave_when_interrupted() -> None:
    """Let Ctrl-C and SIGTERM end the process at once with exit code 130, while modules are imported.

    Nothing has been written by then. An exception could not do it: some libraries catch it while they are imported.
    """
    _on_signals(lambda _number, _frame: _leave())


def launch() -> None:
    """Run the program ``vmfseg``."""
    leave_when_interrupted()
    from vmfseg.cli.main import main

    main()


def interruptible() -> None:
    """Let Ctrl-C and SIGTERM (schedulers, containers) end a command as ``KeyboardInterrupt`` does.

    While a module is imported, the process is left at once, see :func:`leave_when_interrupted`.
    """

    def interrupt(_number: int, frame: Any) -> NoReturn:
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                _leave()
            frame = frame.f_back
        raise KeyboardInterrupt

    _on_signals(interrupt)


def safe_streams() -> None:
    """Make standard output and error take any text, and survive a reader that goes away.

    A character that the encoding lacks is escaped. When the reader of a pipe has seen enough (``| head -1``), the rest
    is dropped and the command goes on: its files matter more than its lines.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            number = stream.fileno()
        except (AttributeError, OSError, ValueError):
            continue  # closed, or replaced by a test or a notebook
        stream.flush()
        raw = io.BufferedWriter(_Pipe(number, "wb", closefd=False))
        lines = stream.line_buffering or name == "stderr"
        setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, "backslashreplace", line_buffering=lines))


class _Pipe(io.FileIO):
    """A file whose writes are dropped once nobody reads them."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if error.errno == errno.EPIPE:
                return len(data)
            from vmfseg.utils.errors import VmfError

            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise VmfError(
                "VMF501" if full else "VMF502",
                subject="standard output" if self.fileno() == 1 else "standard error",
                rule="the disk is full" if full else "the output cannot be written",
                found=error.strerror or type(error).__name__,
                fix="send the output elsewhere; files that were written are complete",
            ) from error


def _leave() -> NoReturn:
    os.write(2, b"interrupted\n")
    os._exit(130)


def _on_signals(action: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, and shells in the background
                signal.signal(number, action)
        except ValueError:  # not the main thread
            return
