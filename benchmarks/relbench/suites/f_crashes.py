# SPDX-License-Identifier: Apache-2.0
"""Suite F: kills, signals, full and read-only disks, locks, damaged checkpoints and caches."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.relbench.disks import fill, mount, mount_read_only
from benchmarks.relbench.meeting import Fault, case, clean_place, judge, summary
from benchmarks.relbench.process import Worker
from benchmarks.relbench.scans import array_of, folder_of_pairs, rewrite, write_scan
from benchmarks.relbench.suites.a_images import good_scan, segment
from benchmarks.relbench.suites.b_pairs import VERIFY
from benchmarks.relbench.suites.c_lists import training, training_scene
from benchmarks.relbench.suites.d_artifacts import model_scene
from benchmarks.relbench.tools.base import Job, Tool, Wanted
from benchmarks.relbench.trees import empty, is_hidden, tree
from benchmarks.relbench.verdict import Case, Verdict, no_counterpart

__all__ = ["begun", "cases", "undisturbed"]

Scene = Callable[[Path], None]
TRAIN = training(plain={})
#: Checkpoints of a few megabytes, so that a kill can meet their writing.
HEAVY = training(plain={"channels": [4, 192]}, **{"network_def::channels": "[4, 8, 192]"})
CINE = Job("segment", ("s0.nii.gz", "s1.nii.gz", "s2.nii.gz", "s3.nii.gz", "-o", "out", "--skip-existing"),
           {"images": [f"s{k}.nii.gz" for k in range(4)]})  # fmt: skip
PHANTOM = Job("phantom", ("out/hearts", "--subjects", "2", "--size", "32", "--frames", "2", "--workers", "1"), None)


def undisturbed(tool: Tool, place: Path, scene: Scene, job: Job) -> tuple[str, float]:
    """Return hash of a run that nobody disturbs, and its processor time after its first file; done once."""

    def run() -> tuple[str, float]:
        clean = clean_place(place)
        scene(clean)
        worker = tool.start(job, clean)
        assert worker is not None
        begun(worker, clean)
        start = worker.worked()
        worker.wait_until(lambda: False)
        took = worker.worked() - start
        outcome = worker.end()
        worker.close()
        if outcome.code != 0:
            raise RuntimeError(f"the undisturbed run failed: {summary(outcome)}")
        return tool.digest(job, clean), took

    return tool.remembered(("undisturbed", scene.__qualname__, job.verb, job.words), run)  # type: ignore[no-any-return]


def begun(worker: Worker, place: Path) -> bool:
    """Wait for the first file that a run writes: what comes before is the same in every run."""

    def files() -> dict[str, int]:
        found = {}
        for path in (place / "out").rglob("*"):
            with suppress(OSError):  # a temporary file may be gone already
                found[str(path)] = path.stat().st_mtime_ns if path.is_file() else 0
        return found

    before = files()
    return worker.wait_until(lambda: files() != before)


def _results(place: Path) -> list[Path]:
    """Return models, checkpoints and label maps under their final names."""
    found = [path for end in ("*.pt", "*.safetensors", "*.nii.gz") for path in (place / "out").rglob(end)]
    return [path for path in found if not path.name.startswith(".")]


def _killed(
    name: str, scene: Scene, job: Job, moment: Callable[[Worker, float, Path], bool], quick: bool = False
) -> Case:
    """Kill a job at a moment; what it had finished must be good, and going on must give the same bytes."""

    def probe(tool: Tool, place: Path) -> Verdict:
        if tool.call(job, place) is None:
            return no_counterpart()
        expected, seconds = undisturbed(tool, place, scene, job)
        came, tries = False, 0
        while not came and tries < 3:  # a run can end before its moment: then it is tried again, a little earlier
            empty(place)
            scene(place)
            worker = tool.start(job, place)
            assert worker is not None
            came = moment(worker, seconds * 0.95**tries, place)
            worker.kill()
            outcome = worker.end()
            worker.close()
            tries += 1
        whole = {path: tool.whole(path) for path in _results(place)}
        verdict = Verdict(intact=all(whole.values()), note=f"killed {summary(outcome)}" if came else "ended before")
        if whole and not any(whole.values()):
            verdict.gates.add("good artefact lost")
        again = tool.run(tool.again(job), place)
        assert again is not None
        verdict.recovers = again.code == 0 and tool.digest(job, place) == expected
        left = [name for name in tree(place / "out") if is_hidden(name)]
        if left:  # what the kill left, the next run has to take away
            verdict.intact = False
            verdict.note += f"; left {left[:2]}"
        if not verdict.recovers:
            verdict.note += f"; rerun: {summary(again)}"
        return verdict

    return Case("F", name, "T100", probe, quick)


def _at(fraction: float) -> Callable[[Worker, float, Path], bool]:
    """After a share of the processor time that the undisturbed run takes from its first file to its end."""

    def moment(worker: Worker, seconds: float, place: Path) -> bool:
        begun(worker, place)
        start = worker.worked()
        return worker.wait_until(lambda: worker.worked() - start >= fraction * seconds)

    return moment


def _while_saving(number: int) -> Callable[[Worker, float, Path], bool]:
    """As soon as the file of a checkpoint appears, under whatever name."""

    def moment(worker: Worker, seconds: float, place: Path) -> bool:
        seen: set[str] = set()

        def begun() -> bool:
            for path in (place / "out").rglob("*"):
                if "checkpoint_" in path.name or "epoch-" in path.name or path.name.startswith(".vmfseg"):
                    seen.add(path.name)
            return len(seen) >= number

        return worker.wait_until(begun)

    return moment


def _signalled(name: str, scene: Scene, job: Job, number: signal.Signals, wanted: str) -> Case:
    """Send a signal in the middle: one line, exit code 130, nothing broken, and it goes on."""

    def probe(tool: Tool, place: Path) -> Verdict:
        if tool.call(job, place) is None:
            return no_counterpart()
        expected, seconds = undisturbed(tool, place, scene, job)
        scene(place)
        worker = tool.start(job, place)
        assert worker is not None
        _at(0.6)(worker, seconds, place)
        worker.signal(number)
        outcome = worker.end()
        worker.close()
        verdict = judge(tool, outcome, Wanted(wanted, "", "", 130), "F")
        verdict.parts.pop("code", None)
        verdict.parts["cure"] = verdict.parts["cure"] or "resume" in outcome.err or job.verb != "train"
        if "lines" in verdict.parts:
            verdict.parts["lines"] = len(outcome.err.strip().splitlines()) <= 5 and "Traceback" not in outcome.text
        verdict.message = all(verdict.parts.values())
        verdict.detected = outcome.code == 130
        verdict.intact = all(tool.whole(path) for path in _results(place))
        again = tool.run(tool.again(job), place)
        assert again is not None
        verdict.recovers = again.code == 0 and tool.digest(job, place) == expected
        return verdict

    return Case("F", name, "T101", probe, quick=False)


def _full(place: Path) -> None:
    fill(mount(place / "out", "256k"))


def _full_with_label(place: Path) -> None:
    mount(place / "out", "256k")
    shutil.copy(place / "scan.nii.gz", place / "out" / "scan_seg.nii.gz")
    fill(place / "out")


def _label_there(place: Path) -> None:
    (place / "out").mkdir()
    shutil.copy(place / "scan.nii.gz", place / "out" / "scan_seg.nii.gz")


def _list_there(place: Path) -> None:
    (place / "out").mkdir()
    (place / "out" / "datalist.json").write_text("mine")


def _disk(
    name: str, threat: str, scene: Scene, damage: Callable[[Path], object], job: Job, code: str, cause: str,
    keeps: tuple[str, ...] = (), recovery: bool = True, quick: bool = True, later: Job | None = None,
) -> Case:  # fmt: skip
    wanted = Wanted(cause, r"\bout\b|scan_seg|datalist|\bmodels?\b|hearts", code, 6)
    fault = Fault(scene, damage, job, wanted, later, keeps=keeps, recovery=recovery)
    return case("F", name, threat, fault, quick)


def _locked() -> Case:
    """A second run in the folder of one that is alive."""

    def probe(tool: Tool, place: Path) -> Verdict:
        training_scene(place)
        first = tool.start(TRAIN, place)
        assert first is not None
        first.wait_until(lambda: any((place / "out").rglob("*")))
        first.signal(signal.SIGSTOP)
        outcome = tool.run(TRAIN, place)
        first.close()
        assert outcome is not None
        return judge(tool, outcome, Wanted(r"another (run|process)|\block", r"\bout\b", "VMF504", 6), "F")

    return Case("F", "two-runs-in-one-folder", "T105", probe, quick=False)


def _damaged_checkpoint(name: str, damage: Callable[[bytes], bytes]) -> Case:
    """Kill a training, damage its newest checkpoint, and go on."""

    def probe(tool: Tool, place: Path) -> Verdict:
        expected, seconds = undisturbed(tool, place, training_scene, TRAIN)
        training_scene(place)
        worker = tool.start(TRAIN, place)
        assert worker is not None
        _while_saving(6)(worker, seconds, place)
        worker.kill()
        worker.end()
        worker.close()
        kept = sorted(p for p in _results(place) if "epoch" in p.name and p.stat().st_size)
        newest = max(kept, key=lambda path: path.stat().st_mtime_ns, default=None)
        if newest is not None:
            rewrite(newest, damage)
        again = tool.run(tool.again(TRAIN), place)
        assert again is not None
        verdict = Verdict(note=summary(again) if newest else "no checkpoint yet")
        verdict.detected = (
            again.code not in (0, None) or "damaged" in again.text or tool.digest(TRAIN, place) == expected
        )
        verdict.recovers = again.code == 0 and tool.digest(TRAIN, place) == expected
        return verdict

    return Case("F", name, "T108", probe, quick=False)


def _cache(name: str, damage: Callable[[Path], object], fresh: bool = False) -> Case:
    """Damage what a cache holds, or the scan behind it; the voxels must be those of the scan."""

    def probe(tool: Tool, place: Path) -> Verdict:
        job = Job("cached", (), {})
        folder_of_pairs(place, "AB")
        first = tool.run(job, place)
        assert first is not None
        damage(place)
        second = tool.run(job, place)
        assert second is not None
        found = tool.digest(job, place)
        shutil.rmtree(place / "cache")
        shutil.rmtree(place / "out")
        tool.run(job, place)
        verdict = Verdict(note=f"{summary(first)}; {summary(second)}")
        verdict.recovers = second.code == 0 and found == tool.digest(job, place) != ""
        verdict.detected = second.code not in (0, None) or verdict.recovers
        return verdict

    return Case("F", name, "T110", probe)


def _entries(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda place: [rewrite(path, change) for path in (place / "cache").rglob("*.pt")]


def _flip(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


def _other_scan(place: Path) -> None:
    write_scan(place / "s0.nii.gz", array_of(number=77))


def _big_scan(place: Path) -> None:
    write_scan(place / "scan.nii.gz", np.tile(array_of((64, 64, 8)), (8, 8, 8)))


def cases() -> list[Case]:
    """Return the 40 cases."""
    full, written = "disk is full|no space|ENOSPC", "cannot be written|read-only"
    export = Job("export", ("vmfnet_mnms", "--to", "torchscript", "-o", "out/model.ts"), {"output": "out/model.ts"})
    memory = replace(segment(), limits={"memory": 120 << 20})
    return [
        *[_killed(f"train-killed-at-{k}0-percent", training_scene, TRAIN, _at(k / 10)) for k in range(1, 10)],
        _killed("train-killed-at-95-percent", training_scene, TRAIN, _at(0.95)),
        *[_killed(f"killed-while-saving-{k}", training_scene, HEAVY, _while_saving(k)) for k in (2, 3, 5)],
        *[_killed(f"segment-killed-at-{k}0-percent", folder_of_pairs, CINE, _at(k / 10)) for k in (5, 7, 9)],
        _killed("phantom-killed", lambda place: None, PHANTOM, _at(0.6)),
        _signalled("train-interrupted", training_scene, TRAIN, signal.SIGINT, "interrupt"),
        _signalled("train-terminated", training_scene, TRAIN, signal.SIGTERM, "interrupt|terminat"),
        _signalled("segment-interrupted", folder_of_pairs, CINE, signal.SIGINT, "interrupt"),
        _signalled("phantom-terminated", lambda place: None, PHANTOM, signal.SIGTERM, "interrupt|terminat"),
        _disk("segment-on-a-full-disk", "T102", good_scan, _full, segment(), "VMF501", full),
        _disk("overwrite-on-a-full-disk", "T102", good_scan, _full_with_label, segment("scan.nii.gz", "--overwrite"),
              "VMF501", full, keeps=("out/scan_seg.nii.gz",), later=segment()),
        _disk("train-on-a-full-disk", "T102", training_scene, _full, TRAIN, "VMF501", full, quick=False,
              recovery=False),
        _disk("verify-on-a-full-disk", "T102", folder_of_pairs, _full, Job("verify", VERIFY.words, None), "VMF501",
              full),
        _disk("export-on-a-full-disk", "T102", model_scene, _full, export, "VMF501", full, recovery=False),
        _disk("phantom-on-a-full-disk", "T102", lambda place: None, _full, PHANTOM, "VMF501", full, recovery=False),
        _disk("segment-read-only", "T103", good_scan, lambda p: mount_read_only(p / "out"), segment(), "VMF502",
              written, recovery=False),
        _disk("train-read-only", "T103", training_scene, lambda p: mount_read_only(p / "out"), TRAIN, "VMF502",
              written, recovery=False),
        _disk("label-is-there-already", "T104", good_scan, _label_there, segment(), "VMF503", "exists",
              keeps=("out/scan_seg.nii.gz",)),
        _disk("list-is-there-already", "T104", folder_of_pairs, _list_there, Job("verify", VERIFY.words, None),
              "VMF503", "exists", keeps=("out/datalist.json",)),
        _locked(),
        case("F", "not-enough-memory", "T107", Fault(
            good_scan, _big_scan, memory, Wanted("memory|allocate", r"scan\.nii", r"VMF5(05|10|12|32)", 6), segment())),
        _damaged_checkpoint("newest-checkpoint-cut", lambda data: data[: len(data) // 2]),
        _damaged_checkpoint("newest-checkpoint-changed", _flip),
        _damaged_checkpoint("newest-checkpoint-empty", lambda data: b""),
        _cache("cache-entry-cut", _entries(lambda data: data[: len(data) // 2])),
        _cache("cache-entry-changed", _entries(_flip)),
        _cache("cache-entry-empty", _entries(lambda data: b"")),
        _cache("cache-of-a-replaced-scan", _other_scan),
    ]  # fmt: skip
