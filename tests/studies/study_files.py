# SPDX-License-Identifier: Apache-2.0
"""Small studies, a bundle that takes no time, and figures that were never computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from vmfseg.metrics import summarize, write_metrics
from vmfseg.metrics.scores import ScoreRow
from vmfseg.studies import Plan, Study, find_data
from vmfseg.studies.records import STUDY_FILE
from vmfseg.utils import sha256_file, write_json

#: A real study that takes seconds a run.
TINY: dict[str, Any] = {
    "title": "Tiny",
    "data": "mnms",
    "methods": ["vmfnet"],
    "targets": ["A", "D"],
    "fractions": [0.5],
    "set": {
        "max_iterations": 8,
        "epoch_length": 2,
        "selection": "last",
        "image_size": 32,
        "pixdim": 6.0,
        "network_def::channels": [4, 8, 8],
        "network_def::hidden_channels": 4,
        "network_def::num_kernels": 4,
        "phantom": {"subjects": 8, "size": 48, "frames": 2, "seed": 0},
        "calibration_slices": 8,
    },
}

#: A bundle whose training writes figures at once, or dies in a way that its key ``fate`` says.
_SCRIPT = (
    "$runpy.run_path(@bundle_root + '/act.py')['act'](@output_dir, @target_domain, @seed, @fate, @protocol, @resume)"
)
_ACT = """
import os, signal, sys
from pathlib import Path
from vmfseg.utils import VmfError
sys.path.insert(0, {tests!r})
from study_files import write_figures

def act(output, target, seed, fate, protocol, resume):
    Path(output).mkdir(parents=True, exist_ok=True)
    with open(Path(output) / "starts.txt", "a+") as stream:
        stream.write(f"resume {{resume}}\\n")
        stream.seek(0)
        starts = len(stream.readlines())
    while fate == "slow" and starts == 1:
        signal.pause()
    if fate == "memory":
        raise VmfError("VMF505", subject="training", rule="the memory is not enough", found="9 GB", fix="buy some")
    if fate == "disk":
        raise VmfError("VMF501", subject=output, rule="the disk is full", found="No space left on device")
    if fate == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "bug":
        raise KeyError("something unheard of")
    if fate == "silent":
        return
    write_figures(Path(output), target, seed, 0.01 * seed, protocol)
"""


_READ = ("dataset", "dataset_dir", "ckpt_dir", "labeled_fraction", "max_iterations", "epoch_length", "phantom")


def make_bundle(root: Path) -> Path:
    """Write the bundle that takes no time and return its folder."""
    configs = root / "quick_mnms" / "configs"
    configs.mkdir(parents=True)
    config = {
        "imports": ["$import runpy"],
        "bundle_root": "",
        "dataset": "mnms",
        "dataset_dir": "",
        "output_dir": "",
        "ckpt_dir": "",
        "target_domain": "D",
        "labeled_fraction": 0.5,
        "seed": 0,
        "protocol": "clean",
        "max_iterations": 10,
        "epoch_length": 5,
        "fate": "",
        "phantom": {"subjects": 4, "size": 32, "frames": 2, "seed": 0},
        "resume": False,
        "read": [f"@{key}" for key in _READ],
        "training": [_SCRIPT],
    }
    (configs / "train.json").write_text(json.dumps(config))
    (configs / "metadata.json").write_text('{"version": "0.1.0", "bundle": "quick_mnms"}')
    (configs.parent / "act.py").write_text(_ACT.format(tests=str(Path(__file__).parent)))
    return configs.parent


def write_figures(folder: Path, target: str, seed: int, gain: float = 0.0, protocol: str = "clean") -> None:
    """Write ``metrics.json`` and ``metrics.csv`` as an evaluation would, with Dice near 0.8."""
    rng = np.random.default_rng([seed, ord(target[0]), round(1000 * gain) + 500])
    rows = []
    for subject in range(12):
        for phase in ("ED", "ES"):
            for label, name in ((1, "LV"), (2, "MYO"), (3, "RV")):
                dice = float(np.clip(0.8 + gain + 0.05 * rng.standard_normal(), 0, 1))
                figures = {"dice": dice, "hd_mm": 10.0 - 10 * gain, "hd95_mm": 5.0, "assd_mm": 1.0}
                volumes = {"volume_pred_ml": 50.0, "volume_true_ml": 50.0, "volume_diff_ml": 0.0}
                who = {"subject": f"{target}{subject:02d}", "domain": target, "phase": phase, "frame": 0}
                rows.append(
                    ScoreRow(
                        label=label, class_name=name, status="scored", spacing_mm=(1, 1, 8), **figures, **volumes, **who
                    )
                )
    summary = summarize(rows, {1: "LV", 2: "MYO", 3: "RV"}, "clean")
    if protocol == "paper":
        figures = {"slice_micro_dice": {"mean": 0.7 + gain}, "mask_set_distance": {"mean": 16.0}}
        summary |= {"protocol": "paper", "reference_figures": {"domains": {target: figures}}}
    write_metrics(folder, rows, summary, overwrite=True)


def finish(folder: Path, cpu_seconds: float = 40.0) -> None:
    """Write the result of a run whose figures are there."""
    note = {"cpu_seconds": cpu_seconds, "seconds": cpu_seconds, "peak_memory_mb": 500, "attempts": 1, "error": None}
    digest = sha256_file(folder / "metrics.json")
    write_json(folder / "result.json", {"format": "vmfseg-result-1", "state": "done", "metrics_sha256": digest, **note})


def plan_of(content: dict[str, Any], name: str = "demo", data: str = "", trust: bool = False) -> Plan:
    """Return the plan of a study that is given as its content."""
    study = Study.parse(content, name)
    return Plan(study, find_data(study, data), trust)


def note_study(plan: Plan, out: Path) -> None:
    """Write ``study.json`` without running anything."""
    runs = [{"name": run.name, "cell": run.cell.as_dict()} for run in plan.runs]
    content = {"format": "vmfseg-study-1", "name": plan.study.name, "content": plan.study.content, "runs": runs}
    write_json(out / STUDY_FILE, content)
