# SPDX-License-Identifier: Apache-2.0
"""200 requests from 8 clients: nothing is lost, the pulse stays, the memory does not grow."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from serving import load, make_studies, small_bundle


@pytest.mark.slow
def test_many_clients_at_once(tmp_path):
    figures = load(small_bundle(tmp_path), make_studies(tmp_path / "studies"), 200, 8)
    half = figures.memory[len(figures.memory) // 2 :]
    grown = (half[-1] - half[0]) / 1e6
    sys.stdout.write(
        f"{figures.answered} answers, /health at most {max(figures.pulse):.3f} s, of which the machine "
        f"{max(figures.pauses):.3f} s, "
        f"{grown:.1f} MB more over the second half\n"
    )
    assert figures.answered == 200
    # what a busy machine adds to any answer is no fault of the server
    assert max(figures.pulse) < 0.5 + 2 * max(figures.pauses)
    assert grown < 30
