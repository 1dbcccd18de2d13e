# SPDX-License-Identifier: Apache-2.0
"""``vmfseg adapt``, and ``vmfseg train hearts`` with few labels: from scans to a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vmfseg.cli.adapt_command import adapt_model
from vmfseg.cli.main import app
from vmfseg.cli.train_command import train_bundle
from vmfseg.model import Model, Predictor
from vmfseg.model.ship import ship_model
from vmfseg.phantom import make_phantom
from vmfseg.utils import VmfError

TINY = {
    "network_def::channels": [4, 8, 8], "network_def::hidden_channels": 4, "network_def::num_kernels": 4,
    "image_size": 48, "pixdim": 1.0, "max_iterations": 2, "epoch_length": 2, "val_interval": 1, "batch_size": 2,
    "phantom": {"subjects": 4, "workers": 1}, "calibration::stage::max_volumes": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VMFSEG_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def trained(place) -> Path:
    """Return a tiny model of cords, as it is shipped."""
    train_bundle("cords", {**TINY, "output_dir": str(place / "run"), "ckpt_dir": str(place / "run" / "models")})
    ship_model(place / "run", place / "shipped", slices=2)
    return place / "shipped"


@pytest.fixture(scope="module")
def scans(place) -> Path:
    """Return a folder of drawn cords with their table."""
    return make_phantom(place / "scans", "cords", subjects=4, seed=9, workers=1)


@pytest.mark.slow
def test_a_model_is_adapted_and_the_better_one_is_kept(trained, scans, place):
    own = place / "own"
    own.mkdir()
    files = sorted(path for path in scans.glob("*.nii.gz") if "label" not in path.name)
    for name, file in zip(("p_run1", "p_run2", "q"), (files[0], files[0], files[1]), strict=True):
        shutil.copy(file, own / f"{name}.nii.gz")
    (own / "broken.nii.gz").write_bytes(files[2].read_bytes()[:2000])
    few = {"calibration::stage::max_volumes": 2}
    found = adapt_model(str(trained), [str(own)], place / "new", iterations=2, subjects=4, overrides=few)
    assert [Path(name).name for name in found["left_out"]] == ["broken.nii.gz"]
    assert len(found["scans"]) == 3
    assert set(found["before"]["predicted_dice"]) == set(found["after"]["predicted_dice"]) == {"p", "q"}
    assert found["before"]["agreement"] == {"p": pytest.approx(1.0)}, "the same scan twice"
    assert json.loads((place / "new" / "adapt.json").read_text())["helped"] is found["helped"]
    digests = {name: Predictor.from_bundle(place / name).digest for name in ("shipped", "new", "new/run/models")}
    assert digests["new"] == digests["new/run/models" if found["helped"] else "shipped"]
    assert digests["new/run/models"] != digests["shipped"]
    assert Model.load(place / "new" / "run" / "models").facts["data"]["is_phantom"] is False
    (place / "new" / "adapt.json").unlink()  # as if it had been killed while it copied the model
    (place / "new" / "models" / "manifest.json").write_text("{}")
    again = adapt_model(str(trained), [str(own)], place / "new", iterations=2, subjects=4, overrides=few)
    assert again == found
    assert Predictor.from_bundle(place / "new").digest == digests["new"]
    with pytest.raises(VmfError) as caught:
        adapt_model(str(trained), [str(own)], place / "new")
    assert caught.value.code == "VMF503"


@pytest.mark.slow
def test_few_labels_unlabelled_scans_and_phantom_train_together(trained, scans, place, capsys):
    rows = [line.split(",") for line in (scans / "datalist.csv").read_text().splitlines()]
    header, body = rows[0], rows[1:]
    label, split, domain = (header.index(name) for name in ("label", "split", "domain"))
    for number, row in enumerate(body):
        row[split], row[domain] = "", "C" if number == 3 else "A"
        row[label] = row[label] if number in (0, 3) else ""
    (place / "few.csv").write_text("\n".join(",".join(row) for row in [header, *body]) + "\n")
    shutil.copy(place / "few.csv", scans / "datalist.csv")
    train_bundle(
        "cords",
        {
            **TINY, "dataset_dir": str(scans), "target_domain": "C", "init": str(trained), "shares": {"labeled": 3},
            "output_dir": str(place / "few"), "ckpt_dir": str(place / "few" / "models"),
        },
    )  # fmt: skip
    said = capsys.readouterr().out
    assert "own scans (1 labelled, 2 unlabelled subjects)" in said
    assert "taken over" in said
    metrics = json.loads((place / "few" / "metrics.json").read_text())
    assert list(metrics["domains"]) == ["C"]


def test_a_folder_with_another_model_is_left_alone(tmp_path):
    (tmp_path / "new" / "models").mkdir(parents=True)
    result = CliRunner().invoke(app, ["adapt", "cords", str(tmp_path), "-o", str(tmp_path / "new")])
    assert getattr(result.exception, "code", "") == "VMF503"
    assert [path.name for path in (tmp_path / "new").rglob("*")] == ["models"]


def test_another_model_cannot_be_adapted(tmp_path):
    result = CliRunner().invoke(app, ["adapt", "vmfnet_mnms", str(tmp_path), "-o", str(tmp_path / "new")])
    assert result.exit_code != 0
    assert getattr(result.exception, "code", "") in ("VMF335", "VMF345")


def test_the_help_says_what_is_kept():
    result = CliRunner().invoke(app, ["adapt", "--help"])
    assert result.exit_code == 0
    assert "else the old one" in " ".join(result.output.split())
