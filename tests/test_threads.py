# SPDX-License-Identifier: Apache-2.0
"""OpenMP's wait policy: set once before torch, never against the user's choice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vmfseg.threads import is_busy

SCRIPT = """
import os, sys
from vmfseg.threads import calm_threads, restart_calmly
{call}
print(os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules, *sys.argv[1:])
"""


def run(call: str, **environment: str) -> list[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_", "LOCAL_RANK"))}
    command = [sys.executable, "-c", SCRIPT.format(call=call), "one", "two words"]
    done = subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux" or (os.cpu_count() or 1) < 2, reason="needs Linux and two cores")
def test_a_command_starts_again_once_with_its_own_words():
    lines = run("restart_calmly(busy=True)")
    assert [line.startswith("threads: starting again") for line in lines] == [True, False]
    assert lines[-1] == "2000 False one two words"


@pytest.mark.parametrize(
    "environment",
    [{"OMP_NUM_THREADS": "1"}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"KMP_BLOCKTIME": "0"}, {"LOCAL_RANK": "0"}],
)
def test_nothing_starts_again_where_it_must_not(environment):
    assert run("restart_calmly(busy=True)", **environment) == ["None False one two words"]


def test_the_users_own_spin_count_stays():
    assert run("calm_threads(busy=True)", GOMP_SPINCOUNT="7") == ["7 False one two words"]


def test_an_idle_machine_keeps_the_librarys_default():
    assert run("restart_calmly(busy=False)") == ["None False one two words"]


@pytest.mark.skipif(not os.path.exists("/proc/loadavg"), reason="needs Linux")
def test_other_processes_make_a_machine_busy():
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        assert any(is_busy() for _ in range(200))
    finally:
        for process in others:
            process.kill()
