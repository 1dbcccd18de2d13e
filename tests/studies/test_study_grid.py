# SPDX-License-Identifier: Apache-2.0
"""A study file becomes a list of runs, or is refused before anything starts."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest
from study_files import TINY, make_bundle, plan_of

from vmfseg.studies import Plan, Study, find_data
from vmfseg.studies.published import published_dice, published_distance
from vmfseg.utils import VmfError

STUDIES = Path(__file__).parents[2] / "studies"
SMALL = {"data": "mnms", "methods": ["vmfnet"], "targets": ["A"]}

REFUSED = [
    pytest.param({"method": ["vmfnet"]}, "VMF370", "Did you mean 'methods'", id="unknown key of the study"),
    pytest.param({"methods": ["vmfnt"]}, "VMF371", "Did you mean 'vmfnet_mnms'", id="unknown method"),
    pytest.param({"targets": ["E"]}, "VMF372", "the phantom has A, B, C, D", id="target that the data lacks"),
    pytest.param(
        {"set": {"max_iteration": 5}}, "VMF110", "Did you mean 'max_iterations'", id="unknown key of the bundle"
    ),
    pytest.param({"grid": {"kapa": [1, 2]}}, "VMF110", "kapa", id="unknown key of the grid"),
    pytest.param({"grid": {"batch_size": 4}}, "VMF370", "give a list of values", id="grid without a list"),
    pytest.param({"set": {"batch_size": "$__import__('os').system('id')"}}, "VMF419", "plain values", id="expression"),
    pytest.param({"grid": {"batch_size": [4, "$1 + 1"]}}, "VMF419", "plain values", id="expression in the grid"),
    pytest.param(
        {"set": {"network_def": {"_target_": "subprocess.run", "args": "id"}}}, "VMF419", "subprocess", id="class"
    ),
    pytest.param({"set": {"seed": 3}}, "VMF370", "use seeds instead", id="axis among the settings"),
    pytest.param({"set": {"output_dir": "/"}}, "VMF370", "use -o instead", id="place among the settings"),
    pytest.param({"fractions": [5]}, "VMF370", "write 5 % as 0.05", id="percent"),
    pytest.param({"seeds": [0, 0]}, "VMF370", "name each one once", id="seed twice"),
    pytest.param({"seeds": []}, "VMF370", "at least one value", id="no seed"),
    pytest.param({"protocols": ["clear"]}, "VMF370", "Did you mean 'clean'", id="protocol"),
    pytest.param({"data": "mnm"}, "VMF370", "Did you mean 'mnms'", id="data"),
    pytest.param({"baseline": "unett"}, "VMF370", "vmfnet", id="baseline that is no method"),
    pytest.param({"resources": {"cpu": 1}}, "VMF370", "Did you mean 'cpus'", id="resource"),
    pytest.param({"resources": {"memory_gb": -1}}, "VMF370", "positive number", id="negative memory"),
    pytest.param({"methods": {"a": {"bundel": "x"}}}, "VMF370", "Did you mean 'bundle'", id="key of a method"),
    pytest.param({"table": {"rows": []}}, "VMF370", "labels", id="table without labels"),
    pytest.param({"seeds": list(range(100_001))}, "VMF370", "at most 100000", id="too many runs"),
]


@pytest.mark.parametrize(("change", "code", "word"), REFUSED)
def test_a_wrong_study_is_refused_before_anything_starts(change, code, word):
    with pytest.raises(VmfError) as caught:
        plan_of({**SMALL, **change}).runs  # noqa: B018
    assert caught.value.code == code
    assert word in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 5


def test_a_study_with_its_own_scans_needs_their_folder():
    table = {"labels": {"1": "LV"}, "rows": [{"image": "a.nii.gz", "domain": "A"}]}
    with pytest.raises(VmfError, match="VMF297"):
        plan_of({**SMALL, "table": table})


def test_a_data_set_without_a_target_is_refused_with_its_domains(tmp_path):
    for name in ("a.nii.gz", "b.nii.gz"):
        (tmp_path / name).write_bytes(b"x")
    rows = [{"image": "a.nii.gz", "domain": "A"}, {"image": "b.nii.gz", "domain": "B"}]
    study = {**SMALL, "targets": ["A", "C"], "table": {"labels": {"1": "LV", "2": "MYO", "3": "RV"}, "rows": rows}}
    with pytest.raises(VmfError, match="has A, B") as caught:
        plan_of(study, data=str(tmp_path))
    assert caught.value.code == "VMF372"


def test_the_grid_is_the_product_of_its_axes():
    axes = {"targets": ["A", "B"], "fractions": [0.1, 1.0], "seeds": [0, 1, 2], "protocols": ["clean", "paper"]}
    plan = plan_of({**SMALL, **axes, "methods": ["vmfnet", "vmfpseudo"], "grid": {"batch_size": [2, 4, 8]}})
    cells = [
        (r.cell.method, r.cell.target, r.cell.fraction, r.cell.seed, r.cell.protocol, *r.cell.changes)
        for r in plan.runs
    ]
    sizes = [("batch_size", size) for size in (2, 4, 8)]
    wanted = itertools.product(["vmfnet", "vmfpseudo"], *axes.values(), sizes)
    assert sorted(map(repr, cells)) == sorted(map(repr, wanted))
    assert len({run.name for run in plan.runs}) == len(plan.runs) == 144
    run = next(r for r in plan.runs if r.cell.target == "B" and dict(r.cell.changes)["batch_size"] == 8)
    assert (run.overrides["target_domain"], run.overrides["batch_size"]) == ("B", 8)


def test_a_domain_that_is_not_read_is_no_target():
    study = Study.parse({**SMALL, "targets": ["A", "B"], "grid": {"unread_domain": ["A", "B", "C"]}}, "demo")
    pairs = [(cell.target, dict(cell.changes)["unread_domain"]) for cell in study.cells()]
    assert pairs == [("A", "B"), ("A", "C"), ("B", "A"), ("B", "C")]


def test_what_decides_a_result_changes_the_folder_and_nothing_else_does(tmp_path):
    def name(data: str = "", **change):
        return plan_of({**SMALL, **change}, data=data).runs[0].name

    base = name()
    assert name(title="Another", note="x", resources={"cpus": 2}, published="mnms") == base
    assert name(set={"num_workers": 2, "cache_dir": "/somewhere"}) == base
    assert name(set={"batch_size": 4}) == base, "the value that it has anyway"
    different = [
        name(set={"batch_size": 2}), name(seeds=[1]), name(targets=["B"]), name(fractions=[0.5]), name(paper=True),
        name(protocols=["paper"]), name(set={"network_def::kappa": 3.0}),
    ]  # fmt: skip
    assert len({base, *different}) == 8


def test_other_scans_are_other_runs(tmp_path):
    rows = [{"image": f"{d}.nii.gz", "domain": d} for d in "AB"]
    study = {**SMALL, "table": {"labels": {"1": "LV", "2": "MYO", "3": "RV"}, "rows": rows}}
    names = []
    for content in (b"1", b"2", b"1"):
        for domain in "AB":
            (tmp_path / f"{domain}.nii.gz").write_bytes(content)
        names.append(plan_of(study, data=str(tmp_path)).runs[0].name)
    assert names[0] == names[2] != names[1]


def test_other_versions_are_other_runs(monkeypatch):
    before = plan_of(SMALL).runs[0].name
    monkeypatch.setattr("vmfseg.studies.plan.library_versions", lambda: {"torch": "3.0"})
    assert plan_of(SMALL).runs[0].name != before


def test_another_nnunet_in_its_own_environment_is_another_run(tmp_path, monkeypatch):
    names = set()
    for version in ("2.8.0", "2.8.1"):
        python = tmp_path / version
        python.write_text(f"""#!/bin/sh\necho '{{"nnunetv2": "{version}", "torch": "2.13.0"}}'\n""")
        python.chmod(0o755)
        monkeypatch.setenv("VMFSEG_NNUNET_PYTHON", str(python))
        run = plan_of({**SMALL, "methods": ["nnunet"]}).runs[0]
        assert run.decides["versions"]["nnunetv2"] == version
        names.add(run.name)
    assert len(names) == 2


