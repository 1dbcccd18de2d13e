# SPDX-License-Identifier: Apache-2.0
"""prepare_experiment: from a folder, or from nothing, to four parts that do not overlap."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from vmfseg.data import FolderDataset, prepare_experiment
from vmfseg.data.experiment import Experiment, cache_folder
from vmfseg.utils import VmfError

LABELS = {"1": "LV", "2": "MYO", "3": "RV"}


@pytest.fixture
def scans(save_volume, scan, heart, tmp_path):
    """Return a function that writes a folder of scans: (labelled subjects by domain, unlabelled ones)."""

    def make(labeled: dict[str, int], unlabeled: dict[str, int] | None = None, label_map: bool = False) -> Path:
        rows, number = [], 0
        for with_label, counts in ((True, labeled), (False, unlabeled or {})):
            for domain, count in counts.items():
                for _ in range(count):
                    number += 1
                    name = f"scans/s{number:02d}"
                    save_volume(f"{name}.nii.gz", scan(seed=number))
                    row = {"image": f"s{number:02d}.nii.gz", "domain": domain, "subject": f"s{number:02d}"}
                    if with_label:
                        save_volume(f"{name}_gt.nii.gz", heart() * (85 if label_map else 1))
                        row["label"] = f"s{number:02d}_gt.nii.gz"
                    rows.append(row)
        table = {"labels": LABELS, "rows": rows}
        if label_map:
            table["label_map"] = {"85": 1, "170": 2, "255": 3}
        (tmp_path / "scans" / "scans.json").write_text(json.dumps(table))
        return tmp_path / "scans"

    return make


def test_a_datalist_that_lies_elsewhere_is_the_same_data(scans, tmp_path):
    folder = scans({"A": 2, "B": 2, "C": 1})
    file = tmp_path / "elsewhere" / "datalist.json"
    FolderDataset(folder).datalist().save(file)
    assert _prepare(file).fingerprint == _prepare(folder).fingerprint
    assert _prepare(file).target == _prepare(folder).target


def _subjects(rows):
    return {row["subject"] for row in rows}


def _prepare(folder: Path, target: str = "C", **kwargs) -> Experiment:
    return prepare_experiment("folder", folder, target, **{"quiet": True, **kwargs})


def test_the_parts_are_disjoint_and_only_the_right_ones_have_masks(scans):
    experiment = _prepare(scans({"A": 4, "B": 4, "C": 2}, {"A": 1}), labeled_fraction=0.5)
    parts = [experiment.labeled, experiment.unlabeled, experiment.validation, experiment.target]
    people = [_subjects(part) for part in parts]
    assert all(people)
    assert sum(map(len, people)) == len(set().union(*people)) == 11
    assert all("label" in row for part in (parts[0], parts[2], parts[3]) for row in part)
    assert not any("label" in row for row in experiment.unlabeled + experiment.images)
    assert {row["domain"] for row in experiment.target} == {"C"}
    assert "C" not in {row["domain"] for part in parts[:3] for row in part}
    assert all(Path(row["image"]).is_absolute() for part in parts for row in part)


def test_images_are_all_training_images_once_and_weak_rows_have_masks(scans):
    experiment = _prepare(scans({"A": 4, "B": 4, "C": 2}, {"A": 1}))
    images = [row["image"] for row in experiment.images]
    assert len(images) == len(set(images))
    assert set(images) == {row["image"] for row in experiment.labeled + experiment.unlabeled}
    assert _subjects(experiment.weak) == _subjects(experiment.labeled) | (_subjects(experiment.unlabeled) - {"s11"})
    assert all("label" in row for row in experiment.weak)


def test_classes_and_their_number_come_from_the_data(scans):
    experiment = _prepare(scans({"A": 2, "C": 1}))
    assert experiment.labels == {0: "background", 1: "LV", 2: "MYO", 3: "RV"}
    assert experiment.num_classes == 4
    assert not experiment.is_phantom


def test_the_label_map_of_a_table_reaches_every_part(scans):
    experiment = _prepare(scans({"A": 3, "B": 2, "C": 1}, label_map=True))
    for part in (experiment.labeled, experiment.validation, experiment.target, experiment.weak):
        assert all(row["label_map"] == {85: 1, 170: 2, 255: 3} for row in part)


def test_empty_parts_are_replaced_and_said(scans, capsys):
    experiment = _prepare(scans({"A": 1, "C": 1}), labeled_fraction=1.0, quiet=False)
    out = capsys.readouterr().out
    assert "source domains A (1 labelled, 0 unlabelled, 0 validation subjects), unseen domain C (1 subjects)" in out
    assert out.count("stand in for them") == 1
    assert out.count("the labelled images choose the model") == 1
    assert _subjects(experiment.unlabeled) == _subjects(experiment.validation) == {"s01"}
    assert not any("label" in row for row in experiment.unlabeled)


def test_full_parts_say_one_line(scans, capsys):
    _prepare(scans({"A": 4, "C": 1}), quiet=False)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_fingerprint_follows_the_voxels_and_the_split_and_nothing_else(scans, save_volume, scan, tmp_path):
    folder = scans({"A": 4, "B": 4, "C": 1})
    first = _prepare(folder).fingerprint
    assert _prepare(folder).fingerprint == first
    other = _prepare(folder, labeled_fraction=0.25).fingerprint
    assert (other["data"], other["split"] == first["split"]) == (first["data"], False)
    moved = tmp_path / "moved"
    folder.rename(moved)
    assert _prepare(moved).fingerprint == first
    moved.rename(folder)
    save_volume("scans/s01.nii.gz", scan(seed=99))
    changed = _prepare(folder).fingerprint
    assert (changed["split"], changed["data"] == first["data"]) == (first["split"], False)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (
            {"dataset": "mnm"},
            ValueError,
            "dataset must be one of mnms, scgm, hearts, cords, folder, got 'mnm'. Did you mean 'mnms'?",
        ),
        ({"protocol": "papr"}, ValueError, "Did you mean 'paper'?"),
        ({"dataset": "folder"}, VmfError, "a folder of your own scans is needed"),
    ],
)
def test_bad_arguments_are_named(arguments, error, match):
    with pytest.raises(error) as caught:
        prepare_experiment(**arguments)
    assert match in str(caught.value)


def test_the_cache_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("VMFSEG_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("VMFSEG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "vmfseg"


def test_without_a_folder_the_phantom_is_made_once_and_announced(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("VMFSEG_CACHE", str(tmp_path))
    phantom = {"subjects": 4, "size": 32, "frames": 2, "workers": 1}
    experiment = prepare_experiment(phantom=phantom, labeled_fraction=0.5)
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("no --dataset_dir given: using the built-in mnms phantom, ")
    assert "--dataset_dir takes your data" in line
    assert experiment.is_phantom
    assert {row["domain"] for row in experiment.target} == {"D"}
    folder = next(tmp_path.iterdir())
    stamps = {path: path.stat().st_mtime_ns for path in folder.rglob("*.nii.gz")}
    assert stamps
    again = prepare_experiment(phantom=phantom, labeled_fraction=0.5, quiet=True)
    assert again.fingerprint == experiment.fingerprint
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.nii.gz")} == stamps
    assert all(np.isfinite(row["frame"]) for row in experiment.labeled)


def _given(folder: Path, labeled: str, validation: str = "") -> dict:
    def rows(names: str) -> list[dict[str, str]]:
        return [
            {"image": str(folder / f"s0{n}.nii.gz"), "label": str(folder / f"s0{n}_gt.nii.gz")} for n in names.split()
        ]

    labels = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}
    return {"given": [rows(labeled), rows(validation)], "labels": labels, "quiet": True}


def test_given_rows_are_all_there_is(scans, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VMFSEG_CACHE", str(tmp_path / "cache"))
    arguments = _given(scans({"A": 4}), "1 2", "2 3")
    labeled, validation = arguments["given"]
    experiment = prepare_experiment("mnms", **{**arguments, "quiet": False})
    assert [row["image"] for row in experiment.labeled] == [row["image"] for row in labeled]
    assert [row["image"] for row in experiment.validation] == [validation[1]["image"]], "2 is learnt from"
    assert [row["image"] for row in experiment.images] == [row["image"] for row in labeled]
    assert experiment.target == []
    assert not experiment.is_phantom
    assert experiment.labels[3] == "RV"
    assert not (tmp_path / "cache").exists(), "no phantom is made"
    assert "no unseen domain" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("labeled", "code"), [([], "VMF292"), ([{"image": "a.nii.gz"}], "VMF280"), ("1 9", "VMF281")], ids=str
)
def test_given_rows_that_are_none(scans, labeled, code):
    arguments = _given(scans({"A": 2}), labeled if isinstance(labeled, str) else "", "1")
    if not isinstance(labeled, str):
        arguments["given"][0] = labeled
    with pytest.raises(VmfError) as refusal:
        prepare_experiment(**arguments)
    assert refusal.value.code == code


def test_given_rows_need_names_of_their_classes(scans):
    with pytest.raises(VmfError, match=r"VMF292[\s\S]*no class names"):
        prepare_experiment(**{**_given(scans({"A": 2}), "1"), "labels": None})


@pytest.mark.parametrize("given", [None, [[], []], [None, None]], ids=str)
def test_nothing_given_is_the_data_set_and_labels_must_agree_with_it(scans, given):
    folder = scans({"A": 4, "B": 4, "C": 2})
    names = {"0": "background", **LABELS}
    assert _prepare(folder, given=given, labels=names).fingerprint == _prepare(folder).fingerprint
    assert len(_prepare(folder, given=given, labels=list(names.values())).target) == 2
    with pytest.raises(VmfError, match=r"VMF280[\s\S]*labels background, GM; data set background, LV, MYO, RV"):
        _prepare(folder, given=given, labels={0: "background", 1: "GM"})


def test_given_rows_may_have_channels_and_annotated_slices(scans):
    arguments = _given(scans({"A": 3}), "1", "2")
    row = arguments["given"][0][0]
    row.update(image=[row["image"], row["image"].replace("s01", "s03")], slices="1-2", annotated=[1, 2])
    (labeled,) = prepare_experiment(**arguments).labeled
    assert labeled["image"] == row["image"]
    assert json.loads(labeled["slices"]) == {"1": "1-2", "2": "1-2", "3": "1-2"}
    assert labeled["annotated"] == [1, 2]


def test_an_unread_domain_is_neither_learnt_from_nor_scored(scans):
    folder = scans({"A": 2, "B": 2, "C": 1, "D": 2}, {"A": 1, "D": 1})
    without = _prepare(folder, unread_domain="D", labeled_fraction=0.5)
    rows = [*without.labeled, *without.unlabeled, *without.validation, *without.target, *without.images]
    assert {row["domain"] for row in rows} == {"A", "B", "C"}
    assert "D" in {row["domain"] for row in _prepare(folder, labeled_fraction=0.5).images}
    with pytest.raises(VmfError, match="VMF290"):
        _prepare(folder, unread_domain="E")
    with pytest.raises(VmfError, match="VMF290"):
        _prepare(folder, "D", unread_domain="D")


def test_shared_subjects_bring_unlabelled_scans_of_labelled_ones_but_none_of_the_target(scans):
    folder = scans({"A": 1, "B": 1, "C": 1})
    table = json.loads((folder / "scans.json").read_text())
    for row in list(table["rows"]):
        again = folder / f"again_{row['image']}"
        again.write_bytes((folder / row["image"]).read_bytes())
        table["rows"].append({"image": again.name, "domain": row["domain"], "subject": row["subject"]})
    (folder / "scans.json").write_text(json.dumps(table))
    shared = _prepare(folder, labeled_fraction=1.0, shared_subjects=True)
    assert sorted(Path(row["image"]).name for row in shared.unlabeled) == ["again_s01.nii.gz", "again_s02.nii.gz"]
    assert [Path(row["image"]).name for row in shared.target] == ["s03.nii.gz"]
    assert not _prepare(folder, labeled_fraction=1.0).split.unlabeled
