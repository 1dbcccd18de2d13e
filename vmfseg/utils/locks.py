# SPDX-License-Identifier: Apache-2.0
"""One process at a time in an output folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vmfseg.utils.errors import VmfError
from vmfseg.utils.io import refusing

__all__ = ["locked_folder"]


@contextmanager
def locked_folder(folder: Path, option: str = "--output_dir") -> Iterator[None]:
    """Make an output folder and hold it: one process at a time works in it.

    The lock goes with the process, however that ends; its file goes with the work, or with that of the next process.

    Args:
        folder: of a run or of a study.
        option: by which the user can choose another one.

    Raises:
        VmfError: VMF501 if its disk is full, VMF502 if it cannot be written, VMF504 if another process works in it.
    """
    stream = _take(folder, option)  # errors of the work itself are none of this lock's
    with stream:
        try:
            with refusing(folder):  # here, before hours of work
                stream.truncate(0)
                stream.write(str(os.getpid()).encode())
            yield
        finally:
            with suppress(OSError):
                (folder / ".lock").unlink()


def _take(folder: Path, option: str) -> Any:
    """Return the open lock file, held."""
    while True:
        with refusing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            stream = open(folder / ".lock", "ab+", buffering=0)  # noqa: SIM115 - closed by the caller
        try:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # not a POSIX system: two runs in one folder are then up to the user
            return stream
        except BlockingIOError as error:
            stream.seek(0)
            found = f"process {stream.read().decode().strip() or 'unknown'}"
            stream.close()
            rule, fix = "another run works in this output folder", f"wait for it, or pass {option}"
            raise VmfError("VMF504", subject=str(folder), rule=rule, found=found, fix=fix) from error
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(stream.fileno()), os.stat(folder / ".lock")):
                return stream
        stream.close()  # its owner has just ended and removed it: the next one is ours
