# SPDX-License-Identifier: Apache-2.0
"""A phantom teaches, a user's scans join in: which rows become what."""

from __future__ import annotations

import json

import pytest

from vmfseg.data import Datalist, prepare_experiment
from vmfseg.data.datalist import Row
from vmfseg.data.experiment_parts import own_parts
from vmfseg.utils import VmfError

GM = {"0": "background", "1": "GM", "2": "WM"}


@pytest.fixture(scope="module")
def prepare(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")

    def run(dataset_dir="", **kwargs):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VMFSEG_CACHE", str(cache))
            small = {"subjects": 2, "workers": 1}
            return prepare_experiment("cords", dataset_dir, kwargs.pop("target", ""), phantom=small, **kwargs)

    return run


@pytest.fixture
def table(save_volume, scan, heart, tmp_path):
    rows = []
    for number, (domain, labeled) in enumerate([("A", True), ("A", False), ("B", True), ("B", False)]):
        name = f"s{number}.nii.gz"
        save_volume(name, scan(seed=number))
        row = {"image": name, "domain": domain, "subject": f"s{number}"}
        if labeled:
            save_volume(f"gt_{name}", (heart() > 0).astype("uint8"))
            row["label"] = f"gt_{name}"
        rows.append(row)
    path = tmp_path / "scans.json"
    path.write_text(json.dumps({"labels": GM, "rows": rows}))
    return path


def test_without_scans_the_phantom_alone_teaches_and_chooses(prepare, capsys):
    found = prepare()
    assert found.is_phantom
    assert found.labeled == found.unlabeled == found.target == []
    assert {row["subject"] for row in found.validation}.isdisjoint({row["subject"] for row in found.images})
    assert found.validation
    assert all("label" in row for row in found.validation)
    assert not any("label" in row for row in found.images)
    assert "phantom slices drawn without end" in capsys.readouterr().out


def test_scans_are_learnt_from_and_drawn_subjects_still_choose(prepare, table, capsys):
    found, alone = prepare(table), prepare(quiet=True)
    assert not found.is_phantom
    assert [row["subject"] for row in found.labeled] == ["s0", "s2"]
    assert [row["subject"] for row in found.unlabeled] == ["s1", "s3"]
    assert not any("label" in row for row in found.unlabeled)
    assert found.target == []
    assert (found.validation, found.images) == (alone.validation, alone.images)
    assert found.fingerprint != alone.fingerprint
    assert found.fingerprint == prepare(table, quiet=True).fingerprint
    assert "own scans (2 labelled, 2 unlabelled subjects)" in capsys.readouterr().out


def test_a_named_domain_is_left_out_and_judged(prepare, table):
    found = prepare(table, target="B", quiet=True)
    assert [row["subject"] for row in found.labeled + found.unlabeled] == ["s0", "s1"]
    assert [row["subject"] for row in found.target] == ["s2"], "rows with labels are judged"


@pytest.mark.parametrize(("target", "code"), [("C", "VMF290"), ("b", "VMF290")])
def test_an_unknown_domain_is_refused(prepare, table, target, code):
    with pytest.raises(VmfError) as caught:
        prepare(table, target=target, quiet=True)
    assert caught.value.code == code


def test_other_classes_are_refused(prepare, table):
    table.write_text(table.read_text().replace('"2": "WM"', '"2": "WM", "3": "CSF"'))
    with pytest.raises(VmfError) as caught:
        prepare(table, quiet=True, labels=GM)
    assert caught.value.code == "VMF280"


def test_a_table_may_say_which_row_is_what():
    rows = (
        Row(image="a.nii", label="la.nii", domain="A", subject="a", split="unlabeled"),
        Row(image="b.nii", label="lb.nii", domain="A", subject="b", split="validation"),
        Row(image="c.nii", label="lc.nii", domain="A", subject="c"),
    )
    parts = own_parts(Datalist("own", ".", {0: "background", 1: "GM"}, rows))
    assert {part: [row.subject for row in rows] for part, rows in parts.items()} == {
        "labeled": ["c"], "unlabeled": ["a"], "validation": ["b"], "target": []
    }  # fmt: skip
    assert parts["unlabeled"][0].label is None
