# SPDX-License-Identifier: Apache-2.0
"""Run a study: execute the runs that are missing, by an engine, and go on where it was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vmfseg.data.experiment import phantom_folder
from vmfseg.studies.engine import Engine
from vmfseg.studies.execution import forget_failure
from vmfseg.studies.plan import Plan, Run
from vmfseg.studies.records import STUDY_FILE, Record, read_record
from vmfseg.utils import VmfError, read_json, write_json
from vmfseg.utils.io import StrPath
from vmfseg.utils.locks import locked_folder

__all__ = ["run_study"]

_POLL_SECONDS = 0.2


def run_study(
    plan: Plan,
    out: StrPath,
    engine: Engine,
    *,
    retry: bool = False,
    on_end: Callable[[Record, int, int], None] | None = None,
) -> list[Record]:
    """Execute the runs of a plan that have no result yet.

    A finished run is never repeated, a stopped one goes on from its last checkpoint, one that failed stays as it is
    unless ``retry`` is true. If this process is killed, the next call goes on.

    Args:
        plan: the runs.
        out: folder of the study: ``study.json``, ``runs``, ``bundles``.
        engine: what executes them.
        retry: try failed runs again.
        on_end: called with the record of every run that ends, the number of runs that have ended, and that of all.

    Returns:
        A record of every run of the plan.

    Raises:
        VmfError: VMF373 if the folder belongs to another study, VMF504 if another process runs a study in it.
    """
    out = Path(out).expanduser().absolute()
    with _claimed(out, plan):
        plan.write_shared(out)
        runs = {run.name: run for run in plan.runs}
        notes = [{"name": run.name, "cell": run.cell.as_dict()} for run in plan.runs]
        content = {"format": "vmfseg-study-1", "name": plan.study.name, "content": plan.study.content, "runs": notes}
        write_json(out / STUDY_FILE, content)
        records = {name: read_record(run.cell, out / "runs" / name, False) for name, run in runs.items()}
        settled = ("done", "failed") if not retry else ("done",)
        missing = [run for name, run in runs.items() if records[name].state not in settled]
        if not plan.data.root:
            _make_phantoms(missing)
        folders = {plan.prepare(run, out): run for run in missing}
        for folder in folders:
            forget_failure(folder)
        ended = len(runs) - len(missing)
        try:
            engine.submit(list(folders))
            while engine.busy():
                for folder, result in engine.poll().items():
                    run, ended = folders[folder], ended + 1
                    record = read_record(run.cell, folder, False)
                    if result["state"] == "failed":  # also where a full disk did not take the result
                        record = Record(run.cell, folder, "failed", spent=result, error=VmfError(**result["error"]))
                    records[run.name] = record
                    if on_end is not None:
                        on_end(record, ended, len(runs))
                time.sleep(_POLL_SECONDS)
        finally:
            engine.stop()
    return [records[run.name] for run in plan.runs]


def _make_phantoms(runs: list[Run]) -> None:
    """Make the phantoms that runs need, each once, before several processes want the same one."""
    wanted = {}
    for run in runs:
        config = run.decides["config"]
        phantom = {"seed": config["seed"], **config.get("phantom", {})}
        wanted[str(sorted(phantom.items()))] = (config["dataset"], phantom)
    for dataset, phantom in wanted.values():
        phantom_folder(dataset, phantom)


@contextmanager
def _claimed(out: Path, plan: Plan) -> Iterator[None]:
    """Hold the folder of a study: it belongs to one study, and one process at a time works in it."""
    with locked_folder(out, "-o"):
        if (out / STUDY_FILE).is_file():
            owner = str(read_json(out / STUDY_FILE).get("name"))
            if owner != plan.study.name:
                raise VmfError(
                    "VMF373",
                    subject=str(out),
                    rule="the folder belongs to another study",
                    found=f"{owner}, not {plan.study.name}",
                    fix="choose another folder by -o",
                )
        yield
