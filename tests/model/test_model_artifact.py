# SPDX-License-Identifier: Apache-2.0
"""The manifest of a model: built exactly as trained, and nothing of it executed."""

from __future__ import annotations

import json
import pickle
from importlib.util import find_spec

import nibabel as nib
import numpy as np
import pytest
import torch
from inference_bundle import (
    edit_manifest,
    tiny_definition,
    tiny_model,
    tiny_network,
    write_tiny_bundle,
)
from monai.bundle import ConfigParser
from safetensors.torch import save_file

from vmfseg.model import Model, Predictor
from vmfseg.model.artifact import find_bundle
from vmfseg.model.definitions import build, definition_of, is_allowed, record_definitions, settings_of
from vmfseg.model.scan import write_label
from vmfseg.model.weights import find_weights
from vmfseg.utils import VmfError

CANARY = "canary_of_the_manifest"


def code_of(call, *args, **kwargs):
    with pytest.raises(VmfError) as caught:
        call(*args, **kwargs)
    assert len(str(caught.value).splitlines()) <= 5
    return caught.value.code


HOSTILE = [
    pytest.param({"kappa": f"$open('{CANARY}', 'w')"}, "VMF322", id="expression"),
    pytest.param({"kappa": "%common.json::kappa"}, "VMF322", id="macro"),
    pytest.param({"kappa": "@channels"}, "VMF322", id="reference"),
    pytest.param({"_target_": "os.system", "command": f"touch {CANARY}"}, "VMF418", id="function of os"),
    pytest.param({"_target_": "monai.networks.nets.os.system"}, "VMF418", id="through a module of MONAI"),
    pytest.param({"_target_": "builtins.open", "file": CANARY, "mode": "w"}, "VMF418", id="builtin"),
    pytest.param({"encoder": {"_target_": "pathlib.Path", "args": [CANARY]}}, "VMF418", id="nested"),
    pytest.param({"encoder": {"_target_": "torch.load", "f": CANARY}}, "VMF418", id="loads a pickle"),
    pytest.param({"_target_": "monai.networks.nets.get_pretrained_resnet_medicalnet"}, "VMF418", id="downloads"),
    pytest.param({"_target_": "vmfseg.model.Predictor.from_bundle"}, "VMF418", id="another class of ours"),
    pytest.param({"no_such_argument": 1}, "VMF322", id="unknown argument"),
    pytest.param({"channels": [8]}, "VMF322", id="arguments that the network refuses"),
    pytest.param({"channels": [8, 16, 10**7]}, "VMF306", id="more than any memory holds"),
    pytest.param({"num_kernels": 7}, "VMF306", id="other kernels"),
]


