# SPDX-License-Identifier: Apache-2.0
"""Small disks that are full or read-only: memory file systems, mounted below the folder of a case (needs root)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

__all__ = ["fill", "mount", "mount_read_only", "unmount"]


def mount(folder: Path, size: str = "2m") -> Path:
    """Mount an empty disk."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)  # noqa: S603, S607
    return folder


def mount_read_only(folder: Path) -> Path:
    """Mount an empty disk that nobody can write to."""
    mount(folder)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)  # noqa: S603, S607
    return folder


def fill(folder: Path) -> None:
    """Write until nothing fits any more."""
    with (folder / "filler").open("wb", buffering=0) as stream:
        try:
            while stream.write(b"\0" * 4096):
                pass
        except OSError:
            return


def unmount(place: Path) -> None:
    """Unmount what a case mounted."""
    for name in ("out", "disk"):
        if os.path.ismount(place / name):
            subprocess.run(["umount", "-l", str(place / name)], check=True)  # noqa: S603, S607
