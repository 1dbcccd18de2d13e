# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.relbench [--quick] [--suite A..G] [--against monai]``: score and gates; exit 1 by a gate."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.relbench.page import as_json
from benchmarks.relbench.runner import all_cases, run_cases
from benchmarks.relbench.score import gates, last_line, table


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relbench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without kills and trainings, under a minute")
    parser.add_argument("--suite", default="ABCDEFG", help="letters of the suites, for example AB")
    parser.add_argument("--against", choices=["monai"], help="run the same cases with plain MONAI too")
    parser.add_argument("--alone", action="store_true", help="run the tool of --against only")
    parser.add_argument("--only", default="", help="part of the names of the cases")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--output", type=Path, help="write every verdict here (JSON), see page.py")
    options = parser.parse_args()
    chosen = [
        case
        for case in all_cases()
        if case.suite in options.suite.upper() and options.only in case.id and (case.quick or not options.quick)
    ]
    tools = ["vmfseg"] * (not (options.alone and options.against)) + [options.against] * bool(options.against)
    results, took, spent = {}, {}, {}
    with tempfile.TemporaryDirectory(prefix="relbench-") as place:
        os.chmod(place, 0o755)  # noqa: S103 - some calls run as another user
        for tool in tools:
            start, before = time.monotonic(), sum(os.times()[:4])
            found = run_cases(tool, chosen, Path(place), options.jobs, verbose=True)
            results[tool] = [(case, verdict) for case, verdict, _ in found]
            took[tool], spent[tool] = time.monotonic() - start, sum(os.times()[:4]) - before
    print(table(results))
    for tool, seconds in took.items():
        print(f"{tool}: {len(chosen)} cases in {seconds:.0f} s, {spent[tool]:.0f} s of processor time")
    for tool in reversed(tools):
        print(last_line(tool, results[tool]))
    command = " ".join(["python -m benchmarks.relbench", *sys.argv[1:]])
    if options.output is not None:
        options.output.write_text(json.dumps(as_json(results, took, spent, command), indent=1))
    return 1 if any(gates(results.get("vmfseg", [])).values()) else 0


if __name__ == "__main__":
    sys.exit(main())
