# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json

import pytest

from vmfseg.utils import VmfError
from vmfseg.visualize.run_files import open_run, read_scores, run_experiment


def test_scores_come_back_as_they_were_written(finished):
    assert read_scores(finished.output / "metrics.csv") == finished.scores.rows


@pytest.mark.parametrize("place", ["output", "bundle"])
def test_a_run_is_found_from_its_output_and_from_its_bundle(finished, place):
    run = open_run(getattr(finished, place))
    assert run.folder == finished.output
    assert run.model.weights == finished.bundle / "models" / "model.safetensors"
    assert run.model.network == finished.model.network
    assert [row["epoch"] for row in run.epochs] == [1, 2, 3]
    assert run.notes == ()


def test_a_run_is_found_from_a_relative_path_and_a_name_below_bundles(finished, monkeypatch, tmp_path):
    monkeypatch.chdir(finished.output)
    assert open_run(".").model.name == "tiny_mnms"
    (tmp_path / "bundles").symlink_to(finished.home)
    monkeypatch.chdir(tmp_path)
    assert open_run("tiny_mnms").model.name == "tiny_mnms"


def test_a_run_with_a_model_of_its_own_uses_it_and_a_checkpoint_goes_first(finished, copied, tmp_path):
    own = tmp_path / "run"
    own.mkdir()
    for name in ("metrics.json", "metrics.csv"):
        (own / name).write_bytes((finished.output / name).read_bytes())
    assert open_run(own).model is None
    assert open_run(own, checkpoint=copied).model.weights.parent == copied / "models"
    (copied / "models").rename(own / "models")
    assert open_run(own).model.weights.parent == own / "models"
    with pytest.raises(VmfError, match="VMF330"):
        open_run(own, checkpoint=tmp_path / "nothing")


def test_a_broken_manifest_is_a_remark(copied):
    (copied / "models" / "manifest.json").write_text('{"format": "other"}')
    run = open_run(copied)
    assert run.model is None
    assert "VMF331" in run.notes[0]


def test_a_folder_with_figures_only_is_a_run_without_model(finished, tmp_path):
    for name in ("metrics.json", "metrics.csv"):
        (tmp_path / name).write_bytes((finished.output / name).read_bytes())
    run = open_run(tmp_path)
    assert (run.model, run.epochs) == (None, [])


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
        pytest.param(lambda f: (f / "metrics.csv").unlink(), "VMF352", "must hold metrics.csv", id="no table"),
        pytest.param(lambda f: (f / "metrics.json").unlink(), "VMF352", "must hold metrics.json", id="no summary"),
        pytest.param(lambda f: (f / "metrics.json").write_text("{"), "VMF301", "not valid JSON", id="damaged"),
        pytest.param(lambda f: (f / "metrics.json").write_text("[]"), "VMF353", "written by vmfseg", id="foreign"),
        pytest.param(lambda f: (f / "metrics.csv").write_text("a,b\n1,2\n"), "VMF353", "no column", id="columns"),
        pytest.param(
            lambda f: replace(f / "metrics.csv", "scored,", "scored,x"),
            "VMF353",
            "could not convert",
            id="cell",
        ),
        pytest.param(
            lambda f: replace(f / "metrics.csv", "missed,0.0", "missed,nan"),
            "VMF353",
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
    assert caught.value.code == "VMF352"


def with_data(model, **changes):
    return dataclasses.replace(model, facts={**model.facts, "data": {**model.facts["data"], **changes}})


def test_the_data_of_a_model_is_found_again(finished):
    experiment, same = run_experiment(finished.model, finished.data)
    assert experiment.fingerprint == finished.experiment.fingerprint
    assert same
    assert not run_experiment(with_data(finished.model, target_domain="C"), finished.data)[1]


def test_the_phantom_of_a_run_is_found_without_a_folder(finished, monkeypatch, tmp_path):
    (tmp_path / "phantom-mnms-frames2-seed0-size48-subjects8-workers1").symlink_to(finished.data)
    monkeypatch.setenv("VMFSEG_CACHE", str(tmp_path))
    arguments = {"frames": 2, "size": 48, "subjects": 8, "workers": 1}
    experiment, same = run_experiment(with_data(finished.model, phantom=arguments))
    assert experiment.is_phantom
    assert same


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        pytest.param({"is_phantom": False}, "VMF324", id="own data"),
        pytest.param({"dataset": "folder"}, "VMF324", id="own table"),
        pytest.param({"seed": "0"}, "VMF355", id="text for a number"),
        pytest.param({"seed": True}, "VMF355", id="bool for a number"),
        pytest.param({"target_domain": ["D"]}, "VMF355", id="list for a text"),
        pytest.param({"phantom": {"subjects": "/../../x"}}, "VMF355", id="path in a name of the cache"),
        pytest.param({"phantom": {"subjects": 10**9}}, "VMF355", id="huge"),
        pytest.param({"phantom": {"overwrite": True}}, "VMF355", id="another argument"),
    ],
)
def test_a_manifest_cannot_name_other_data(finished, monkeypatch, tmp_path, changes, code):
    monkeypatch.setenv("VMFSEG_CACHE", str(tmp_path))
    with pytest.raises(VmfError) as caught:
        run_experiment(with_data(finished.model, dataset_dir="/etc", **changes))
    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []
