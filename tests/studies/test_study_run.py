# SPDX-License-Identifier: Apache-2.0
"""Real runs in real processes: what is finished is never repeated, what dies is a row, and others go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import nibabel as nib
import pytest
from study_files import TINY, finish, make_bundle, plan_of, write_figures
from typer.testing import CliRunner

from vmfseg.cli.main import app
from vmfseg.data import prepare_experiment
from vmfseg.studies import make_engine, open_study, read_records, run_study
from vmfseg.studies.estimate import estimate_costs, planned_iterations
from vmfseg.studies.execution import Execution, read_result
from vmfseg.studies.local_engine import room
from vmfseg.studies.study_parts import Resources
from vmfseg.studies.table_files import write_tables
from vmfseg.utils import VmfError, read_json

RUNNER = CliRunner()


def quick(bundle: Path, **change: object) -> dict:
    """Return a study of the bundle that takes no time."""
    return {"data": "mnms", "methods": {"quick": {"bundle": str(bundle)}}, "targets": ["A"], **change}


def local(jobs: int = 2):
    return make_engine("local", Resources(memory_gb=0.5), jobs)


def starts(out: Path) -> dict[str, int]:
    """Return how often each run was started."""
    return {path.parent.name: len(path.read_text().splitlines()) for path in out.glob("runs/*/starts.txt")}


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """Return a disk of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small file system here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(file: Path) -> None:
    """Write until nothing fits on the disk."""
    with suppress(OSError), file.open("wb", buffering=0) as stream:
        while stream.write(b"\0" * 4096):
            pass


@pytest.mark.slow
def test_fates_of_runs_are_rows_and_the_others_go_on(tmp_path):
    bundle, out = make_bundle(tmp_path), tmp_path / "out"
    fates = ["", "memory", "disk", "killed", "bug", "silent"]
    plan = plan_of(quick(bundle, grid={"fate": fates}), trust=True)
    records = {dict(r.cell.changes)["fate"]: r for r in run_study(plan, out, local())}
    assert {fate: record.state for fate, record in records.items()} == {
        "": "done",
        **dict.fromkeys(fates[1:], "failed"),
    }
    assert records[""].dice == pytest.approx(read_json(records[""].folder / "metrics.json")["mean_dice"])
    codes = {fate: record.error.code for fate, record in records.items() if record.error is not None}
    assert codes == {"memory": "VMF505", "disk": "VMF501", "killed": "VMF377", "bug": "VMF900", "silent": "VMF376"}
    assert "SIGKILL" in records["killed"].error.found
    assert "something unheard of" in records["bug"].error.rule
    assert records[""].spent["cpu_seconds"] > 0.5
    before = starts(out)
    run_study(plan, out, local())
    assert starts(out) == before, "neither the finished run nor a failed one is repeated"
    again = plan_of(quick(bundle, grid={"fate": ["", "silent"]}), trust=True)
    run_study(again, out, local(), retry=True)
    changed = {name for name, count in starts(out).items() if count > before[name]}
    assert changed == {records["silent"].folder.name}
    assert read_result(records["silent"].folder)["attempts"] == 2


