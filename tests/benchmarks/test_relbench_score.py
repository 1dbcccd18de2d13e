# SPDX-License-Identifier: Apache-2.0
"""The benchmark of reliability judges rightly: gates trip, points are counted, a tool that is silent earns nothing."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.relbench.meeting import Fault, meet
from benchmarks.relbench.process import Call, Outcome, Worker
from benchmarks.relbench.runner import all_cases
from benchmarks.relbench.scans import array_of, write_scan
from benchmarks.relbench.score import gates, last_line, score, table
from benchmarks.relbench.tools.base import Job, Tool, Wanted
from benchmarks.relbench.tools.ours import Vmfseg, is_whole
from benchmarks.relbench.tools.plain_monai import PlainMonai
from benchmarks.relbench.trees import hash_files
from benchmarks.relbench.verdict import SUITES, Case, Verdict, no_counterpart

WANTED = Wanted("truncated", r"scan\.nii\.gz", "VMF210")
GOOD = "error VMF210: the stream is truncated\n  about  scan.nii.gz\n  found  half\n  fix    copy again\n"


def test_there_are_180_cases_with_names_of_their_own():
    cases = all_cases()
    assert {suite: sum(case.suite == suite for case in cases) for suite in SUITES} == {
        suite: count for suite, (_, count) in SUITES.items()
    }
    assert len({case.id for case in cases}) == len(cases) == 180


def accept(place: Path) -> None:
    """Write a label map for whatever comes."""
    (place / "out").mkdir(exist_ok=True)
    write_scan(place / "out" / "scan_seg.nii.gz", array_of())


def refuse(place: Path) -> None:
    """Refuse a short file as vmfseg does, take any other."""
    if (place / "scan.nii.gz").stat().st_size < 1000:
        sys.stderr.write(GOOD)
        raise SystemExit(3)
    accept(place)


def run_code(place: Path) -> None:
    """Leave the canary, then refuse."""
    (place / "canary").touch()
    raise SystemExit(3)


def destroy(place: Path) -> None:
    """Overwrite the good result before failing."""
    (place / "out" / "scan_seg.nii.gz").write_bytes(b"half")
    raise SystemExit(6)


def misplace(place: Path) -> None:
    """Write a label map somewhere else in space."""
    accept(place)
    write_scan(place / "out" / "scan_seg.nii.gz", array_of(), affine=np.diag([3.0, 3.0, 3.0, 1.0]))


def sleep_on(place: Path) -> None:
    """Never end."""
    threading.Event().wait()


class Puppet(Tool):
    """A tool that does one thing."""

    behaviour: Callable[[Path], None]

    def call(self, job: Job, place: Path) -> Call:
        return Call(type(self).behaviour, (place,), place)

    parts = Vmfseg.parts
    whole = staticmethod(is_whole)

    def digest(self, job: Job, place: Path) -> str:
        return hash_files(place / "out")


@pytest.fixture
def puppet(tmp_path):
    """Return a function that lets a tool of one behaviour meet a cut scan."""
    started = []

    def run(behaviour, **changes) -> Verdict:
        kind = type("Kind", (Puppet,), {"behaviour": staticmethod(behaviour), "name": "puppet"})
        tool = kind(tmp_path, tmp_path / "logs")
        started.append(tool)
        place = tmp_path / "case" / "work"
        place.mkdir(parents=True)
        scene = lambda folder: write_scan(folder / "scan.nii.gz")  # noqa: E731
        cut = lambda folder: (folder / "scan.nii.gz").write_bytes(b"cut")  # noqa: E731
        fault = Fault(scene, changes.pop("damage", cut), Job("segment"), **{"wanted": WANTED, **changes})
        return meet(tool, place, fault, "A")

    yield run
    for tool in started:
        tool.close()


def test_a_tool_that_refuses_by_name_cause_and_cure_earns_all_points(puppet):
    verdict = puppet(refuse)
    assert (verdict.detected, verdict.message, verdict.intact, verdict.recovers) == (True, True, True, True), verdict
    assert verdict.gates == set()


def test_silent_acceptance_trips_the_gate(puppet):
    verdict = puppet(accept)
    assert verdict.gates == {"silent acceptance"}
    assert (verdict.detected, verdict.message) == (False, False)


def test_code_that_ran_trips_the_gate_though_the_file_was_refused(puppet):
    verdict = puppet(run_code)
    assert verdict.gates == {"code executed"}
    assert verdict.intact is False


def test_a_lost_result_trips_the_gate(puppet):
    def damage(folder):
        (folder / "out").mkdir()
        write_scan(folder / "out" / "scan_seg.nii.gz")

    verdict = puppet(destroy, damage=damage, keeps=("out/scan_seg.nii.gz",), recovery=False)
    assert "good artefact lost" in verdict.gates
    assert verdict.intact is False


def test_a_result_elsewhere_in_space_trips_the_gate(puppet):
    verdict = puppet(misplace, damage=lambda folder: None, wanted=None, geometry="scan.nii.gz")
    assert verdict.gates == {"wrong geometry"}
    assert verdict.detected is False


def test_a_hang_is_cut_off_and_a_dead_process_replaced(tmp_path):
    worker = Worker(tmp_path / "logs")
    outcome = worker.run(Call(sleep_on, (tmp_path,), tmp_path), seconds=0.3)
    assert outcome.hung
    assert worker.run(Call(os.abort, (), tmp_path)).died
    assert worker.run(Call(print, ("alive",), tmp_path)).out == "alive\n"
    worker.close()


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (GOOD, set()),
        (GOOD.replace("VMF210", "VMF211"), {"code"}),
        (GOOD.replace("scan.nii.gz", "a file"), {"file"}),
        (GOOD.replace("truncated", "bad"), {"cause"}),
        (GOOD.replace("  fix    copy again\n", ""), {"cure"}),
        ("a\nb\n" + GOOD, {"lines"}),
        ("Traceback\n" + GOOD, {"lines"}),
    ],
    ids=["good", "code", "file", "cause", "cure", "six lines", "traceback"],
)
def test_each_part_of_a_message_is_looked_for(tmp_path, text, missing):
    parts = Vmfseg.parts(Vmfseg.__new__(Vmfseg), Outcome(3, "", text, 0.0), WANTED)
    assert {part for part, there in parts.items() if not there} == missing


def test_monai_is_not_asked_for_codes_or_few_lines():
    text = (
        "Traceback (most recent call last):\n  File x.py\n"
        + "  more\n" * 30
        + "EOFError: scan.nii.gz truncated, please check"
    )
    parts = PlainMonai.parts(PlainMonai.__new__(PlainMonai), Outcome(1, "", text, 0.0), WANTED)
    assert parts == {"file": True, "cause": True, "cure": True}


def _case(suite: str, name: str) -> Case:
    return Case(suite, name, "T00", lambda tool, place: Verdict())


def test_axes_that_do_not_apply_and_missing_counterparts_leave_the_maximum():
    results = [
        (_case("A", "one"), Verdict(True, False, True, None, {"silent acceptance"})),
        (_case("E", "two"), no_counterpart()),
        (_case("F", "three"), Verdict(recovers=True)),
    ]
    assert score(results) == (3, 4)
    assert gates(results)["silent acceptance"] == 1
    assert last_line("x", results).startswith("x: score 75.0 (3 of 4 points); gates: code executed 0,")
    text = table({"x": results})
    assert "| A images | 1 | 66.7 (2/3) | 1/1 0/1 1/1 - |" in text
    assert "| E serving | 1 | no counterpart | - - - - |" in text
    assert "| A images | 1 | 66.7 (2/3) | 1/1 0/1 1/1 - | not run | - - - - |" in table(
        {"x": results, "y": results[1:]}
    )
