# SPDX-License-Identifier: Apache-2.0
"""MONAI's own tools accept the bundles: properties, shapes, exports, loading."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from conftest import BUNDLES, NETWORK, TINY
from monai.bundle import ConfigParser, ConfigWorkflow, ckpt_export, load, onnx_export, verify_net_in_out
from monai.data import load_net_with_metadata

from vmfseg.bundle.compile import bundle_names
from vmfseg.bundle.runtime import find_root
from vmfseg.model import Model
from vmfseg.utils import VmfError

NAMES = bundle_names()
FIRST = [name if name == "vmfnet_mnms" else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
HEADS = [name if name in ("vmfnet_mnms", "weak_mnms") else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.fixture
def model(copied, one_thread):
    """Return a function that gives a copied bundle with a tiny model of random weights, and its network."""

    def make(name):
        bundle = copied(name)
        parser = ConfigParser(json.loads((bundle / "configs" / "train.json").read_text()))
        parser.update({**NETWORK, "image_size": 64})
        network, before, after = (
            parser.get_parsed_content(part) for part in ("network_def", "preprocessing", "postprocessing")
        )
        described = Model.describe(network, before, after, parser.get("labels"), 1, (64, 64), name=name)
        described.save(bundle / "models", network.eval().state_dict())
        return bundle, network

    return make


def _properties(bundle, kind, **keys):
    file = {"train": "train.json", "infer": "inference.json"}[kind]
    workflow = ConfigWorkflow(str(bundle / "configs" / file), workflow_type=kind, **keys)
    workflow.initialize()
    assert workflow.check_properties() == []
    assert Path(workflow.bundle_root).resolve() == bundle
    assert sorted(workflow.channel_def.values())[0] in ("GM", "LV")
    assert not (bundle / "output").exists(), "looking at a config writes nothing"
    assert not (bundle / "eval").exists()
    return workflow


@pytest.mark.parametrize("name", FIRST)
def test_all_required_properties_resolve(name, phantoms, model, monkeypatch):
    bundle, network = model(name)
    monkeypatch.chdir(bundle)
    data = str(phantoms[name.split("_")[1]])
    _properties(bundle, "train", dataset_dir=data, pixdim=4.0, **TINY)
    workflow = _properties(bundle, "infer", dataset_dir=data)
    found = workflow.network_def.state_dict()
    assert all(torch.equal(found[key], value) for key, value in network.state_dict().items())
    item = workflow.preprocessing(workflow.dataset_data[0])["image"]
    assert item.shape[:3] == (1, 64, 64)
    assert workflow.evaluator.predictor is workflow.parser.get_parsed_content("predictor")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("nnunet")])  # its package plans it
def test_network_takes_and_gives_what_metadata_says(name, one_thread):
    configs = BUNDLES / name / "configs"
    verify_net_in_out("network_def", str(configs / "metadata.json"), str(configs / "train.json"), device="cpu")


@pytest.mark.parametrize("name", HEADS)
def test_the_zoos_checks_pass_on_a_trained_bundle(name, model, monkeypatch):
    """In the bundle's folder, as the zoo runs them: shapes, export to TorchScript and ONNX, loading."""
    bundle, network = model(name)
    monkeypatch.chdir(bundle)
    metadata = json.loads((bundle / "configs" / "metadata.json").read_text())
    size = metadata["network_data_format"]["inputs"]["image"]["spatial_shape"]
    image = torch.rand(1, 1, *size)
    files = {"meta_file": "configs/metadata.json", "config_file": "configs/inference.json"}
    verify_net_in_out("network_def", device="cpu", **files)
    ckpt_export("network_def", "models/model.ts", ckpt_file="models/model.pt", **files)
    onnx_export("network_def", "models/model.onnx", ckpt_file="models/model.pt", **files)
    with torch.no_grad():
        expected = network(image)
        scripted, carried, _ = load_net_with_metadata("models/model.ts")
        torch.testing.assert_close(scripted(image), expected, atol=1e-5, rtol=1e-4)
    assert carried["bundle"] == name
    session = onnxruntime.InferenceSession("models/model.onnx")
    (logits,) = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)

    tiny = {key.removeprefix("network_def::"): value for key, value in NETWORK.items()}
    for kind, override in (("train", tiny), ("inference", {})):
        loaded = load(name, bundle_dir=bundle.parent, workflow_type=kind, device="cpu", net_override=override).eval()
        with torch.no_grad():
            torch.testing.assert_close(loaded(image), expected)


def test_a_bundle_is_found_from_its_parent_and_from_inside(copied, monkeypatch):
    bundle = copied("weak_mnms")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "_mnms" not in entry])  # left there by MONAI
    monkeypatch.chdir(bundle)
    assert find_root("weak_mnms") == "."
    (bundle.parent / "bundles").mkdir()
    bundle.rename(bundle.parent / "bundles" / bundle.name)
    monkeypatch.chdir(bundle.parent)
    assert find_root("weak_mnms") == "bundles/weak_mnms"
    with pytest.raises(VmfError, match="VMF302"):
        find_root("no_such_bundle")
