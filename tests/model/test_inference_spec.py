# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import pickle

import pytest
import torch
from inference_bundle import tiny_network, write_tiny_bundle
from safetensors.torch import save_file

from vmfseg.model.predictor import Predictor
from vmfseg.model.spec import BundleSpec, find_bundle
from vmfseg.utils import VmfError


def change(bundle, **values):
    for name in ("inference.json", "train.json"):
        path = bundle / "configs" / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_network(bundle, **values):
    content = json.loads((bundle / "configs" / "inference.json").read_text())
    change(bundle, network_def={**content["network_def"], **values})


def code_of(call, *args, **kwargs):
    with pytest.raises(VmfError) as caught:
        call(*args, **kwargs)
    assert len(str(caught.value).splitlines()) <= 5
    return caught.value.code


@pytest.mark.parametrize(
    ("values", "code"),
    [
        pytest.param({"kappa": "$__import__('pathlib').Path('CANARY').touch()"}, "VMF332", id="expression"),
        pytest.param({"kappa": "%common.json::kappa"}, "VMF332", id="macro"),
        pytest.param({"kappa": "@channels_of_nothing"}, "VMF332", id="reference to nothing"),
        pytest.param({"kappa": "@kappa"}, "VMF332", id="circle"),
        pytest.param({"pixdim": "$1.0"}, "VMF332", id="expression in the slice space"),
        pytest.param({"preprocessing": []}, "VMF334", id="no slice space"),
        pytest.param(
            {"network_def": {"_target_": "os.system", "command": "touch CANARY"}}, "VMF333", id="other target"
        ),
        pytest.param({"network_def": None}, "VMF333", id="no network"),
        pytest.param({"channels": [8]}, "VMF333", id="arguments the network refuses"),
        pytest.param({"channels": [8, 16, 10**7]}, "VMF306", id="a network that no memory holds"),
        pytest.param({"num_kernels": 7}, "VMF306", id="other kernels"),
    ],
)
def test_configs_are_read_and_never_run(own_bundle, values, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    change(own_bundle, **values)
    assert code_of(Predictor.from_bundle, own_bundle, device="cpu") == code
    assert not (tmp_path / "CANARY").exists()


def test_nested_targets_are_no_values(own_bundle):
    change_network(own_bundle, encoder={"_target_": "os.getcwd"})
    assert code_of(Predictor.from_bundle, own_bundle) == "VMF333"


def test_shapes_are_named_expected_and_found(own_bundle):
    change(own_bundle, num_kernels=7)
    with pytest.raises(VmfError, match=r"kernels.weight is \(6, 8\) instead of \(7, 8\)"):
        Predictor.from_bundle(own_bundle)


class Bomb:
    def __reduce__(self):
        return (open, ("CANARY", "w"))


@pytest.mark.parametrize("kind", ["pickle", "text", "list", "empty"])
def test_weights_that_are_not_tensors_are_refused(own_bundle, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (own_bundle / "models" / "model.safetensors").unlink()
    path = own_bundle / "models" / "model.pt"
    if kind == "pickle":
        path.write_bytes(pickle.dumps({"model": Bomb()}))
    elif kind == "list":
        torch.save([1, 2, 3], path)
    else:
        path.write_bytes(b"weights" if kind == "text" else b"")
    assert code_of(Predictor.from_bundle, own_bundle) == "VMF401"
    assert not (tmp_path / "CANARY").exists()


def test_damaged_safetensors_are_refused_and_not_passed_over(own_bundle):
    path = own_bundle / "models" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    assert code_of(Predictor.from_bundle, own_bundle) == "VMF401"


def test_nan_weights_are_refused(own_bundle):
    state = tiny_network().state_dict()
    state["kernels.weight"][2, 3] = float("nan")
    save_file(state, own_bundle / "models" / "model.safetensors")
    with pytest.raises(VmfError, match=r"NaN or infinite values in kernels\.weight"):
        Predictor.from_bundle(own_bundle)


def test_safetensors_come_first_and_pt_stands_in(own_bundle):
    assert BundleSpec.load(own_bundle).weights.name == "model.safetensors"
    (own_bundle / "models" / "model.safetensors").unlink()
    assert BundleSpec.load(own_bundle).weights.name == "model.pt"
    (own_bundle / "models" / "model.pt").unlink()
    assert code_of(BundleSpec.load, own_bundle) == "VMF335"


def test_other_weights_and_their_settings(own_bundle, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    network = tiny_network(seed=5, last_activation="none")
    save_file(network.state_dict(), folder / "model.safetensors")
    (folder / "manifest.json").write_text(json.dumps({"settings": {"pixdim": 1.5, "last_activation": "none", "x": 1}}))
    spec = BundleSpec.load(own_bundle, checkpoint=folder)
    assert (spec.space["pixdim"], spec.network["last_activation"]) == (1.5, "none")
    assert spec.weights == folder / "model.safetensors"
    assert Predictor.from_bundle(own_bundle, checkpoint=folder / "model.safetensors").spec.space["pixdim"] == 1.5


def test_bundles_are_found_by_folder_file_and_name(own_bundle, monkeypatch):
    assert find_bundle(own_bundle) == own_bundle
    assert find_bundle(own_bundle / "configs" / "inference.json") == own_bundle
    monkeypatch.chdir(own_bundle.parent.parent)
    assert find_bundle("vmfnet_mnms").resolve() == own_bundle
    with pytest.raises(VmfError, match="Did you mean 'vmfnet_mnms'"):
        find_bundle("vmfnet_mms")
    with pytest.raises(VmfError, match=r"a folder without configs/metadata\.json"):
        find_bundle(own_bundle.parent)


@pytest.mark.parametrize(
    "name", ["vmfnet_mnms", "vmfpseudo_mnms", "vmfweak_mnms", "unsupervised_mnms", "weak_mnms", "vmfnet_scgm"]
)
def test_every_bundle_can_be_read(name, tmp_path):
    write_tiny_bundle(tmp_path, tiny_network(), name)
    spec = BundleSpec.load(tmp_path / name)
    network = spec.build_network()
    assert all(tensor.is_meta for tensor in network.state_dict().values())
    assert spec.labels[1] == ("GM" if "scgm" in name else "LV")
    assert len(spec.labels) == network.out_channels
