# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import nibabel as nib
import numpy as np
import pytest
import torch
from inference_bundle import SIZE, edit_manifest, smooth_slices, tiny_definition, tiny_network, write_tiny_bundle
from monai.data import load_net_with_metadata
from safetensors.torch import save_file

from vmfseg.export import export_bundle
from vmfseg.export.exporter import FORMATS
from vmfseg.model.predictor import Predictor
from vmfseg.utils import VmfError

PACKAGES = {"onnx": "onnxruntime", "openvino": "openvino"}


def slices() -> torch.Tensor:
    return smooth_slices(5, SIZE, torch.Generator().manual_seed(9))


@pytest.mark.parametrize("to", sorted(FORMATS))
def test_exports_agree_with_torch_and_say_of_what_they_were_made(own_bundle, to):
    if to in PACKAGES:
        pytest.importorskip(PACKAGES[to])
    report = export_bundle(own_bundle, to)
    assert report.max_logit_difference <= 1e-4 * max(1, report.max_logit)
    assert report.equal_labels == 1
    assert report.max_logit > 0.5  # not a comparison of zeros
    target = own_bundle / "models" / FORMATS[to]
    assert target.is_file()
    note = json.loads(target.with_name(target.name + ".json").read_text())
    assert note["preprocessing"][-1]["spatial_size"] == [SIZE, SIZE, -1]
    assert note["labels"]["3"] == "RV"
    before = target.read_bytes()
    with pytest.raises(VmfError, match="VMF503"):
        export_bundle(own_bundle, to)
    assert target.read_bytes() == before
    assert not list(target.parent.glob(".vmfseg-*"))


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_segmenting_by_another_runtime_gives_equal_labels(own_bundle, save_scan, backend):
    pytest.importorskip(PACKAGES[backend])
    path = save_scan(shape=(30, 26, 7))
    with pytest.raises(VmfError, match="VMF336") as caught:
        Predictor.from_bundle(own_bundle, backend=backend)
    assert f"--to {backend}" in caught.value.fix
    export_bundle(own_bundle, backend)
    theirs = Predictor.from_bundle(own_bundle, backend=backend)(path)
    ours = Predictor.from_bundle(own_bundle, device="cpu")(path)
    assert (theirs.labels != ours.labels).mean() < 1e-3
    assert theirs.quality["backend"] == backend
    one, other = theirs.quality["frames"][0]["signals"], ours.quality["frames"][0]["signals"]
    assert one["log_likelihood"] == pytest.approx(other["log_likelihood"], abs=1e-4)
    assert one["entropy"] == pytest.approx(other["entropy"], abs=1e-3)
    save_file(tiny_network(8).state_dict(), own_bundle / "models" / "model.safetensors")
    edit_manifest(own_bundle, sha256={})
    with pytest.raises(VmfError, match="it was made of other weights"):
        Predictor.from_bundle(own_bundle, backend=backend)


def test_torchscript_is_what_monai_loads(own_bundle, network):
    export_bundle(own_bundle, "torchscript")
    loaded, metadata, _ = load_net_with_metadata(str(own_bundle / "models" / "model.ts"))
    with torch.no_grad():
        torch.testing.assert_close(loaded(slices()), network(slices()), rtol=1e-4, atol=1e-4)
    assert metadata["bundle"] == "vmfnet_mnms"


def test_torch_export_takes_any_number_of_slices(own_bundle, network):
    export_bundle(own_bundle, "torch-export")
    program = torch.export.load(own_bundle / "models" / "model.pt2").module()
    for count in (1, 5):
        with torch.no_grad():
            torch.testing.assert_close(program(slices()[:count]), network(slices()[:count]), rtol=1e-4, atol=1e-4)


