# SPDX-License-Identifier: Apache-2.0
"""The usual course of a case: a good scene, a fault, a job, a look at what it left, the same job without the fault."""

from __future__ import annotations

import gzip
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np

from benchmarks.relbench.process import Outcome
from benchmarks.relbench.tools.base import Job, Tool, Wanted
from benchmarks.relbench.trees import empty, restore, save_tree, tree
from benchmarks.relbench.verdict import Case, Verdict, no_counterpart

__all__ = ["Fault", "case", "clean_place", "judge", "meet", "summary"]


@dataclass(frozen=True)
class Fault:
    """A fault and what a good tool does about it.

    Attributes:
        scene: writes good inputs into a folder.
        damage: puts the fault into it.
        job: what the tool is asked.
        wanted: the message; ``None`` for a good control, which must pass.
        later: the job without the fault, if it is another one.
        geometry: the image whose grid the result must have.
        leaves: a pattern of files that a refused job may leave, like logs.
        keeps: files that were good before and must stay usable.
        recovery: whether the job is tried again without the fault.
    """

    scene: Callable[[Path], object]
    damage: Callable[[Path], object]
    job: Job
    wanted: Wanted | None = None
    later: Job | None = None
    geometry: str = ""
    leaves: str = r"(?!)"
    keeps: tuple[str, ...] = ()
    recovery: bool = True


def case(suite: str, name: str, threat: str, fault: Fault, quick: bool = True) -> Case:
    """Make a case of a fault."""
    return Case(suite, name, threat, lambda tool, place: meet(tool, place, fault, suite), quick)


def meet(tool: Tool, place: Path, fault: Fault, suite: str) -> Verdict:
    """Let a tool meet a fault."""
    if tool.call(fault.job, place) is None:
        return no_counterpart()
    fault.scene(place)
    saved = save_tree(place)
    fault.damage(place)
    before = tree(place)
    outcome = tool.run(fault.job, place)
    assert outcome is not None
    after = tree(place)
    verdict = judge(tool, outcome, fault.wanted, suite)
    changed = [name for name, content in before.items() if after.get(name) != content]
    added = [name for name in after if name not in before and not re.search(fault.leaves, name)]
    passed = outcome.code == 0
    strays = [name for name in added if not (passed and name.startswith("out/"))]
    verdict.intact = not changed and not strays
    if (place / "canary").exists():
        verdict.gates.add("code executed")
    if any(not tool.whole(place / name) for name in fault.keeps):
        verdict.gates.add("good artefact lost")
    if passed and fault.geometry and not same_grid(place / fault.geometry, place / "out"):
        verdict.gates.add("wrong geometry")
        verdict.detected = False
    if changed or strays:
        verdict.note += f"; changed {changed[:2]}" * bool(changed) + f"; left {strays[:2]}" * bool(strays)
    if fault.wanted is not None and fault.recovery:
        restore(place, saved, before)
        (place / "canary").unlink(missing_ok=True)
        later = fault.later or fault.job
        if passed:  # accepted: the good input is asked for again, into a fresh folder
            empty(place / "out")
        again = tool.run(tool.again(later) if not passed else later, place)
        expected = tool.remembered(
            (fault.scene.__qualname__, later.verb, later.words), lambda: _undisturbed(tool, place, fault)
        )
        verdict.recovers = again is not None and again.code == 0 and tool.digest(later, place) == expected != ""
        if not verdict.recovers and again is not None:
            verdict.note += f"; rerun: {summary(again)}"
    return verdict


def judge(tool: Tool, outcome: Outcome, wanted: Wanted | None, suite: str) -> Verdict:
    """Judge what came out, but for the files."""
    verdict = Verdict(note=summary(outcome))
    if outcome.hung:
        verdict.gates.add("hang over 60 s")
    if wanted is None:
        verdict.detected = outcome.code == 0
        return verdict
    verdict.parts = tool.parts(outcome, wanted)
    said = verdict.parts["cause"]
    refused = outcome.code not in (0, None)
    verdict.detected = refused or (outcome.code == 0 and said)
    verdict.message = all(verdict.parts.values())
    if suite in "AB" and outcome.code == 0 and not said:
        verdict.gates.add("silent acceptance")
    return verdict


def same_grid(image: Path, out: Path) -> bool:
    """Whether the label map in ``out`` has shape and affine of an image, as nibabel reads them."""
    found = [path for path in out.rglob("*.nii*") if "_seg" in path.name]
    if not found:
        return False
    one, other = _nifti(image), _nifti(found[0])
    return _trimmed(one.shape) == _trimmed(other.shape) and bool(np.allclose(one.affine, other.affine, atol=1e-3))


def _nifti(path: Path) -> nib.Nifti1Image:
    """Read an image by its content: one of the cases has a wrong ending."""
    data = path.read_bytes()
    return nib.Nifti1Image.from_bytes(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without the ones at its end: a 2-D image is a volume of one slice."""
    return _trimmed(shape[:-1]) if shape and shape[-1] == 1 else shape


def summary(outcome: Outcome) -> str:
    """Return one line on how a call ended."""
    if outcome.hung:
        return "hung"
    if outcome.code is None:
        last = (outcome.err.strip().splitlines() or [""])[-1]
        return f"died of {signal.Signals(outcome.died).name}" if outcome.died else f"died: {last}"
    lines = [line.strip() for line in outcome.err.splitlines() if line.strip()]
    block = re.search(r"error (VMF\d{3}): [^\n]*", outcome.text)
    text = block[0] if block else next((line for line in reversed(lines) if not line.startswith(("^", "~"))), "")
    return f"exit {outcome.code} {text[:120]}".strip()


def clean_place(place: Path) -> Path:
    """Return an empty folder of the same name beside that of a case: names can get into results."""
    clean = place.parent.with_name(place.parent.name + "-clean") / place.name
    clean.mkdir(parents=True)
    return clean


def _undisturbed(tool: Tool, place: Path, fault: Fault) -> str:
    clean = clean_place(place)
    fault.scene(clean)
    later = fault.later or fault.job
    tool.run(later, clean)
    return tool.digest(later, clean)
