# SPDX-License-Identifier: Apache-2.0
"""Fuzzed files: each is read as an oracle reads it, or refused with a code, a cause and a cure; nothing else happens.

10 000 cases in the slow tests, a hundredth of them in the others. ``VMFSEG_FUZZ=50000`` runs more.
"""

from __future__ import annotations

import collections
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from fuzz_cases import KINDS
from fuzz_worker import Reader
from hypothesis import HealthCheck, Phase, given, settings

ALL = int(os.environ.get("VMFSEG_FUZZ", "10000"))


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    """Return a process that reads files."""
    process = Reader()
    yield process
    process.close()


def fuzz(reader: Reader, kind: str, cases: int) -> collections.Counter[str]:
    strategy, share = KINDS[kind]
    seen: collections.Counter[str] = collections.Counter()

    @settings(
        max_examples=max(1, cases * share // 100),
        deadline=None,
        derandomize=True,
        report_multiple_bugs=False,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def check(case: tuple[Any, ...]) -> None:
        seen[reader.read(case)] += 1

    check()
    sys.stdout.write(f"{kind}: {sum(seen.values())} cases, {dict(seen.most_common())}\n")
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_fuzzed_files_is_read_or_refused(reader, kind):
    assert len(fuzz(reader, kind, 100)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_fuzzed_files_are_read_or_refused(reader, kind):
    seen = fuzz(reader, kind, ALL)
    assert len(seen) > 2  # the cases reach more than one check
