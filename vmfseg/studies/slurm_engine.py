# SPDX-License-Identifier: Apache-2.0
"""Engine of a Slurm cluster: one job array, by submitit; a job that meets its time limit is requeued and goes on."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vmfseg.studies.execution import execute, read_result
from vmfseg.studies.study_parts import Resources
from vmfseg.utils import VmfError, read_json, write_json
from vmfseg.utils.packages import require_package

__all__ = ["SlurmEngine"]

_JOB = "job.json"
_REQUEUES = 1000
_LOOK_SECONDS = 20.0
_SIGNAL_SECONDS = 90


class SlurmEngine:
    """Execute runs as a job array of Slurm. See :class:`vmfseg.studies.engine.Engine`.

    The folder of the study and the data must be seen by all nodes. Shortly before its time limit (``hours`` of the
    resources) a job is signalled, puts itself into the queue again and goes on from its last checkpoint. If the driver
    ends, the jobs go on: the next ``study run`` finds them and submits only what is in no queue.

    Args:
        resources: of one run.
        jobs: jobs at the same time; 0 for as many as Slurm takes.
        options: any option of ``sbatch`` by its long name (``partition``, ``account``, ``qos``, ...); ``cluster=local``
            runs submitit's local executor instead, without Slurm.

    Raises:
        VmfError: VMF530 if submitit is not installed, VMF379 if there is no Slurm here.
    """

    def __init__(self, resources: Resources, jobs: int = 0, options: Mapping[str, str] | None = None) -> None:
        self._options = dict(options or {})
        self._cluster = self._options.pop("cluster", "slurm")
        self._submitit = require_package("submitit")
        self.resources, self.jobs = resources, jobs
        self._waiting: dict[Path, str] = {}
        self._local: dict[Path, Any] = {}
        self._next_look = 0.0
        if self._cluster == "slurm":
            _queue([])  # is there a Slurm?

    def submit(self, folders: Sequence[Path]) -> None:
        """Put runs into the queue that are in none yet."""
        alive = self._alive(filter(None, map(_job_of, folders)))
        self._waiting |= {folder: job for folder in folders if (job := _job_of(folder)) in alive}
        new = [folder for folder in folders if folder not in self._waiting]
        if not new:
            return
        executor = self._executor(new[0].parents[1] / "slurm", len(new))
        task = RunTask()
        with executor.batch():
            submitted = [executor.submit(task, str(folder), self.resources.cpus) for folder in new]
        for folder, job in zip(new, submitted, strict=True):
            write_json(folder / _JOB, {"job": job.job_id})
            self._waiting[folder] = job.job_id
            if self._cluster != "slurm":
                self._local[folder] = job
        self._next_look = time.monotonic() + _LOOK_SECONDS

    def poll(self) -> dict[Path, dict[str, Any]]:
        """Return the results that came in, and the loss of jobs that ended without one."""
        ended = {folder: result for folder in self._waiting if (result := read_result(folder)) is not None}
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            alive = self._alive(self._waiting.values())
            gone = [folder for folder, job in self._waiting.items() if job not in alive and folder not in ended]
            ended |= {folder: read_result(folder) or _lost(folder, self._waiting[folder]) for folder in gone}
        for folder in ended:
            del self._waiting[folder]
        return ended

    def busy(self) -> bool:
        """Tell whether a job waits or runs."""
        return bool(self._waiting)

    def stop(self) -> None:
        """Leave the queue as it is: jobs of Slurm go on without their driver, those of the local executor end."""
        for job in self._local.values():
            if not job.done():
                job.cancel(check=False)
        self._waiting.clear()

    def _alive(self, jobs: Iterable[str]) -> set[str]:
        if self._cluster != "slurm":
            return {job.job_id for job in self._local.values() if not job.done()}
        return _queue(list(jobs))

    def _executor(self, folder: Path, count: int) -> Any:
        need, minutes = self.resources, max(1, math.ceil(60 * self.resources.hours))
        slurm = {
            "slurm_array_parallelism": self.jobs or count,
            "slurm_signal_delay_s": min(_SIGNAL_SECONDS, 15 * minutes),
            "slurm_additional_parameters": self._options,
        }
        executor = self._submitit.AutoExecutor(folder / "%j", cluster=self._cluster, slurm_max_num_timeout=_REQUEUES)
        executor.update_parameters(
            name="vmfseg-study",
            timeout_min=minutes,
            cpus_per_task=need.cpus,
            mem_gb=need.memory_gb,
            **({"gpus_per_node": math.ceil(need.gpus)} if need.gpus else {}),
            **(slurm if self._cluster == "slurm" else {}),
        )
        return executor


class RunTask:
    """What a job does: execute a run; and when its time is nearly over, ask to be submitted again with the same run."""

    def __call__(self, folder: str, cpus: int) -> str:
        """Execute a run unless it has a result, and return its state."""
        place = Path(folder)
        known = read_result(place)
        done = known if known is not None and known["state"] == "done" else execute(place, cpus)
        return str(done["state"])

    def checkpoint(self, folder: str, cpus: int) -> Any:
        """Return the submission that goes on; submitit calls it on the signal."""
        return require_package("submitit").helpers.DelayedSubmission(self, folder, cpus)


def _job_of(folder: Path) -> str:
    try:
        return str(read_json(folder / _JOB)["job"])
    except (VmfError, KeyError, TypeError):
        return ""


def _queue(jobs: Sequence[str]) -> set[str]:
    """Return those of some jobs that wait or run.

    Raises:
        VmfError: VMF379 if Slurm does not answer.
    """
    command = ["squeue", "--noheader", "--array", "--me", "--format", "%i"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_slurm(str(error)) from error
    if done.returncode != 0:
        raise _no_slurm(done.stderr.strip() or f"squeue ends with {done.returncode}")
    return set(jobs) & set(done.stdout.split())


def _no_slurm(found: str) -> VmfError:
    return VmfError(
        "VMF379",
        subject="--on slurm",
        rule="there is no Slurm that answers here",
        found=found.splitlines()[0],
        fix="run it on a login node of the cluster, or use --on local or --on ray",
    )


def _lost(folder: Path, job: str) -> dict[str, Any]:
    logs = sorted(folder.parents[1].glob(f"slurm/*/{job}_*_log.err"))
    lines = [line for log in logs for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line]
    error = VmfError(
        "VMF377",
        subject=folder.name,
        rule="the job ended without a result",
        found=f"job {job}" + (f": {lines[-1]}" if lines else ""),
        fix="see the log of the job, below slurm in the folder of the study; then --retry",
    )
    return {"state": "failed", "error": error.as_dict()}
