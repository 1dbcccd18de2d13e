# SPDX-License-Identifier: Apache-2.0
"""Run cases with tools, each in a folder of its own, on several processes."""

from __future__ import annotations

import importlib
import os
import pickle
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks.relbench.disks import unmount
from benchmarks.relbench.process import Call, Worker
from benchmarks.relbench.suites import a_images, b_pairs, c_lists, d_artifacts, e_serving, f_crashes, g_repeatability
from benchmarks.relbench.tools.base import Tool
from benchmarks.relbench.tools.ours import Vmfseg, write_model
from benchmarks.relbench.tools.plain_monai import PlainMonai
from benchmarks.relbench.verdict import Case, Verdict

__all__ = ["TOOLS", "all_cases", "import_all", "run_cases"]

TOOLS: dict[str, type[Tool]] = {"vmfseg": Vmfseg, "monai": PlainMonai}
#: What the workers need, imported once before they are forked.
_IMPORTS = (
    "monai.bundle", "monai.engines", "monai.handlers", "monai.inferers", "monai.losses", "monai.networks.nets",
    "torch.utils.tensorboard", "vmfseg.bundle", "vmfseg.cli.bundle_command", "vmfseg.cli.evaluate_command",
    "vmfseg.cli.export_command", "vmfseg.cli.segment_command", "vmfseg.cli.train_command",
    "vmfseg.cli.verify_command", "vmfseg.engines", "vmfseg.phantom", "vmfseg.serving",
)  # fmt: skip


_SUITES = (a_images, b_pairs, c_lists, d_artifacts, e_serving, f_crashes, g_repeatability)


def all_cases() -> list[Case]:
    """Return all cases, suite by suite."""
    return [case for module in _SUITES for case in module.cases()]


def run_cases(
    tool: str, cases: Sequence[Case], folder: Path, jobs: int = 1, verbose: bool = False
) -> list[tuple[Case, Verdict, float]]:
    """Let a tool meet all cases, on ``jobs`` processes.

    Args:
        tool: a name of :data:`TOOLS`.
        cases: what it meets.
        folder: for everything that is written.
        jobs: processes side by side.
        verbose: print a line for each case.

    Returns:
        Each case with its verdict and its seconds, in their order.
    """
    import_all()
    _write_models(folder / "shared", folder / "logs")
    parts, children = [], []
    for number in range(jobs):
        result = folder / f"part-{tool}-{number}.pickle"
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _part(tool, cases[number::jobs], folder, result, verbose)
        parts.append(result)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    found = [pickle.loads(part.read_bytes()) for part in parts]  # noqa: S301 - our own
    verdicts = {}
    for number in range(jobs):
        for case, (verdict, seconds) in zip(cases[number::jobs], found[number], strict=True):
            verdicts[case.id] = (case, verdict, seconds)
    return [verdicts[case.id] for case in cases]


def import_all() -> None:
    """Import what workers need, before they are forked; nothing is computed: a process that computes must not fork."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # read when torch is imported
    for name in _IMPORTS:
        importlib.import_module(name)


def _write_models(shared: Path, logs: Path) -> None:
    """Write the models that cases copy, in a process of its own: one that computed with torch must not fork."""
    if shared.exists():
        return
    shared.mkdir(parents=True)
    worker = Worker(logs)
    outcome = worker.run(Call(write_model, (str(shared),), shared))
    worker.close()
    if outcome.code != 0:
        raise RuntimeError(outcome.err)


def _part(name: str, cases: Sequence[Case], folder: Path, result: Path, verbose: bool) -> None:
    """Run some of the cases in this process, which ends here."""
    tool = TOOLS[name](folder / "shared", folder / "logs")
    found = []
    try:
        for case in cases:
            place = folder / name / case.id / "work"
            place.mkdir(parents=True)
            start = time.monotonic()
            try:
                verdict = case.probe(tool, place)
            except Exception as error:
                verdict = Verdict(detected=False, note=f"the case itself failed: {traceback.format_exc()[-500:]}")
                del error
            seconds = time.monotonic() - start
            found.append((verdict, seconds))
            if verbose:
                print(line_of(name, case, verdict, seconds), flush=True)
            unmount(place)
            shutil.rmtree(place.parent, ignore_errors=True)
            shutil.rmtree(place.parent.with_name(f"{case.id}-clean"), ignore_errors=True)
        result.write_bytes(pickle.dumps(found))
        tool.close()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(0)


def line_of(tool: str, case: Case, verdict: Verdict, seconds: float) -> str:
    """Return a case in one line: points, gates, what happened."""
    if not verdict.counterpart:
        return f"{tool:<7}{case.id:<36}no counterpart"
    marks = "".join(
        "-" if value is None else letter if value else letter.lower()
        for letter, value in zip(
            "DMIR", (verdict.detected, verdict.message, verdict.intact, verdict.recovers), strict=True
        )
    )
    missing = [part for part, there in verdict.parts.items() if not there]
    tail = f" GATE {', '.join(sorted(verdict.gates))}" * bool(verdict.gates) + f" [no {', '.join(missing)}]" * bool(
        missing
    )
    return f"{tool:<7}{case.id:<36}{marks} {seconds:5.1f} s {verdict.note}{tail}"