def test_onnx_has_monais_names_and_any_number_of_slices(own_bundle, network):
    runtime = pytest.importorskip("onnxruntime")
    export_bundle(own_bundle, "onnx")
    session = runtime.InferenceSession(own_bundle / "models" / "model.onnx", providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["image"]
    assert [value.name for value in session.get_outputs()] == ["pred", "activations", "log_likelihood"]
    for count in (1, 3):
        (pred,) = session.run(["pred"], {"image": slices()[:count].numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(pred, network(slices()[:count]).numpy(), rtol=1e-3, atol=1e-4)


def test_networks_with_assigned_kernels_export(tmp_path):
    pytest.importorskip("onnxruntime")
    from vmfseg.networks import VMFNet

    network = VMFNet(
        channels=(8, 16, 16), num_kernels=6, hidden_channels=8, head="assignment", reconstruct=False, seed=0
    )
    network.head.assign([0, 1, 2, 3, 0, 1])
    definition = {**tiny_definition(), "head": "assignment", "reconstruct": False}
    root = write_tiny_bundle(tmp_path, network)
    edit_manifest(root, network=definition)
    for to in ("onnx", "torchscript", "torch-export"):
        assert export_bundle(root, to).equal_labels > 0.999


def test_what_cannot_be_exported_is_refused(own_bundle, tmp_path):
    with pytest.raises(ValueError, match=r"to must be one of .*Did you mean 'onnx'"):
        export_bundle(own_bundle, "onx")
    with pytest.raises(ValueError, match="to must be openvino for int8, got onnx"):
        export_bundle(own_bundle, "onnx", int8=True)
    with pytest.raises(VmfError, match="VMF340"):
        export_bundle(own_bundle, "openvino", int8=True)
    file = tmp_path / "elsewhere" / "net.pt2"
    export_bundle(own_bundle, "torch-export", file)
    assert file.is_file()
    assert not (own_bundle / "models" / "model.pt2").exists()


def test_a_foreign_file_is_no_backend(own_bundle):
    pytest.importorskip("onnxruntime")
    from vmfseg.model.backends import OnnxBackend

    path = own_bundle / "models" / "model.onnx"
    path.write_bytes(b"no onnx at all")
    with pytest.raises(VmfError, match="VMF337"):
        OnnxBackend(path)


def test_int8_is_calibrated_on_the_bundles_own_slices_and_runs(tmp_path):
    """In programs of their own, as users run it: reduced precision may end a process that others share."""
    if find_spec("nncf") is None:
        pytest.skip("nncf is not installed")
    openvino = pytest.importorskip("openvino")
    network = tiny_network(kappa=4.0)  # smooth activations: untrained networks have near ties at every edge
    root = write_tiny_bundle(tmp_path, network)
    stored = (255 * smooth_slices(16, SIZE, torch.Generator().manual_seed(5))).round().to(torch.uint8)
    save_file({"slices": stored}, root / "models" / "calibration.safetensors")

    def vmfseg(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "vmfseg.cli.main", *map(str, arguments)], capture_output=True, text=True, check=False
        )

    done = vmfseg("export", root, "--to", "openvino", "--int8")
    assert done.returncode == 0, done.stderr
    parity = json.loads((root / "models" / "model_int8.xml.json").read_text())["parity"]
    assert (parity["int8"], parity["real"], parity["slices"]) == (True, True, 8)
    assert parity["dice"] > 0.95
    model = openvino.Core().read_model(root / "models" / "model_int8.xml")
    kinds: dict[str, int] = {}
    for layer in model.get_ordered_ops():
        if layer.get_type_name() == "FakeQuantize":
            source = layer.input_value(0).get_node().get_type_name()
            kinds[source] = kinds.get(source, 0) + 1
    # layers read eight bits after these; nothing of the vMF layer (Divide, Exp, Select, Softmax, Sqrt) and no image
    assert set(kinds) <= {"Relu", "Interpolate", "Add", "Constant", "Convert"}
    assert kinds["Relu"] >= 4
    scan = tmp_path / "scan.nii.gz"
    nib.save(nib.Nifti1Image(stored[:4, 0].permute(1, 2, 0).numpy(), np.diag([2.0, 2.0, 8.0, 1.0])), scan)
    done = vmfseg("segment", root, scan, "-o", tmp_path / "out", "--backend", "openvino-int8")
    assert done.returncode == 0, done.stderr
    assert nib.load(tmp_path / "out" / "scan_seg.nii.gz").shape == (SIZE, SIZE, 4)
