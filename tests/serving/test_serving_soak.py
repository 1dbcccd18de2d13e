# SPDX-License-Identifier: Apache-2.0
"""Clients that upload, segment, label, delete and hang up while the server is killed: nothing acknowledged is lost."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from soak import growth, soak


@pytest.mark.slow
def test_a_killed_server_loses_nothing_that_it_acknowledged(tmp_path):
    tally = soak(tmp_path, seconds=40, clients=8, kills=1)
    assert tally.acknowledged > 8
    assert tally.lost == []
    assert tally.failures() == 0, tally.status
    # what a busy machine adds to any answer is no fault of the server
    assert statistics.median(tally.pulse) < 0.2 + statistics.median(tally.pauses)
    assert growth(tally) < 60