@pytest.mark.parametrize(("changes", "code"), HOSTILE)
def test_a_network_is_built_from_plain_values_or_not_at_all(own_bundle, changes, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    definition = changes if changes.get("_target_") else {**tiny_definition(kappa=30.0), **changes}
    edit_manifest(own_bundle, network=definition)
    assert code_of(Predictor.from_bundle, own_bundle, device="cpu") == code
    assert not (tmp_path / CANARY).exists()


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ({"_target_": "monai.transforms.SaveImaged", "keys": "image", "output_dir": "."}, "VMF418"),
        ({"_target_": "LoadImaged", "keys": "image"}, "VMF418"),
        ({"_target_": "Lambdad", "keys": "image", "func": f"$lambda x: open('{CANARY}', 'w')"}, "VMF322"),
        ({"_target_": "monai.transforms.TorchVisiond", "keys": "image", "name": "ToTensor"}, "VMF418"),
        ({"_target_": "ScaleIntensityd", "keys": "image", "minv": "$0"}, "VMF322"),
        ({"_target_": "subprocess.run", "args": ["touch", CANARY]}, "VMF418"),
        ({"_target_": "SaveClassificationd", "keys": "pred", "filename": "precious.csv"}, "VMF418"),
        ("os.system", "VMF331"),
    ],
)
def test_transforms_that_touch_files_or_run_code_are_refused(own_bundle, step, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precious.csv").write_text("years of work")
    edit_manifest(own_bundle, preprocessing=[*tiny_model().preprocessing, step])
    assert code_of(Predictor.from_bundle, own_bundle, device="cpu") == code
    assert not list(tmp_path.glob(f"{CANARY}*"))
    assert (tmp_path / "precious.csv").read_text() == "years of work"


def test_a_network_too_large_for_memory_is_refused_before_it_is_allocated(own_bundle):
    huge = {"_target_": "monai.networks.nets.SwinUNETR", "in_channels": 1, "out_channels": 4, "spatial_dims": 2,
            "feature_size": 24 * 4096}  # fmt: skip
    edit_manifest(own_bundle, network=huge)
    assert code_of(Predictor.from_bundle, own_bundle, device="cpu") in ("VMF322", "VMF323")


def test_targets_beyond_the_list_need_trust():
    definition = {"_target_": "collections.Counter", "red": 1}
    assert code_of(build, definition, "network") == "VMF418"
    assert build(definition, "network", trust=True)["red"] == 1


FLAT = {"spatial_dims": 2, "in_channels": 1}
TORCHVISION = pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
DOWNLOADING = [  # by default, or by an argument of another name than pretrained
    {"_target_": "EfficientNetBN", "model_name": "efficientnet-b0", **FLAT},
    {"_target_": "monai.networks.nets.ResNetFeatures", "model_name": "resnet10", **FLAT},
    {"_target_": "monai.networks.nets.resnet18", "pretrained": True, "n_input_channels": 1, "spatial_dims": 2},
    {"_target_": "monai.networks.blocks.text_embedding.TextEncoder", "out_channels": 32, "spatial_dims": 2},
    pytest.param({"_target_": "TorchVisionFCModel", "weights": "DEFAULT"}, marks=TORCHVISION),
    pytest.param({"_target_": "monai.networks.blocks.FCN"}, marks=TORCHVISION),
]


@pytest.mark.parametrize("definition", DOWNLOADING, ids=lambda definition: definition["_target_"].rsplit(".")[-1])
def test_no_network_fetches_weights(definition, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: asked.append(host) or [])
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    assert isinstance(build(definition, "network"), torch.nn.Module)
    assert asked == []
    assert not (tmp_path / "hub").exists()


def test_the_allow_list():
    good = ["monai.networks.nets.UNet", "UNet", "ScaleIntensityRangePercentilesd", "RandGaussianNoised", "Spacingd",
            "monai.networks.nets.resnet18", "vmfseg.networks.BackboneEncoder", "EnsureTyped"]  # fmt: skip
    bad = ["os.system", "monai.bundle.run", "monai.data.PersistentDataset", "SaveImaged", "LoadImaged", "Lambdad",
           "vmfseg.bundle.start_run", "vmfseg.data.prepare_experiment", "eval", "monai.apps.download_url"]  # fmt: skip
    assert [name for name in good if not is_allowed(name)] == []
    assert [name for name in bad if is_allowed(name)] == []


class Bomb:
    def __reduce__(self):
        return (open, (CANARY, "w"))


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
    assert not (tmp_path / CANARY).exists()


def test_damaged_safetensors_are_refused_and_not_passed_over(own_bundle):
    path = own_bundle / "models" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    assert code_of(Predictor.from_bundle, own_bundle) == "VMF401"


def test_one_flipped_bit_of_the_weights_is_refused(own_bundle):
    path = own_bundle / "models" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-40] ^= 1  # the lowest bit of a number: it stays finite and fits
    path.write_bytes(content)
    with pytest.raises(VmfError, match="VMF412: the file is damaged") as caught:
        Predictor.from_bundle(own_bundle)
    assert caught.value.subject.endswith("model.safetensors")


def test_nan_weights_are_refused(own_bundle):
    state = tiny_network().state_dict()
    state["kernels.weight"][2, 3] = float("nan")
    save_file(state, own_bundle / "models" / "model.safetensors")
    with pytest.raises(VmfError, match=r"NaN or infinite values in kernels\.weight"):
        Predictor.from_bundle(own_bundle)


def test_safetensors_come_first_and_pt_stands_in(own_bundle):
    assert Model.load(own_bundle).weights.name == "model.safetensors"
    (own_bundle / "models" / "model.safetensors").unlink()
    assert Model.load(own_bundle).weights.name == "model.pt"
    (own_bundle / "models" / "model.pt").unlink()
    assert code_of(Model.load, own_bundle) == "VMF335"


@pytest.mark.parametrize(
    "entries",
    [
        {"format": "vmfseg-manifest-1"}, {"labels": {"0": "background", "2": "LV"}}, {"input": {"channels": 1}},
        {"network": None}, {"preprocessing": 3}, {"labels": []},
    ],
)  # fmt: skip
def test_a_broken_manifest_is_named(own_bundle, entries):
    edit_manifest(own_bundle, **entries)
    assert code_of(Model.load, own_bundle) == "VMF331"


def test_weights_without_manifest_are_refused(own_bundle):
    (own_bundle / "models" / "manifest.json").unlink()
    assert code_of(Model.load, own_bundle) == "VMF331"


def test_the_weights_of_a_run_bring_their_own_manifest(own_bundle, tmp_path):
    network = tiny_network(seed=5, last_activation="none")
    model = tiny_model(
        network,
        network=tiny_definition(last_activation="none", kappa=float(network.kernels.kappa)),
        pixdim=1.5,
    )
    folder = tmp_path / "run" / "models"
    folder.mkdir(parents=True)
    model.save(folder, network.state_dict())
    for place in (folder.parent, folder, folder / "model.pt"):
        found = Model.load(own_bundle, checkpoint=place)
        assert found.network["last_activation"] == "none"
        assert found.preprocessing[1]["pixdim"] == 1.5
    assert find_weights(folder.parent) == folder / "model.safetensors"
    assert Model.load(folder.parent).weights == folder / "model.safetensors"  # --checkpoint RUN
    assert Predictor.from_bundle(folder, "cpu").labels == model.labels


