# SPDX-License-Identifier: Apache-2.0
"""Real kills of real processes: the run that goes on ends with the very bytes of the one that was left alone."""

from __future__ import annotations

import json
import random
import signal
import subprocess

import pytest
import torch
from training_runs import checkpoints

from vmfseg.utils import sha256_file

STAGES = [
    pytest.param(r"^pretraining: (?!60)\d+/", id="pretraining"),
    pytest.param("^stage 2/5 kernels", id="kernels"),
    pytest.param("^training: 8/16", id="training"),
    pytest.param("^stage 4/5 calibration", id="calibration"),
    pytest.param("^stage 5/5 evaluation", id="evaluation"),
]


def _good(run):
    """Every checkpoint that an index names must be whole."""
    named = 0
    for index in run.output.glob("stages/*/checkpoint.json"):
        for entry in json.loads(index.read_text())["checkpoints"]:
            path = index.parent / entry["file"]
            assert sha256_file(path) == entry["sha256"]
            torch.load(path, weights_only=True)
            named += 1
    return named


def test_a_training_killed_in_the_middle_goes_on_bit_for_bit(bundle_run, undisturbed):
    run = bundle_run()
    code, _ = run.interrupt("^training: 8/16")
    assert code == -signal.SIGKILL
    assert not run.model.exists()
    assert _good(run) >= 2
    result = run.run(resume="True")
    assert result.returncode == 0, result.stderr
    assert "stage 1/5 pretraining: done already" in result.stdout
    assert "stage 3/5 training: resumed" in result.stdout
    assert "training: 4/16" not in result.stdout
    assert run.digest() == undisturbed.digest()
    assert (run.output / "metrics.json").read_bytes() == (undisturbed.output / "metrics.json").read_bytes()
    assert not list(run.output.rglob(".vmfseg-*"))


@pytest.mark.slow
@pytest.mark.parametrize("line", STAGES)
def test_a_kill_in_any_stage_costs_nothing(bundle_run, undisturbed, line):
    run = bundle_run()
    assert run.interrupt(line)[0] == -signal.SIGKILL
    _good(run)
    result = run.run(resume="True")
    assert result.returncode == 0, result.stderr
    assert run.digest() == undisturbed.digest()
    assert (run.output / "metrics.csv").read_bytes() == (undisturbed.output / "metrics.csv").read_bytes()


@pytest.mark.slow
def test_kills_at_random_times_cost_nothing(bundle_run, undisturbed):
    run, generator, kills = bundle_run(), random.Random(20), 0
    while kills < 5:
        process = run.start(resume="True")
        try:
            process.wait(timeout=generator.uniform(1, 12))
        except subprocess.TimeoutExpired:
            process.signal(signal.SIGKILL)
            process.wait()
            kills += 1
            _good(run)
            continue
        break
    assert run.run(resume="True").returncode == 0
    assert run.digest() == undisturbed.digest()


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"num_workers": 2}], ids=["again", "two workers"])
def test_the_same_seed_gives_the_same_bytes(bundle_run, undisturbed, more):
    run = bundle_run()
    result = run.run(**more)
    assert result.returncode == 0, result.stderr
    assert run.digest() == undisturbed.digest()
    names = [sorted(p.name for p in r.output.glob("stages/*")) for r in (run, undisturbed)]
    assert names[0] == names[1]


@pytest.mark.slow
def test_another_seed_gives_another_model_and_leaves_the_first(bundle_run, undisturbed):
    run = bundle_run()
    assert run.run(seed=1).returncode == 0
    assert run.digest() != undisturbed.digest()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_vmfseg_train_says_so_in_one_line(bundle_run, undisturbed, number):
    run = bundle_run()
    code, error = run.interrupt("^training: 8/16", number, program="vmfseg")
    assert code == 130
    assert error.strip() == "interrupted; --resume goes on from the last checkpoint"
    assert _good(run) >= 2
    result = run.run("vmfseg", resume=True)
    assert result.returncode == 0, result.stderr
    assert "training: resumed" in result.stdout
    assert run.digest() == undisturbed.digest()


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_costs_one_epoch(bundle_run, undisturbed):
    run = bundle_run()
    run.interrupt("^training: 12/16")
    newest = checkpoints(run.output)[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    result = run.run(resume="True")
    assert result.returncode == 0, result.stderr
    assert f"checkpoint {newest.name} is damaged; taking the one before" in result.stderr
    assert run.digest() == undisturbed.digest()


@pytest.mark.slow
def test_a_full_disk_ends_with_6_and_leaves_the_last_checkpoint(bundle_run, undisturbed):
    """The limit on file sizes stands in for a disk that fills up: writing fails with EFBIG."""
    run = bundle_run()
    run.interrupt("^training: 8/16")
    before = {path: path.read_bytes() for path in checkpoints(run.output)}
    assert before
    size = min(len(data) for path, data in before.items() if "training" in path.parent.name)
    result = run.run("vmfseg", file_limit=size // 2, resume=True)
    assert result.returncode == 6, result.stderr
    assert "VMF501: the disk is full; the previous file is unchanged" in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 5
    assert {path: path.read_bytes() for path in before} == before
    assert not list(run.output.rglob(".vmfseg-*"))
    assert run.run("vmfseg", resume=True).returncode == 0
    assert run.digest() == undisturbed.digest()


@pytest.mark.slow
def test_a_second_run_in_the_same_folder_ends_with_6(bundle_run):
    run = bundle_run()
    first = run.start()
    try:
        next(line for line in first.lines if line.startswith("stage 1/5"))
        first.signal(signal.SIGSTOP)  # alive, and it stays where it is
        second = run.run("vmfseg")
        assert second.returncode == 6
        assert "VMF504: another run works in this output folder" in second.stderr
        assert f"process {first.pid}" in second.stderr
    finally:
        first.signal(signal.SIGKILL)
        first.wait()
    assert run.run("vmfseg").returncode == 0
