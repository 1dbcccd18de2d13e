# SPDX-License-Identifier: Apache-2.0
"""What a case is, what it can earn, and the gates that no score buys off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.relbench.tools.base import Tool

__all__ = ["AXES", "GATES", "SUITES", "Case", "Verdict", "as_dict", "no_counterpart"]

#: The suites and the number of their cases.
SUITES = {
    "A": ("images", 45),
    "B": ("masks and pairs", 15),
    "C": ("lists, configs, command line", 20),
    "D": ("hostile artefacts", 25),
    "E": ("serving", 20),
    "F": ("crashes and disks", 40),
    "G": ("repeatability and leakage", 15),
}
#: The four points of a case.
AXES = ("detected", "message", "intact", "recovers")
#: What must never happen.
GATES = ("code executed", "good artefact lost", "silent acceptance", "hang over 60 s", "wrong geometry")


@dataclass
class Verdict:
    """What a tool earned in a case.

    Attributes:
        detected: the fault was refused, or repaired with a notice; a good control passed.
        message: it was said in at most five lines, with code, file, true cause, cure and exit code.
        intact: every file that was there before is there byte for byte, and no partial file came.
        recovers: without the fault, the same command gives the bytes of the undisturbed run.
        gates: names of :data:`GATES` that the case tripped.
        parts: the parts of the message, for the tables.
        note: one line on what happened.
        counterpart: whether the tool has a verb for the case at all.

    ``None`` stands for an axis that does not apply; it is left out of the maximum.
    """

    detected: bool | None = None
    message: bool | None = None
    intact: bool | None = None
    recovers: bool | None = None
    gates: set[str] = field(default_factory=set)
    parts: dict[str, bool] = field(default_factory=dict)
    note: str = ""
    counterpart: bool = True

    def points(self) -> tuple[int, int]:
        """Return the points and how many there were to earn."""
        values = [getattr(self, axis) for axis in AXES]
        return sum(value is True for value in values), sum(value is not None for value in values)


@dataclass(frozen=True)
class Case:
    """One case of the benchmark.

    Attributes:
        suite: its letter.
        name: unique in its suite.
        threat: the number in the list of threats.
        probe: lets a tool meet the fault in an empty folder, and judges.
        quick: whether ``--quick`` runs it.
    """

    suite: str
    name: str
    threat: str
    probe: Callable[[Tool, Path], Verdict]
    quick: bool = True

    @property
    def id(self) -> str:
        """``A-truncated-gz``."""
        return f"{self.suite}-{self.name}"


def no_counterpart(why: str = "") -> Verdict:
    """Return the verdict of a tool that has no such verb."""
    return Verdict(note=why or "no counterpart", counterpart=False)


def as_dict(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict for JSON."""
    return {**{key: value for key, value in vars(verdict).items() if key != "gates"}, "gates": sorted(verdict.gates)}
