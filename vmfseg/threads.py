# SPDX-License-Identifier: Apache-2.0
"""Wait policy of OpenMP's threads, set before torch is imported."""

from __future__ import annotations

import os
import sys

__all__ = ["SPIN_COUNT", "calm_threads", "restart_calmly"]

#: Turns that a waiting thread spins before it sleeps. The library's default, about a millisecond, is right where a
#: process has the cores to itself; beside other processes it takes the time that the awaited thread would need.
SPIN_COUNT = 2000
_CHOICES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def calm_threads() -> bool:
    """Let OpenMP's threads sleep after a short spin, unless the user has chosen; return whether anything was set.

    The library reads it when torch is imported, so call this first.
    """
    if any(name in os.environ for name in _CHOICES):
        return False
    os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
    return True


def restart_calmly() -> None:
    """Start the running command again with :func:`calm_threads`, where torch was imported before it could be set.

    MONAI's own command imports torch before it reads a config. The process is replaced, once, before it has done any
    work; with one thread, under another launcher or on other systems than Linux nothing happens.
    """
    alone = os.environ.get("OMP_NUM_THREADS") == "1" or (os.cpu_count() or 1) == 1 or "LOCAL_RANK" in os.environ
    if sys.platform == "linux" and not alone and calm_threads():
        sys.stdout.write("threads: starting again with GOMP_SPINCOUNT set (OMP_WAIT_POLICY overrides it)\n")
        sys.stdout.flush()
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the same command
