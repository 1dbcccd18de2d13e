# SPDX-License-Identifier: Apache-2.0
"""``vmfseg bundle``: new bundles of the same layers, and a look before use."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from vmfseg.bundle.check import check_bundle, inspect_bundle, metadata_problems
from vmfseg.bundle.compile import bundle_names, write_bundle
from vmfseg.bundle.new import METHODS, new_bundle
from vmfseg.bundle.trust import require_trusted
from vmfseg.cli.main import app, main
from vmfseg.utils import VmfError

RUNNER = CliRunner()
NEW = ["bundle", "new", "knee", "--labels", "femur, tibia", "--spacing", "0.8", "--size", "160"]


def test_a_new_bundle_has_the_users_labels_and_grid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, [*NEW, "--target_domain", "siteC"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "160 x 160 pixels of 0.8 mm hold 128 mm" in result.output
    assert "vmfseg train bundles/knee --dataset_dir DIR --target_domain siteC" in result.output
    configs = tmp_path / "bundles" / "knee" / "configs"
    train = json.loads((configs / "train.json").read_text())
    wanted = {"dataset": "folder", "pixdim": 0.8, "image_size": 160, "target_domain": "siteC"}
    assert {key: train[key] for key in wanted} == wanted
    assert train["labels"] == {"0": "background", "1": "femur", "2": "tibia"}
    metadata = json.loads((configs / "metadata.json").read_text())
    formats = metadata["network_data_format"]
    assert formats["outputs"]["pred"]["channel_def"] == {"0": "background", "1": "femur", "2": "tibia"}
    assert formats["inputs"]["image"]["spatial_shape"] == [160, 160]
    assert list(metadata_problems(metadata)) == []
    card = (configs.parent / "docs" / "README.md").read_text()
    assert "0 background, 1 femur, 2 tibia" in card
    assert "{" not in card


@pytest.mark.parametrize("method", METHODS)
def test_new_bundles_of_all_methods_are_good(tmp_path, method):
    new_bundle("own", tmp_path, ["LV", "MYO"], 1.5, 64, method=method)
    assert inspect_bundle(tmp_path / "own") == []
    require_trusted(tmp_path / "own")


WRONG = [
    pytest.param({"name": "My Bundle"}, "name must be small letters", id="name"),
    pytest.param({"labels": ["a", "a"]}, "labels must be different", id="double label"),
    pytest.param({"labels": ["background"]}, "labels must be different", id="background"),
    pytest.param({"labels": ["$import os"]}, "labels must be different", id="expression"),
    pytest.param({"labels": ["LV'"]}, "labels must be different", id="quote"),
    pytest.param({"target_domain": "@seed"}, "target_domain must be a plain word", id="domain"),
    pytest.param({"size": 1_000_000}, "size must be a whole number up to 4096", id="large"),
    pytest.param({"labels": [""]}, "labels must be different", id="empty label"),
    pytest.param({"spacing": 0.0}, "spacing must be positive, got 0.0", id="spacing"),
    pytest.param({"size": 100}, r"pad to \(112, 112\)", id="size"),
    pytest.param({"method": "vmfnett"}, "Did you mean 'vmfnet'?", id="method"),
    pytest.param({"labeled_fraction": 5.0}, "Write 5 % as 0.05", id="fraction"),
]


@pytest.mark.parametrize(("changes", "text"), WRONG)
def test_wrong_arguments_write_nothing(tmp_path, changes, text):
    given = {"name": "own", "labels": ["a"], "spacing": 1.0, "size": 64, **changes}
    with pytest.raises(ValueError, match=text):
        new_bundle(folder=tmp_path, **given)
    assert not list(tmp_path.iterdir())


def test_an_existing_bundle_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RUNNER.invoke(app, NEW).exit_code == 0
    note = tmp_path / "bundles" / "knee" / "models" / "model.pt"
    note.write_text("trained")
    result = RUNNER.invoke(app, NEW)
    assert isinstance(result.exception, VmfError)
    assert result.exception.code == "VMF503"
    assert RUNNER.invoke(app, [*NEW, "--overwrite"]).exit_code == 0
    assert note.read_text() == "trained"


def test_build_writes_what_the_layers_say(tmp_path):
    result = RUNNER.invoke(app, ["bundle", "build", "vmfnet_scgm", "-o", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["vmfnet_scgm"]
    check_bundle("vmfnet_scgm", tmp_path)


@pytest.mark.parametrize("name", bundle_names())
def test_our_own_bundles_can_be_trusted(tmp_path, name):
    write_bundle(name, tmp_path)
    assert inspect_bundle(tmp_path / name) == []
    require_trusted(tmp_path / name)


def test_check_speaks_and_its_exit_code_is_the_worst(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("good", "broken", "hostile"):
        write_bundle("vmfnet_mnms", tmp_path / name)
    broken, hostile = (tmp_path / name / "vmfnet_mnms" / "models" for name in ("broken", "hostile"))
    (broken / "manifest.json").write_text("{")
    (hostile / "manifest.json").write_text(json.dumps({"network": {"_target_": "os.system", "command": "id"}}))
    places = {name: str(tmp_path / name / "vmfnet_mnms") for name in ("good", "broken", "hostile")}
    result = RUNNER.invoke(app, ["bundle", "check", places["good"]])
    assert (result.exit_code, "good: " in result.output) == (0, True)
    result = RUNNER.invoke(app, ["bundle", "check", places["good"], places["broken"]])
    assert result.exit_code == 4
    assert "models/manifest.json" in result.output
    assert "1 broken" in result.output
    result = RUNNER.invoke(app, ["bundle", "check", *places.values(), "--json"])
    assert result.exit_code == 5
    reports = json.loads(result.output)
    assert [report["good"] for report in reports] == [True, False, False]
    finding = reports[2]["findings"][0]
    assert (finding["code"], finding["subject"]) == ("VMF418", "models/manifest.json: network::_target_")


def test_a_name_below_bundles_is_enough_and_no_bundle_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_bundle("vmfnet_mnms", tmp_path / "bundles")
    assert RUNNER.invoke(app, ["bundle", "check", "vmfnet_mnms"]).exit_code == 0
    result = RUNNER.invoke(app, ["bundle", "check", "nothing_here"])
    assert result.exit_code == 4
    assert "VMF318: the folder or archive is no bundle" in result.output


def test_training_asks_for_trust(tmp_path, monkeypatch, capsys):
    write_bundle("vmfnet_mnms", tmp_path)
    root = tmp_path / "vmfnet_mnms"
    (root / "sitecustomize.py").write_text("raise SystemExit(99)")
    monkeypatch.setattr("sys.argv", ["vmfseg", "train", str(root)])
    with pytest.raises(SystemExit) as caught:
        main()
    error = capsys.readouterr().err
    assert caught.value.code == 5, error
    assert "VMF411" in error
    assert "sitecustomize.py" in error
    assert "--trust" in error
    assert len(error.strip().splitlines()) <= 5
