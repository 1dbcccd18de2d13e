# SPDX-License-Identifier: Apache-2.0
"""The quick half of the benchmark of reliability, as anybody runs it: no gate may open."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_no_gate_is_open():
    command = [sys.executable, "-m", "benchmarks.relbench", "--quick"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=1800, check=False)
    last = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"vmfseg: score [\d.]+ \(\d+ of \d+ points\); gates: ([a-z0-9 ]+ 0(, )?)+", last), last
    assert float(re.search(r"score ([\d.]+)", last)[1]) >= 90