def test_other_starting_weights_are_other_runs(tmp_path):
    weights, names = tmp_path / "model.safetensors", []
    for content in (b"1", b"2"):
        weights.write_bytes(content)
        names.append(plan_of({**SMALL, "set": {"init": str(weights)}}).runs[0].name)
    assert names[0] != names[1]


def test_a_thousand_runs_are_planned_in_two_seconds():
    axes = {"targets": ["A", "B", "C", "D"], "seeds": list(range(25)), "fractions": [0.02, 0.05, 0.1, 0.5, 1.0]}
    study = Study.parse({**SMALL, "methods": ["vmfnet", "vmfpseudo"], **axes}, "large")
    data, start = find_data(study), time.process_time()
    runs = Plan(study, data).runs
    assert time.process_time() - start < 2
    assert len({run.name for run in runs}) == 1000


def test_a_bundle_of_ones_own_needs_trust(tmp_path):
    study = {**SMALL, "methods": {"quick": {"bundle": str(make_bundle(tmp_path))}}}
    with pytest.raises(VmfError, match=r"VMF41[01]"):
        plan_of(study)
    assert plan_of(study, trust=True).runs[0].bundle.endswith("quick_mnms")


def test_methods_can_be_chosen_and_keep_their_folders(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text(json.dumps({**TINY, "methods": ["vmfnet", "vmfpseudo"]}))
    whole, part = Study.load(file), Study.load(file, ["vmfpseudo"])
    assert [method.name for method in part.methods] == ["vmfpseudo"]
    names = {run.name for run in Plan(whole, find_data(whole)).runs}
    assert {run.name for run in Plan(part, find_data(part)).runs} < names
    with pytest.raises(VmfError, match="Did you mean 'vmfpseudo'"):
        Study.load(file, ["vmfpsuedo"])


@pytest.mark.parametrize("file", sorted(STUDIES.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_ready_studies_name_bundles_and_keys_that_exist(file):
    study = Study.load(file)
    if not study.table:
        assert Plan(study, find_data(study)).runs
        return
    domains = {row["domain"] for row in study.table["rows"]}
    assert set(study.targets) == domains
    plan_of(
        {
            **{k: v for k, v in study.content.items() if k != "table"},
            "targets": ["A"] if study.data == "mnms" else ["site1"],
        }
    )


def test_equal_budgets_are_stated_in_the_ready_studies():
    for file in STUDIES.glob("*.yaml"):
        study = Study.load(file)
        assert {"max_iterations", "batch_size"} <= set(study.values), file
        assert "labelled batches" in study.note
        assert "optimizer steps" in study.note


def test_published_figures_are_those_of_the_paper():
    """The averages of the paper's first table, which was typeset apart from those per target."""
    averages = {
        ("mnms", 0.02): {"nnunet": 65.94, "sdnet": 68.28, "dgnet": 72.85, "vmfpseudo": 77.97, "vmfnet": 78.43},
        ("mnms", 0.05): {"nnunet": 76.09, "sdnet": 77.47, "dgnet": 79.75, "vmfpseudo": 82.55, "vmfnet": 82.12},
        ("mnms", 1.0): {"nnunet": 84.87, "lddg": 85.38, "dgnet": 86.03, "vmfweak": 85.59, "vmfnet": 85.92},
        ("scgm", 0.2): {"nnunet": 64.85, "sdnet": 76.73, "lddg": 63.31, "dgnet": 79.58, "vmfnet": 81.11},
        ("scgm", 1.0): {"nnunet": 71.51, "saml": 80.95, "dgnet": 82.25, "vmfpseudo": 85.01, "vmfnet": 84.03},
    }  # fmt: skip
    for (data, fraction), methods in averages.items():
        for method, value in methods.items():
            assert 100 * published_dice(data, fraction, method)["average"] == pytest.approx(value, abs=0.011)
    assert published_distance("mnms", 0.02, "vmfnet")["average"] == pytest.approx(16.56, abs=0.011)
    assert published_dice("scgm", 0.2, "vmfweak") == {}
