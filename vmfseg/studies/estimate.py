# SPDX-License-Identifier: Apache-2.0
r"""Estimate what a study costs: one short timed run of each method.

The short run has all stages of the real one, with few iterations in those that iterate. With :math:`c_s` the CPU
seconds of stage :math:`s` and :math:`n_s` its iterations, in the short run and (primed) in the real one,

.. math:: c' = \sum_s c_s \, n'_s / n_s ,

with :math:`n'_s / n_s = 1` for stages that do not iterate. CPU seconds are read when a stage announces itself in the
log, to a tenth of a second. The seconds that pass are extrapolated alike; times the GPUs that a run holds, they are its
GPU hours.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser

from vmfseg.studies.execution import Execution
from vmfseg.studies.plan import Plan, Run
from vmfseg.utils import VmfError

__all__ = ["Cost", "estimate_costs", "planned_iterations"]

_SHORT = 20  # iterations of the short run
#: Stages that iterate, by the key of the config that says how often.
_STAGES = {"pretraining_iterations": "pretraining", "max_iterations": "training"}
_STAGE = re.compile(r"^stage \d+/\d+ (\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Cost:
    """What the runs of a method cost.

    Attributes:
        method: its name.
        runs: of it in the plan.
        cpu_hours: of one run.
        gpu_hours: of one run, 0 for a study whose ``resources`` have no GPU.
        memory_gb: peak of the short run.
    """

    method: str
    runs: int
    cpu_hours: float
    gpu_hours: float
    memory_gb: float


def estimate_costs(plan: Plan, on_method: Callable[[str], None] | None = None) -> list[Cost]:
    """Time a short run of each method and return what its runs will cost.

    Args:
        plan: the runs.
        on_method: called with the name of each method before it is timed.

    Raises:
        VmfError: the error of a short run that fails; the real one would fail too.
    """
    different = {run.name: run for run in plan.runs}.values()
    counts = Counter(run.cell.method for run in different)
    first = {run.cell.method: run for run in reversed(list(different))}
    found = []
    for method in plan.study.methods:
        if on_method is not None:
            on_method(method.name)
        found.append(_time(plan, first[method.name], counts[method.name]))
    return found


def _time(plan: Plan, run: Run, count: int) -> Cost:
    config = {**run.decides["config"], "dataset_dir": plan.data.root, "cache_dir": "", "num_workers": 0}
    planned = planned_iterations(config)
    short = {key: min(_SHORT, count) for key, count in planned.items()}
    ratios = {_STAGES[key]: planned[key] / short[key] for key in planned}
    short["epoch_length"] = min(_SHORT, int(config["epoch_length"]))
    with tempfile.TemporaryDirectory(prefix="vmfseg-plan-") as place:
        plan.write_shared(Path(place))
        timed = replace(run, overrides={**run.overrides, **short}, name="timed")
        folder = plan.prepare(timed, Path(place))
        marks, result = _watch(folder, plan.study.resources.cpus)
        if result["error"] is not None:
            raise VmfError(**{**result["error"], "subject": f"timed run of {run.cell.method}"})
    cpu = _extrapolate([(stage, cpu) for stage, cpu, _ in marks], float(result["cpu_seconds"]), ratios)
    passed = _extrapolate([(stage, passed) for stage, _, passed in marks], float(result["seconds"]), ratios)
    gpu = plan.study.resources.gpus * passed
    return Cost(run.cell.method, count, cpu / 3600, gpu / 3600, result["peak_memory_mb"] / 1000)


def planned_iterations(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the iterations of each stage that has some, by its key; an expression is evaluated as MONAI would."""
    found = {}
    for key in _STAGES:
        value = config.get(key)
        if isinstance(value, str):
            value = ConfigParser(dict(config)).get_parsed_content(key)
        if value:
            found[key] = int(value)
    return found


def _watch(folder: Path, cpus: int) -> tuple[list[tuple[str, float, float]], dict[str, Any]]:
    """Execute a run and return the CPU seconds and the seconds after which each stage began, and its result."""
    start, execution, marks = time.monotonic(), Execution(folder, cpus), dict[str, tuple[float, float]]()
    try:
        while (result := execution.poll()) is None:
            text = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
            for stage in _STAGE.findall(text):
                marks.setdefault(stage, (execution.cpu_seconds(), time.monotonic() - start))
            time.sleep(0.1)
    finally:
        execution.stop()
    return [(stage, *seconds) for stage, seconds in marks.items()], result


def _extrapolate(marks: list[tuple[str, float]], total: float, ratios: Mapping[str, float]) -> float:
    """Return the seconds of the real run, CPU seconds or those that pass.

    Example:
        >>> _extrapolate([("training", 5.0), ("evaluation", 15.0)], 20.0, {"training": 30.0})
        310.0
    """
    ends = [*(second for _, second in marks[1:]), total]
    before = marks[0][1] if marks else total
    return before + sum((end - start) * ratios.get(stage, 1.0) for (stage, start), end in zip(marks, ends, strict=True))
