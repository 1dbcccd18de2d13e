# SPDX-License-Identifier: Apache-2.0
"""MONAI's own tools accept the bundles: properties, shapes, exports, loading."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from conftest import BUNDLES, TINY
from monai.bundle import ConfigParser, ConfigWorkflow, ckpt_export, load, onnx_export, verify_net_in_out
from monai.data import load_net_with_metadata

from vmfseg.bundle.compile import bundle_names
from vmfseg.bundle.runtime import find_root
from vmfseg.utils import VmfError

NAMES = bundle_names()
FIRST = [name if name == "vmfnet_mnms" else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
HEADS = [name if name in ("vmfnet_mnms", "weak_mnms") else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
NETWORK = {key: value for key, value in TINY.items() if key != "image_size"}


@pytest.fixture
def model(copied, one_thread):
    """Return a function that gives a copied bundle with random tiny weights, and its network."""

    def make(name):
        bundle = copied(name)
        parser = ConfigParser({**json.loads((bundle / "configs" / "inference.json").read_text()), **NETWORK})
        network = parser.get_parsed_content("network_def").eval()
        torch.save(network.state_dict(), bundle / "models" / "model.pt")
        return bundle, network

    return make


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize(("kind", "file"), [("train", "train.json"), ("infer", "inference.json")])
def test_all_required_properties_resolve(name, kind, file, phantoms, copied, tmp_path):
    bundle = copied(name)
    data = phantoms[name.split("_")[1]]
    workflow = ConfigWorkflow(
        str(bundle / "configs" / file), workflow_type=kind, dataset_dir=str(data), **TINY, **{"pixdim": 4.0}
    )
    workflow.initialize()
    assert workflow.check_properties() == []
    assert workflow.bundle_root == str(bundle)
    assert sorted(workflow.channel_def.values())[0] in ("GM", "LV")
    assert not (bundle / "output").exists(), "looking at a config writes nothing"


@pytest.mark.parametrize("name", NAMES)
def test_network_takes_and_gives_what_metadata_says(name, one_thread):
    configs = BUNDLES / name / "configs"
    for file in ("train.json", "inference.json"):
        verify_net_in_out("network_def", str(configs / "metadata.json"), str(configs / file), device="cpu")


@pytest.mark.parametrize("name", HEADS)
def test_export_to_torchscript_and_onnx_keeps_the_logits(name, model):
    bundle, network = model(name)
    metadata = json.loads((bundle / "configs" / "metadata.json").read_text())
    image = torch.rand(1, 1, *metadata["network_data_format"]["inputs"]["image"]["spatial_shape"])
    files = {
        "ckpt_file": str(bundle / "models" / "model.pt"),
        "meta_file": str(bundle / "configs" / "metadata.json"),
        "config_file": str(bundle / "configs" / "inference.json"),
    }
    ckpt_export("network_def", str(bundle / "models" / "model.ts"), **files, **NETWORK)
    onnx_export("network_def", str(bundle / "models" / "model.onnx"), **files, **NETWORK)
    with torch.no_grad():
        expected = network(image)
        scripted, metadata, _ = load_net_with_metadata(str(bundle / "models" / "model.ts"))
        torch.testing.assert_close(scripted(image), expected, atol=1e-5, rtol=1e-4)
    assert metadata["bundle"] == name
    session = onnxruntime.InferenceSession(bundle / "models" / "model.onnx")
    (logits,) = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("kind", ["train", "inference"])
def test_load_gives_the_trained_network(name, kind, model):
    bundle, network = model(name)
    loaded = load(name, bundle_dir=bundle.parent, workflow_type=kind, device="cpu", net_override=NETWORK).eval()
    image = torch.rand(1, 1, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(loaded(image), network(image))


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
        find_root("vmfnet_mnms")