@pytest.mark.slow
def test_a_killed_driver_takes_its_runs_along_and_the_next_one_repeats_nothing(tmp_path):
    """Two real trainings; the driver is killed while the second is at work."""
    out, file = tmp_path / "out", tmp_path / "tiny.yaml"
    file.write_text(json.dumps(TINY))
    command = [sys.executable, "-m", "vmfseg.cli.main", "study", "run", str(file), "-o", str(out), "-j", "1"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    first = driver.stdout.readline()
    assert first.startswith("1/2 vmfnet, target A"), first
    while len(running := list(out.glob("runs/*/attempt.json"))) < 2 or not _checkpoints(running):
        time.sleep(0.05)
        assert driver.poll() is None
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    done = {path.parent: path.read_bytes() for path in out.glob("runs/*/result.json")}
    assert len(done) == 1
    interrupted = next(folder.parent for folder in running if folder.parent not in done)
    result = RUNNER.invoke(app, ["study", "run", str(file), "-o", str(out), "-j", "1"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("2/2 vmfnet, target D")
    log = (interrupted / "log.txt").read_text()
    assert "training: resumed" in log
    assert log.count("training: 4/16") == 1, "what the first attempt trained is not trained again"
    assert {folder: (folder / "result.json").read_bytes() for folder in done} == done
    records = read_records(open_study(out)[1])
    assert [record.state for record in records] == ["done", "done"]
    assert [record.spent["attempts"] for record in records] == [1, 2]
    assert "(1 resumed)" in (out / "table.md").read_text()
    shown = RUNNER.invoke(app, ["study", "status", str(out)])
    assert shown.exit_code == 0
    assert "vmfnet" in shown.output


def _checkpoints(attempts: list[Path]) -> bool:
    """Tell whether the run without a result has a checkpoint of its training."""
    open_runs = [path.parent for path in attempts if not (path.parent / "result.json").exists()]
    return any(list(folder.glob("stages/training-*/checkpoint.json")) for folder in open_runs)


def test_a_disk_that_fills_up_ends_a_study_with_6_and_costs_nothing(tmp_path, small_disk):
    """It is full before the first run, then while the second is at work, then there is room."""
    out, filler = small_disk / "out", small_disk / "filler"
    plan = plan_of(quick(make_bundle(tmp_path), seeds=[0, 1]), trust=True)
    fill(filler)
    with pytest.raises(VmfError) as caught:
        run_study(plan, out, local(1))
    assert (caught.value.code, caught.value.exit_code) == ("VMF501", 6)
    assert not list(small_disk.rglob("*.tmp"))
    assert not list(small_disk.rglob(".*"))
    filler.unlink()
    states = [record.state for record in run_study(plan, out, local(1), on_end=lambda *_: fill(filler))]
    assert states == ["done", "failed"]
    first = next(iter(out.glob("runs/*/metrics.json")))
    kept = first.read_bytes()
    with pytest.raises(VmfError, match="VMF501"):
        write_tables(out)
    filler.unlink()
    records = run_study(plan, out, local(1), retry=True)
    assert [record.state for record in records] == ["done", "done"]
    assert first.read_bytes() == kept
    assert starts(out)[first.parent.name] == 1
    assert "2 of 2 runs done" in write_tables(out)[0].read_text()


class Writing:
    """An engine that computes nothing: it writes figures."""

    def __init__(self):
        self.results, self.count = {}, 0

    def submit(self, folders):
        for folder in folders:
            cell = read_json(folder / "run.json")["cell"]
            write_figures(folder, cell["target"], cell["seed"])
            finish(folder)
            self.results[folder] = read_result(folder)
        self.count = len(folders)

    def poll(self):
        ended, self.results = self.results, {}
        return ended

    def busy(self):
        return bool(self.results)

    def stop(self):
        pass


class Disturbed(Writing):
    """An engine that tries whether a second driver could start while it is at work."""

    def submit(self, folders):
        super().submit(folders)
        command = [sys.executable, "-c", _SECOND, str(folders[0].parents[1])]
        self.second = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test_a_folder_belongs_to_one_study_and_to_one_process(tmp_path):
    bundle, out, engine = make_bundle(tmp_path), tmp_path / "out", Disturbed()
    run_study(plan_of(quick(bundle), trust=True), out, engine)
    assert engine.second == "VMF504"
    with pytest.raises(VmfError, match="demo, not other") as caught:
        run_study(plan_of(quick(bundle), "other", trust=True), out, engine)
    assert caught.value.code == "VMF373"


_SECOND = """
import sys
from pathlib import Path
from vmfseg.utils import VmfError
from vmfseg.utils.locks import locked_folder
try:
    with locked_folder(Path(sys.argv[1]), "-o"):
        print("free")
except VmfError as error:
    print(error.code)
"""


def test_a_changed_config_is_another_run_beside_the_old_one(tmp_path):
    bundle, out, engine = make_bundle(tmp_path), tmp_path / "out", Writing()
    first = run_study(plan_of(quick(bundle), trust=True), out, engine)[0]
    kept = (first.folder / "metrics.json").read_bytes()
    second = run_study(plan_of(quick(bundle, set={"max_iterations": 20}), trust=True), out, engine)[0]
    assert (engine.count, second.state) == (1, "done")
    assert second.folder != first.folder
    assert (first.folder / "metrics.json").read_bytes() == kept
    assert [record.folder for record in read_records(open_study(out)[1])] == [second.folder]
    again = run_study(plan_of(quick(bundle), trust=True), out, engine)
    assert (engine.count, again[0].folder) == (0, first.folder), "the old result still is one of the old config"


def test_a_node_with_other_versions_does_not_run(tmp_path):
    plan = plan_of(quick(make_bundle(tmp_path)), trust=True)
    folder = plan.prepare(plan.runs[0], tmp_path / "out")
    note = read_json(folder / "run.json")
    note["decides"]["versions"]["torch"] = "1.0"
    (folder / "run.json").write_text(json.dumps(note))
    with pytest.raises(VmfError, match=r"instead of 1\.0") as caught:
        Execution(folder)
    assert caught.value.code == "VMF378"


@pytest.mark.parametrize(("engine", "module", "extra"), [("ray", "ray", "ray"), ("slurm", "submitit", "slurm")])
def test_an_engine_that_is_not_installed_names_its_extra(engine, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not there
    with pytest.raises(VmfError, match=rf"vmfseg\[{extra}\]") as caught:
        make_engine(engine, Resources())
    assert caught.value.code == "VMF530"


def test_an_unknown_engine_is_refused():
    with pytest.raises(ValueError, match="Did you mean 'slurm'"):
        make_engine("slrum", Resources())


def test_slurm_that_does_not_answer_says_so(monkeypatch, tmp_path):
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VmfError, match="VMF379"):
        make_engine("slurm", Resources())


def test_memory_and_cores_bound_the_number_of_processes():
    cores = len(os.sched_getaffinity(0))
    assert room(Resources(cpus=1, memory_gb=0.001)) == cores
    assert room(Resources(cpus=10 * cores)) == 1
    assert room(Resources(memory_gb=1e6)) == 1


def test_the_command_refuses_a_wrong_study_with_a_code(tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text("data: mnms\nmethods: [vmfnt]\ntargets: [A]\n")
    result = RUNNER.invoke(app, ["study", "run", str(file), "-o", str(tmp_path / "out")])
    assert isinstance(result.exception, VmfError)
    assert result.exception.code == "VMF371"
    assert not (tmp_path / "out").exists()


def test_a_run_that_is_killed_is_a_row_the_others_go_on_and_nothing_is_repeated(tmp_path):
    file, out = tmp_path / "fails.yaml", tmp_path / "out"
    file.write_text(json.dumps(quick(make_bundle(tmp_path), grid={"fate": ["killed", ""]})))
    command = ["study", "run", str(file), "-o", str(out), "--trust"]
    for _ in range(2):
        result = RUNNER.invoke(app, command)
        assert isinstance(result.exception, VmfError)
        assert result.exception.code == "VMF374"
        assert set(starts(out).values()) == {1}, "neither the finished run nor the failed one is repeated"
    text = (out / "table.md").read_text()
    assert "1 of 2 runs done (1 failed)" in text
    assert "VMF377: the run was killed (SIGKILL" in text
    assert "VMF377" in RUNNER.invoke(app, ["study", "status", str(out)]).output
    done = next(record for record in read_records(open_study(out)[1]) if record.state == "done")
    assert done.dice == pytest.approx(read_json(done.folder / "metrics.json")["mean_dice"])
    assert done.spent["cpu_seconds"] > 0.5


@pytest.mark.slow
def test_iterations_that_a_config_computes_are_known_to_the_plan():
    """50 epochs of all source images in batches of 4, counted from the files of the phantom."""

    phantom = {"subjects": 8, "size": 48, "frames": 2, "seed": 0}
    run = plan_of({**TINY, "paper": True, "set": {"phantom": phantom, "image_size": 32}, "targets": ["A"]}).runs[0]
    images = prepare_experiment("mnms", "", "A", 0.5, phantom=phantom, quiet=True).images
    slices = sum(nib.load(row["image"]).shape[2] for row in images)
    found = planned_iterations({**run.decides["config"], "dataset_dir": "", "cache_dir": "", "num_workers": 0})
    assert found == {"pretraining_iterations": 50 * -(-slices // 4), "max_iterations": 50000}


@pytest.mark.slow
def test_a_plan_estimates_the_cost_of_a_real_run(tmp_path):
    """The estimate of a longer run of the tiny study is near what it takes."""
    content = {**TINY, "targets": ["A"], "set": {**TINY["set"], "max_iterations": 200, "epoch_length": 20}}
    file, out = tmp_path / "tiny.yaml", tmp_path / "out"
    file.write_text(json.dumps(content))
    shown = RUNNER.invoke(app, ["study", "plan", str(file)])
    assert shown.exit_code == 0, shown.output
    estimate = float(shown.output.split("estimate: ")[1].split()[0])
    cost = estimate_costs(plan_of(content))[0]
    assert (cost.runs, cost.gpu_hours) == (1, 0)
    assert estimate == pytest.approx(cost.cpu_hours, abs=0.06)
    record = run_study(plan_of(content), out, local())[0]
    assert record.spent["cpu_seconds"] == pytest.approx(3600 * cost.cpu_hours, rel=0.5)
