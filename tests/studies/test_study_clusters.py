# SPDX-License-Identifier: Apache-2.0
"""Real clusters on one machine: Ray with two nodes of which one is killed, Slurm with a job at its time limit."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
import slurm_cluster
from study_files import TINY, make_bundle, plan_of

from vmfseg.studies import make_engine, run_study
from vmfseg.studies.study_parts import Resources
from vmfseg.utils import read_json

pytestmark = pytest.mark.slow

SMALL = Resources(cpus=1, memory_gb=0.5)
LIMIT_MINUTES = 3


def _figures(records) -> dict[str, tuple[bytes, bytes]]:
    assert {record.state for record in records} == {"done"}, [record.error for record in records]
    return {r.folder.name: tuple((r.folder / f"metrics.{e}").read_bytes() for e in ("json", "csv")) for r in records}


def test_a_ray_cluster_that_loses_a_node_gives_the_bytes_of_the_local_engine(tmp_path):
    pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray.cluster_utils import Cluster

    content = {**TINY, "targets": ["A"], "seeds": [0, 1]}
    expected = _figures(run_study(plan_of(content), tmp_path / "local", make_engine("local", SMALL, 2)))
    assert len(set(expected.values())) == len(expected) == 2
    size = {"num_cpus": 1, "memory": 2_000_000_000, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**size, "num_cpus": 0})
    try:
        nodes = [cluster.add_node(**size) for _ in range(2)]
        engine = make_engine("ray", SMALL, options={"address": cluster.address})
        poll, out = engine.poll, tmp_path / "ray"

        def poll_and_kill():
            """Kill a node as soon as both runs train, one on each."""
            logs = [path.read_text() for path in out.glob("runs/*/log.txt")]
            if len(nodes) == 2 and len(logs) == 2 and all("training: " in log for log in logs):
                cluster.remove_node(nodes.pop(), allow_graceful=False)
            return poll()

        engine.poll = poll_and_kill
        records = run_study(plan_of(content), out, engine)
        assert _figures(records) == expected
        assert len(nodes) == 1
        assert sorted(record.spent["attempts"] for record in records) == [1, 2], "one run began again on another node"
        apart = {**content, "seeds": [0]}
        engine = make_engine("ray", SMALL, options={"address": cluster.address, "shared": "no"})
        found = _figures(run_study(plan_of(apart), tmp_path / "apart", engine))
        assert found == {name: expected[name] for name in found}
        assert all((tmp_path / "apart" / "runs" / name / "models" / "model.safetensors").is_file() for name in found)
    finally:
        cluster.shutdown()


def test_a_ray_cluster_that_is_not_there_is_named(tmp_path):
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with pytest.raises(ValueError, match="VMF379"):
        make_engine("ray", SMALL, options={"address": "127.0.0.1:9"})
    with pytest.raises(ValueError, match="Did you mean 'address'"):
        make_engine("ray", SMALL, options={"adress": "auto"})


@pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing() or "-")
def test_a_slurm_job_at_its_time_limit_is_requeued_and_goes_on(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    bundle, out = make_bundle(tmp_path), tmp_path / "out"
    methods = {"slow": {"bundle": str(bundle), "set": {"fate": "slow"}}, "quick": {"bundle": str(bundle)}}
    plan = plan_of({"data": "mnms", "methods": methods, "targets": ["A"]}, trust=True)
    with tempfile.TemporaryDirectory(dir="/tmp") as place, slurm_cluster.slurm(Path(place) / "slurm") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        engine = make_engine("slurm", Resources(1, 0, 0.5, LIMIT_MINUTES / 60), options={"comment": "tests"})
        records = {record.cell.method: record for record in run_study(plan, out, engine)}
        assert {name: (r.state, r.error) for name, r in records.items()} == dict.fromkeys(methods, ("done", None))
        starts = {name: len((r.folder / "starts.txt").read_text().splitlines()) for name, r in records.items()}
        assert starts["slow"] >= 2, "its first start never ends by itself"
        assert starts["quick"] <= starts["slow"], "on a busy machine it may meet the limit too"
        assert "resume True" in (records["slow"].folder / "starts.txt").read_text()
        assert read_json(records["slow"].folder / "result.json")["attempts"] >= 2
        jobs = {read_json(r.folder / "job.json")["job"].split("_")[0] for r in records.values()}
        assert len(jobs) == 1, "one job array"


def test_submitits_local_executor_runs_a_study_without_slurm(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="the extra slurm is not installed")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    plan = plan_of(
        {"data": "mnms", "methods": {"q": {"bundle": str(make_bundle(tmp_path))}}, "targets": ["A"]}, trust=True
    )
    engine = make_engine("slurm", SMALL, options={"cluster": "local"})
    assert _figures(run_study(plan, tmp_path / "out", engine))
