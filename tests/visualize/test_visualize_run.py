# SPDX-License-Identifier: Apache-2.0
import json
import os

import pytest

from vmfseg.utils import VmfError
from vmfseg.visualize import open_run
from vmfseg.visualize.run import read_scores


def test_scores_come_back_as_they_were_written(finished):
    assert read_scores(finished.output / "metrics.csv") == finished.scores.rows


@pytest.mark.parametrize("place", ["output", "bundle"])
def test_a_run_is_found_from_its_output_and_from_its_bundle(finished, place):
    run = open_run(getattr(finished, place))
    assert run.folder == finished.output
    assert run.bundle == finished.bundle
    assert run.model == finished.output / "stages" / "training-0123456789ab" / "model.pt"
    assert run.manifest == finished.manifest
    assert [row["epoch"] for row in run.epochs] == [1, 2, 3]
    assert run.notes == ()


def test_a_run_is_found_from_a_relative_path(finished, monkeypatch):
    monkeypatch.chdir(finished.output)
    assert open_run(".").bundle == finished.bundle.resolve()
    monkeypatch.chdir(finished.home)
    assert str(open_run("tiny_mnms/output").bundle) == "tiny_mnms"


def test_of_several_trainings_the_published_one_counts(copied):
    newer = copied / "output" / "stages" / "training-ffffffffffff"
    newer.mkdir()
    for name, text in (("model.pt", "x"), ("manifest.json", '{"sha256": {"model.pt": "cd"}}'), ("done.json", "{}")):
        (newer / name).write_text(text)
    os.utime(newer / "done.json", (2e9, 2e9))
    assert open_run(copied).model.parent.name == "training-0123456789ab"
    (copied / "models" / "manifest.json").write_text('{"sha256": {"model.pt": "other"}}')
    run = open_run(copied)
    assert run.model.parent.name == "training-ffffffffffff"
    assert "published one is another" in run.notes[0]


def test_a_run_that_keeps_its_models_to_itself_is_not_compared_with_the_bundle(copied):
    own = copied / "output" / "models"
    own.mkdir()
    (own / "manifest.json").write_bytes((copied / "models" / "manifest.json").read_bytes())
    (copied / "models" / "manifest.json").write_text('{"sha256": {"model.pt": "other"}}')
    run = open_run(copied)
    assert run.model.parent.name == "training-0123456789ab"
    assert run.notes == ()


def test_a_folder_with_figures_only_is_a_run_without_model(finished, tmp_path):
    for name in ("metrics.json", "metrics.csv"):
        (tmp_path / name).write_bytes((finished.output / name).read_bytes())
    run = open_run(tmp_path)
    assert (run.bundle, run.model, run.manifest, run.epochs) == (None, None, {}, [])


@pytest.mark.parametrize(
    ("history", "note"),
    [
        pytest.param({"epochs": [{"epoch": 2, "validation": {"v": 0.4}}]}, "belongs to another training", id="other"),
        pytest.param({"epochs": [{"epoch": 9, "validation": {"v": 0.5}}]}, "belongs to another training", id="epoch"),
        pytest.param({"epochs": [3]}, "holds no epochs", id="strange"),
        pytest.param([], "holds no epochs", id="list"),
    ],
)
def test_curves_of_another_training_are_left_out(copied, history, note):
    (copied / "output" / "history.json").write_text(json.dumps(history))
    run = open_run(copied)
    assert run.epochs == []
    assert note in run.notes[0]


def replace(path, old, new):
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        pytest.param(lambda f: (f / "metrics.csv").unlink(), "VMF320", "must hold metrics.csv", id="no table"),
        pytest.param(lambda f: (f / "metrics.json").unlink(), "VMF320", "must hold metrics.json", id="no summary"),
        pytest.param(lambda f: (f / "metrics.json").write_text("{"), "VMF301", "not valid JSON", id="damaged"),
        pytest.param(lambda f: (f / "metrics.json").write_text("[]"), "VMF321", "written by vmfseg", id="foreign"),
        pytest.param(lambda f: (f / "metrics.csv").write_text("a,b\n1,2\n"), "VMF321", "no column", id="columns"),
        pytest.param(
            lambda f: replace(f / "metrics.csv", "scored,", "scored,x"),
            "VMF321",
            "could not convert",
            id="cell",
        ),
        pytest.param(
            lambda f: replace(f / "metrics.csv", "missed,0.0", "missed,nan"),
            "VMF321",
            "not finite",
            id="nan",
        ),
    ],
)
def test_what_is_no_run_is_refused(copied, change, code, message):
    change(copied / "output")
    with pytest.raises(VmfError, match=message) as caught:
        open_run(copied / "output")
    assert caught.value.code == code


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(VmfError, match="no such folder") as caught:
        open_run(tmp_path / "nowhere")
    assert caught.value.code == "VMF320"
