# SPDX-License-Identifier: Apache-2.0
"""Memory that is left, and the check of an image's size before anything is allocated for it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from vmfseg.utils.errors import VmfError

__all__ = ["MAX_VOXELS", "available_memory", "check_memory"]

#: Largest number of voxels that is believed.
MAX_VOXELS = 2**31


def available_memory() -> int | None:
    """Return the bytes that this process may still allocate, or ``None`` where the system does not tell.

    The least of: free system memory, the control group's limit, the address-space limit of the process.
    """
    limits = []
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):
        ceiling = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        limits.append(ceiling - int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii")))
    with suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
        if soft != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            limits.append(soft - pages * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(limits)) if limits else None


def check_memory(
    path: str, voxels: int, needed: int, max_voxels: int = MAX_VOXELS, cause: str = "the header declares"
) -> None:
    """Refuse a volume that is too large before anything is allocated for it.

    Args:
        path: the file.
        voxels: how many there would be.
        needed: bytes that they take.
        max_voxels: largest number of voxels that is believed.
        cause: where the size comes from, for the message.

    Raises:
        VmfError: VMF216 more voxels than ``max_voxels``, VMF512 more bytes than the machine has free.
    """
    if voxels > max_voxels:
        raise VmfError(
            "VMF216", subject=path, rule=f"an image may have at most {max_voxels} voxels", found=f"{cause} {voxels}"
        )
    free = available_memory()
    if free is not None and needed > free:
        raise VmfError(
            "VMF512", subject=path, found=f"it needs {needed / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free"
        )
