# SPDX-License-Identifier: Apache-2.0
"""Wait policy of OpenMP's threads, set before torch is imported."""

from __future__ import annotations

import os
import sys
import time

__all__ = ["SPIN_COUNT", "calm_threads", "is_busy", "restart_calmly"]

#: Turns that a waiting thread spins before it sleeps, on a busy machine. The library's default, about a millisecond, is
#: faster where a process has the cores to itself; elsewhere it takes the time that the awaited thread would need.
SPIN_COUNT = 2000
_CHOICES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def is_busy(samples: int = 5) -> bool:
    """Tell whether other processes want the cores right now: at least one is runnable, on average over 40 ms."""
    others = 0
    try:
        for number in range(samples):
            time.sleep(0.01 if number else 0)
            with open("/proc/loadavg", encoding="ascii") as stream:
                others += int(stream.read().split()[3].split("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return False
    return others >= samples


def calm_threads(busy: bool | None = None) -> bool:
    """Let OpenMP's threads sleep after a short spin on a busy machine; return whether anything was set.

    A user's own choice stays. Results do not depend on it. The library reads it when torch is imported, so call this
    first.

    Args:
        busy: whether other processes want the cores; by default :func:`is_busy` looks.
    """
    if any(name in os.environ for name in _CHOICES) or not (is_busy() if busy is None else busy):
        return False
    os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
    return True


def restart_calmly(busy: bool | None = None) -> None:
    """Start the running command again with :func:`calm_threads`, where torch was imported before it could be set.

    MONAI's own command imports torch before it reads a config. The process is replaced, once, before it has done any
    work; on an idle machine, with one thread, under another launcher or on other systems than Linux nothing happens.

    Args:
        busy: see :func:`calm_threads`.
    """
    alone = os.environ.get("OMP_NUM_THREADS") == "1" or (os.cpu_count() or 1) == 1 or "LOCAL_RANK" in os.environ
    if sys.platform == "linux" and not alone and calm_threads(busy):
        sys.stdout.write("threads: starting again with GOMP_SPINCOUNT set (OMP_WAIT_POLICY overrides it)\n")
        sys.stdout.flush()
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the same command
