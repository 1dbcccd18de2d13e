# SPDX-License-Identifier: Apache-2.0
"""Which changes of a config make another run, which do not, and which weights a run starts from."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from conftest import BUNDLES, NETWORK
from monai.bundle import ConfigParser

from vmfseg.model import Model
from vmfseg.model.definitions import definition_of
from vmfseg.utils import VmfError
from vmfseg.utils.errors import find_vmf_error

SMALL = {**NETWORK, "image_size": 32, "pixdim": 6.0, "device": "cpu", "output_dir": "out", "ckpt_dir": ""}


def parsed(name: str, **changes: object) -> ConfigParser:
    parser = ConfigParser(json.loads((BUNDLES / name / "configs" / "train.json").read_text()))
    parser.update({**SMALL, **changes})
    return parser


@pytest.fixture(scope="module")
def folders(phantoms):
    """Return a function that gives the stage folders of a config with changes."""

    def find(name: str = "vmfnet_mnms", **changes: object) -> list[str]:
        runner = parsed(name, dataset_dir=str(phantoms["mnms"]), **changes).get_parsed_content("stages")
        return [folder.name for _, folder, _ in runner.folders()]

    return find


@pytest.fixture(scope="module")
def unchanged(folders):
    return folders()


def _with(section: str, *items: dict) -> list:
    """Return a list of the config with further objects at its end."""
    config = json.loads((BUNDLES / "vmfnet_mnms" / "configs" / "train.json").read_text())
    value = config
    for part in section.split("::"):
        value = value[part]
    return [*value, *items]


NOISE = {"_target_": "RandGaussianNoised", "keys": "image", "prob": 0.5}
ELSEWHERE = [
    pytest.param({"device": "meta", "num_workers": 2}, id="device and workers"),
    pytest.param({"output_dir": "elsewhere", "ckpt_dir": "there", "tensorboard::log_dir": "logs"}, id="folders"),
    pytest.param({"train::handlers": _with(
        "train::handlers",
        {"_target_": "StatsHandler", "name": "s"},
        {"_target_": "vmfseg.handlers.ProgressHandler", "name": "again"},
        {"_target_": "TensorBoardStatsHandler", "summary_writer": "@tensorboard", "tag_name": "other"},
    )}, id="observers"),
    pytest.param({"train::handlers": _with(
        "train::handlers",
        {"_target_": "MLFlowHandler", "tracking_uri": "http://127.0.0.1:9", "run_name": "$str(os.times())"},
    )}, id="mlflow", marks=pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")),
]  # fmt: skip


@pytest.mark.parametrize("changes", ELSEWHERE)
def test_where_a_run_works_and_who_looks_on_leave_it_the_same(folders, unchanged, changes, tmp_path):
    changes = {key: str(tmp_path / value) if key.endswith("_dir") else value for key, value in changes.items()}
    if changes.get("device") == "meta":
        changes["device"] = "$torch.device('cpu', 0)"
    assert folders(**changes) == unchanged


OTHERS = [
    pytest.param({"preprocessing::transforms::3::upper": 99.0}, 0, id="argument of a transform"),
    pytest.param({"preprocessing::transforms": _with("preprocessing::transforms", NOISE)}, 0, id="one more transform"),
    pytest.param({"augmentation::noise": 0.06}, 0, id="augmentation"),
    pytest.param({"postprocessing::transforms::0": {"_target_": "Activationsd", "keys": "pred", "softmax": True}}, 0,
                 id="postprocessing"),
    pytest.param({"network_def::kappa": 11.0}, 0, id="network"),
    pytest.param({"network::seed": 7}, 0, id="initial weights"),
    pytest.param({"train::optimizer": {"_target_": "torch.optim.SGD", "params": "$@network.parameters()", "lr": 0.001}},
                 0, id="optimizer"),
    pytest.param({"loss_ramps": {}}, 0, id="loss"),
    pytest.param({"train::handlers": _with("train::handlers", {
        "_target_": "LrScheduleHandler", "lr_scheduler": {
            "_target_": "torch.optim.lr_scheduler.StepLR", "optimizer": "@train::optimizer", "step_size": 1}})},
        0, id="a handler that changes the training"),
    pytest.param({"gradient_clip": 0.2}, 0, id="argument of a handler"),
    pytest.param({"validate::postprocessing::transforms": []}, 0, id="what chooses the model"),
    pytest.param({"seed": 1}, 0, id="seed"),
    pytest.param({"labeled_fraction": 0.9}, 0, id="split"),
    pytest.param({"calibration_slices": 8}, 1, id="calibration"),
    pytest.param({"protocol": "paper"}, 0, id="protocol"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "first"), OTHERS)
def test_other_settings_of_any_object_are_another_run(folders, unchanged, changes, first):
    found = folders(**changes)
    assert found[:first] == unchanged[:first]
    assert not set(found[first:]) & set(unchanged)


def test_the_second_network_of_a_pair_counts_too(folders):
    assert folders("vmfpseudo_mnms")[0] != folders("vmfpseudo_mnms", **{"partner::seed": 9})[0]


# --- rows that another program hands over


def _scan(folder: Path, number: int, shift: int = 0) -> dict[str, str]:
    label = np.zeros((36, 36, 3), np.uint8)
    for n in (1, 2, 3):
        label[8 * n + shift : 8 * n + 6 + shift, 8:28] = n
    noise = np.random.default_rng(number).normal(0, 5, label.shape)
    row = {"image": str(folder / f"{number}.nii.gz"), "label": str(folder / f"{number}_gt.nii.gz")}
    for key, array in (("image", (40 * label + 100 + noise).astype(np.int16)), ("label", label)):
        nib.save(nib.Nifti1Image(array, np.diag([4.0, 4.0, 10.0, 1.0])), row[key])
    return row


def test_rows_of_another_program_take_the_place_of_any_data_set(tmp_path, capsys):
    rows = [_scan(tmp_path, number) for number in range(4)]
    keys = {"train#dataset#data": rows[:3], "validate#dataset#data": rows[3:], "dataset_dir": "", "batch_size": 2}

    def made():
        parser = parsed("vmfnet_mnms", **keys)
        stage = parser.get_parsed_content("train::stage")
        return parser, stage, parser.get_parsed_content("stages").folders()[0][1]

    parser, stage, folder = made()
    assert [row["image"] for row in parser.get_parsed_content("train::dataset").rows] == [r["image"] for r in rows[:3]]
    assert [row["image"] for row in parser.get_parsed_content("validate::dataset").data] == [rows[3]["image"]]
    assert not parser.get_parsed_content("source").target
    stage.check()
    assert "phantom" not in capsys.readouterr().out
    assert made()[2] == folder
    _scan(tmp_path, 1, shift=1)  # an annotator corrects a label: the run is another one
    assert made()[2] != folder


# --- weights to start from


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a bundle with a model, and its weights."""
    parser = parsed("vmfnet_mnms", seed=5)
    network, before, after = (
        parser.get_parsed_content(part) for part in ("network", "preprocessing", "postprocessing")
    )
    bundle = tmp_path_factory.mktemp("bundle")
    Model.describe(network, before, after, parser.get("labels"), 1, (32, 32)).save(
        bundle / "models", network.state_dict()
    )
    return bundle, {name: value.clone() for name, value in network.state_dict().items()}


