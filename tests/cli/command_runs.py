# SPDX-License-Identifier: Apache-2.0
"""Run the program in this process, from its command line to its exit code."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

from vmfseg.cli.main import main


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def run_main(*words: object) -> Ended:
    """Run ``vmfseg words`` and return its exit code and output; signal handlers are as before afterwards."""
    out, err = io.StringIO(), io.StringIO()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    argv: Sequence[str] = ["vmfseg", *(str(word) for word in words)]
    try:
        with (
            mock.patch.object(sys, "argv", argv),
            mock.patch.object(sys, "stdout", out),
            mock.patch.object(sys, "stderr", err),
        ):
            try:
                main()
                code = 0
            except SystemExit as stop:
                code = int(stop.code or 0)
    finally:
        for number, action in before.items():
            signal.signal(number, action)
    return Ended(code, out.getvalue(), err.getvalue())
