# SPDX-License-Identifier: Apache-2.0
"""What the journeys share: a shell in an empty folder, and options that make a training of seconds of any training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Where real scans are, if they are; see the README beside them.
REAL = Path(os.environ.get("VMFSEG_REAL_DATA") or Path(__file__).parents[2].parent / "shared/data/real_mini")
#: Options of a training for a test. What a user would type stays as it is beside them.
SHORT = ("--max_iterations", "8", "--epoch_length", "4", "--set", "batch_size=2", "--set", "unlabeled_batch_size=2")


class Shell:
    """Run commands of ``vmfseg`` in a folder, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: object, code: int = 0) -> str:
        """Return what a command prints on both streams; it must end with ``code``."""
        environment = {**os.environ, "VMFSEG_CACHE": str(self.folder / "cache"), "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, "-m", "vmfseg.cli.main", *map(str, words)],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout[-3000:]
        return done.stdout


@pytest.fixture(scope="session")
def real() -> Path:
    """Return the folder of real scans, or skip."""
    if not REAL.is_dir():
        pytest.skip("no real scans here (set VMFSEG_REAL_DATA to their folder)")
    return REAL


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a shell in an empty folder."""
    return Shell(tmp_path)


@pytest.fixture(scope="session")
def short() -> tuple[str, ...]:
    """Return the options of a training of seconds."""
    return SHORT