@pytest.mark.parametrize("place", ["", "models", "models/model.pt", "models/model.safetensors"])
def test_a_network_starts_from_a_bundle_or_a_file(trained, place, capsys):
    bundle, weights = trained
    network = parsed("vmfnet_mnms", init=str(bundle / place)).get_parsed_content("network")
    assert all(torch.equal(value, weights[name]) for name, value in network.state_dict().items())
    count = len(weights)
    groups = "composer, encoder, head, kernels"
    assert capsys.readouterr().out == f"init: taken over: {count} of {count} tensors ({groups})\n"


def test_the_head_of_other_classes_is_left_and_that_is_said(trained, capsys):
    bundle, weights = trained
    keys = {"init": str(bundle), "labels": {"0": "background", "1": "heart"}}
    network = parsed("vmfnet_mnms", **keys).get_parsed_content("network")
    fresh = parsed("vmfnet_mnms", labels=keys["labels"]).get_parsed_content("network").state_dict()
    other = sorted(name for name, value in fresh.items() if value.shape != weights[name].shape)
    assert other
    assert all(name.startswith("head.") for name in other)
    for name, value in network.state_dict().items():
        assert torch.equal(value, fresh[name] if name in other else weights[name])
    out = capsys.readouterr().out
    assert f"init: taken over: {len(weights) - len(other)} of {len(weights)} tensors" in out
    assert f"init: not taken over, another shape: {other[0]}" in out
    assert definition_of(network, "network_def")["out_channels"] == 2


UNET = {"_target_": "monai.networks.nets.UNet", "spatial_dims": 2, "in_channels": 1, "out_channels": 4,
        "channels": [4, 8], "strides": [2]}  # fmt: skip


def test_weights_of_which_nothing_fits_are_refused(trained, tmp_path):
    bundle, _ = trained
    config = json.loads((BUNDLES / "vmfnet_mnms" / "configs" / "train.json").read_text())
    for keys, code in (
        ({"network_def": UNET, "init": str(bundle)}, "VMF351"),
        ({"init": str(tmp_path / "nothing")}, "VMF335"),
    ):
        parser = ConfigParser({**config, **({"network_def": UNET} if "network_def" in keys else {})})
        parser.update({"device": "cpu", **keys})
        with pytest.raises(Exception) as caught:  # noqa: PT011 - MONAI wraps it
            parser.get_parsed_content("network")
        refusal = find_vmf_error(caught.value)
        assert isinstance(refusal, VmfError)
        assert refusal.code == code


def test_a_run_from_other_weights_is_another_run(trained, folders, unchanged, tmp_path):
    bundle, weights = trained
    found = folders(init=str(bundle))
    assert found[0] != unchanged[0]
    torch.save(weights, tmp_path / "moved.pt")
    torch.save({name: value + 1 for name, value in weights.items()}, tmp_path / "other.pt")
    here, there = (folders(init=str(tmp_path / name)) for name in ("moved.pt", "other.pt"))
    assert here[0] != there[0]