def test_bundles_are_found_by_folder_file_and_name(own_bundle, monkeypatch):
    assert find_bundle(own_bundle) == own_bundle
    assert find_bundle(own_bundle / "configs" / "inference.json") == own_bundle
    monkeypatch.chdir(own_bundle.parent.parent)
    assert find_bundle("vmfnet_mnms").resolve() == own_bundle
    with pytest.raises(VmfError, match="Did you mean 'vmfnet_mnms'"):
        find_bundle("vmfnet_mms")
    with pytest.raises(VmfError, match=r"a folder without configs/metadata\.json"):
        find_bundle(own_bundle.parent)


def test_a_network_is_built_on_the_meta_device_where_it_can_be(tmp_path):
    root = write_tiny_bundle(tmp_path, tiny_network(classes=3), "vmfnet_scgm")
    model = Model.load(root)
    assert model.labels == {0: "background", 1: "GM", 2: "WM"}
    assert model.build_network().out_channels == 3


def test_definitions_are_the_resolved_values_of_the_config():
    record_definitions()
    parser = ConfigParser(
        {
            "width": 8,
            "encoder_def": {"_target_": "monai.networks.nets.UNet", "spatial_dims": 2, "in_channels": 1,
                            "out_channels": "$2 * @width", "channels": ["@width", 16], "strides": [2]},
            "network_def": {"_target_": "vmfseg.networks.VMFNet", "num_kernels": "$@width // 2",
                            "encoder": {"_target_": "vmfseg.networks.BackboneEncoder", "backbone": "@encoder_def"}},
            "preprocessing": {"_target_": "Compose", "transforms": [
                {"_target_": "ScaleIntensityd", "keys": ["image"], "dtype": "$torch.float32"},
                {"_target_": "RandGaussianNoised", "keys": "image", "prob": 0.5}]},
            "bad": {"_target_": "ScaleIntensityd", "keys": ["image"], "factor": "$object()"},
            "imports": ["$import torch"],
        }
    )  # fmt: skip
    network = definition_of(parser.get_parsed_content("network_def"), "network_def")
    assert network["num_kernels"] == 4
    assert network["encoder"]["backbone"]["out_channels"] == 16
    assert json.loads(json.dumps(network)) == network
    rebuilt = build(network, "network")
    assert rebuilt.kernels.num_kernels == 4
    chain = definition_of(parser.get_parsed_content("preprocessing"), "preprocessing")
    assert chain["transforms"][0]["dtype"] == {"_dtype_": "float32"}
    assert build(chain, "preprocessing").transforms[0].scaler.dtype == torch.float32
    with pytest.raises(VmfError, match=r"VMF320(.|\n)*bad::factor"):
        definition_of(parser.get_parsed_content("bad"), "bad")


def test_random_and_label_steps_are_left_out_of_inference(network):
    extra = [
        {"_target_": "RandGaussianNoised", "keys": "image", "prob": 1.0},
        {"_target_": "vmfseg.transforms.AsClassesd", "keys": "label", "num_classes": 4},
        {"_target_": "ScaleIntensityd", "keys": ["image"], "minv": 0.0, "maxv": 2.0},
    ]
    model = tiny_model(network, preprocessing=[*tiny_model().preprocessing, *extra])
    names = [type(step).__name__ for step in model.build_preprocessing().transforms]
    expected = ["ToSliceStackd", "InPlaneSpacingd", "PercentileNormalized", "ResizeWithPadOrCropd", "ScaleIntensityd"]
    assert names == expected


def test_settings_tell_what_from_where():
    record_definitions()
    base = {"_target_": "torch.utils.data.DataLoader", "dataset": [1, 2], "num_workers": 0, "batch_size": 2}

    def settings(**changes):
        return settings_of(ConfigParser({"loader": {**base, **changes}}).get_parsed_content("loader"))

    assert settings() == settings(num_workers=2)
    assert settings() != settings(batch_size=1)


def test_more_classes_than_a_label_map_of_bytes_holds_are_refused(own_bundle, tmp_path):
    edit_manifest(own_bundle, labels={str(value): f"class {value}" for value in range(300)})
    assert code_of(Model.load, own_bundle) == "VMF331"
    nib.save(nib.Nifti1Image(np.arange(16 * 16 * 3, dtype=np.int16).reshape(16, 16, 3), np.eye(4)), tmp_path / "a.nii")
    with pytest.raises(ValueError, match="from 0 to 255"):
        write_label(tmp_path / "b.nii.gz", np.full((16, 16, 3), 260), tmp_path / "a.nii")
