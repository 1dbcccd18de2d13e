# SPDX-License-Identifier: Apache-2.0
"""Kill a short training again and again at random moments; its bytes must be those of one that nobody disturbed.

Run ``python benchmarks/kills.py --bundle vmfnet_mnms --kills 50``, or with ``--bundle study`` for a study of two
trainings, each in a process of its own. A training is killed with SIGKILL after a random share of its processor time,
counted from its first file, and started again with ``--resume`` (a study by the same command), until it ends; then the
next training begins, until all kills are spent. After every kill each checkpoint that an index names is read, and its
checksum compared.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.relbench.process import Worker
from benchmarks.relbench.runner import import_all
from benchmarks.relbench.scans import folder_of_pairs
from benchmarks.relbench.suites.c_lists import TINY
from benchmarks.relbench.suites.f_crashes import begun
from benchmarks.relbench.tools.base import Job
from benchmarks.relbench.tools.ours import Vmfseg, is_whole

#: What a tiny network of the paper's kind takes; a bundle of another method keeps its own network.
_VMF = {key: value for key, value in TINY.items() if key.startswith("network_def::")}
_RUN = {key: value for key, value in TINY.items() if not key.startswith(("network_def::", "dataset_dir"))}


def main() -> int:
    """Print one line for each training; return 1 if a byte differs or a checkpoint is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", default="vmfnet_mnms", help="a bundle of the package, or study")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="decides the moments")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="options of the training")
    options = parser.parse_args()
    import_all()
    changes = dict(pair.split("=", 1) for pair in options.set)
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        root = Path(name)
        (root / "scans").mkdir()
        folder_of_pairs(root / "scans")
        job = _study(root, changes) if options.bundle == "study" else _training(options.bundle, root, changes)
        return _run(Vmfseg(root, root / "logs"), job, root, options.kills, random.Random(options.seed))


def _training(bundle: str, root: Path, changes: dict[str, str]) -> Job:
    from vmfseg.bundle.compile import write_bundle

    write_bundle(bundle, root)
    config = json.loads((root / bundle / "configs" / "train.json").read_text())
    run = {key: value for key, value in _RUN.items() if key.split("::")[0] in config}
    values = {**run, **(_VMF if bundle.startswith("vmf") else {}), "dataset_dir": root / "scans", **changes}
    return Job("train", (str(root / bundle), "-o", "out", *(f"--{key}={value}" for key, value in values.items())))


def _study(root: Path, changes: dict[str, str]) -> Job:
    """Write a study of two seeds, one training after the other, each in a process of its own."""
    with (root / "scans" / "scans.csv").open() as stream:
        rows = [{**row, "subject": f"s{number}"} for number, row in enumerate(csv.DictReader(stream))]
    axes = ("target_domain", "labeled_fraction", "dataset")
    values = {key: value for key, value in {**_RUN, **_VMF, **changes}.items() if key not in axes}
    content = {
        "title": "Two trainings", "data": "mnms", "targets": ["C"], "fractions": [0.5], "seeds": [0, 1],
        "methods": ["vmfnet"], "set": {key: _plain(value) for key, value in values.items()},
        "table": {"labels": {1: "LV", 2: "MYO", 3: "RV"}, "rows": rows},
    }  # fmt: skip
    (root / "study.json").write_text(json.dumps(content))
    return Job("study", ("run", str(root / "study.json"), "--dataset_dir", str(root / "scans"), "-o", "out", "-j", "1"))


def _plain(value: object) -> object:
    return json.loads(value) if isinstance(value, str) and value[:1] in "[0123456789" else value


def _run(tool: Vmfseg, job: Job, root: Path, kills: int, moments: random.Random) -> int:
    clean = root / "undisturbed"
    clean.mkdir()
    code, seconds, _ = _train(tool, job, clean, None)
    if code != 0:
        return 1
    expected = _bytes(clean)
    print(
        f"undisturbed: {seconds:.1f} s of processor time, {len(expected)} files, weights {_short(expected)}", flush=True
    )
    done, number, wrong, start = 0, 0, 0, time.monotonic()
    while done < kills:
        number += 1
        place = root / f"run{number}"
        place.mkdir()
        here: list[str] = []
        while True:
            moment = moments.uniform(0.0, 0.8) * seconds if done < kills else None
            code, spent, broken = _train(tool, tool.again(job) if here else job, place, moment)
            wrong += broken
            if code == 0:
                break
            if code is not None:
                print(f"run {number}: exit {code} after {len(here)} kills", flush=True)
                return 1
            done += 1
            here.append(f"{spent:.1f}")
        found = _bytes(place)
        equal = found == expected
        wrong += not equal
        print(
            f"run {number}: killed {len(here)} times, after {' '.join(here) or '-'} s; {_verdict(found, expected)}",
            flush=True,
        )
    tool.close()
    took = time.monotonic() - start
    print(f"{done} kills in {number} trainings, {took:.0f} s: {'all bytes equal' if not wrong else f'{wrong} FAULTS'}")
    return 1 if wrong else 0


def _train(tool: Vmfseg, job: Job, place: Path, moment: float | None) -> tuple[int | None, float, int]:
    """Train to the end or until a moment; return exit code, processor time and the number of bad checkpoints."""
    worker = tool.start(job, place)
    assert worker is not None
    begun(worker, place)
    start = spent = _worked(worker)

    def is_time() -> bool:
        nonlocal spent
        spent = max(spent, _worked(worker))
        return moment is not None and spent - start >= moment

    if worker.wait_until(is_time, 3600, pause=0.05):
        worker.kill()
    outcome = worker.end()
    worker.close()
    if outcome.code:
        print(outcome.err[-600:])
    return outcome.code, spent - start, 0 if outcome.code == 0 else _broken(place)


def _worked(worker: Worker) -> float:
    """Return the processor time of a process and of all that it started, in seconds."""
    ticks, family = 0, [str(worker.pid)]
    while family:
        name = family.pop()
        with suppress(OSError):  # it ended meanwhile
            ticks += sum(map(int, Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[11:15]))
            family += [
                child for task in Path(f"/proc/{name}/task").glob("*/children") for child in task.read_text().split()
            ]
    return ticks / os.sysconf("SC_CLK_TCK")


def _broken(place: Path) -> int:
    """Count the checkpoints that an index names and that are not what it says."""
    count = 0
    for index in place.glob("out/**/stages/*/checkpoint.json"):
        for entry in json.loads(index.read_text())["checkpoints"]:
            path = index.parent / entry["file"]
            good = is_whole(path) and hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
            count += not good
    return count


def _bytes(place: Path) -> dict[str, str]:
    """Hash what a run gives: weights, scores and calibration."""
    names = ["models/model.safetensors", "models/model.pt", "models/quality.json", "metrics.json", "metrics.csv"]
    found = sorted(path for name in names for path in (place / "out").rglob(name))
    return {str(p.relative_to(place / "out")): hashlib.sha256(p.read_bytes()).hexdigest() for p in found}


def _short(found: dict[str, str]) -> str:
    return next((digest[:12] for name, digest in found.items() if name.endswith(".safetensors")), "none")


def _verdict(found: dict[str, str], expected: dict[str, str]) -> str:
    differ = [name for name in {**found, **expected} if found.get(name) != expected.get(name)]
    return "bytes equal" if not differ else f"DIFFERENT: {', '.join(differ)}"


if __name__ == "__main__":
    sys.exit(main())
