# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

sys.path.append(str(Path(__file__).parent.parent / "model"))
import torch
from inference_bundle import SIZE, smooth_slices, tiny_network, write_tiny_bundle
from plain_network import write_plain_bundle

from vmfseg.cli.main import app
from vmfseg.utils import VmfError

RUNNER = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture
def bundle(tmp_path):
    return write_tiny_bundle(tmp_path / "bundles", tiny_network())


def export(bundle, *arguments):
    return RUNNER.invoke(app, ["export", str(bundle), *map(str, arguments)])


def test_the_comparison_is_shown_and_written(bundle, tmp_path):
    result = export(bundle, "--to", "torchscript")
    assert result.exit_code == 0, result.output
    assert "slices of noise" in result.output
    assert "pixels with equal label       100.0000 %" in result.output
    again = export(bundle, "--to", "torchscript")
    assert isinstance(again.exception, VmfError)
    assert again.exception.code == "VMF503"
    shown = json.loads(export(bundle, "--to", "torchscript", "-o", tmp_path / "heart.ts", "--json").stdout)
    assert shown["format"] == "torchscript"
    assert Path(shown["path"]).is_file()
    assert json.loads((tmp_path / "heart.ts.json").read_text())["parity"]["equal_labels"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "tensorflow"), "to must be one of"),
        (("--int8",), "to must be openvino for int8, got onnx"),
        (("--vendored",), "--vendored must have a folder"),
    ],
)
def test_what_makes_no_sense_is_refused(bundle, arguments, message):
    result = export(bundle, *arguments)
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)


def test_a_bundle_goes_with_its_code(bundle, tmp_path):
    result = export(bundle, "--vendored", "-o", tmp_path / "zoo")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "zoo" / "vmfnet_mnms" / "vmfseg" / "networks" / "vmf_net.py").is_file()


@pytest.mark.parametrize("to", ["torchscript", "torch-export", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_network_without_kernels_gives_logits_alone(tmp_path, to):
    plain = write_plain_bundle(tmp_path / "bundles", channels=2)
    result = export(plain, "--to", to)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "pixels with equal label       100.0000 %" in result.output
    if to == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(plain / "models" / "model.onnx")
        assert [output.name for output in session.get_outputs()] == ["pred"]


@pytest.mark.slow
def test_int8_says_its_dice_and_segments(bundle, tmp_path):
    pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    slices = (255 * smooth_slices(16, SIZE, torch.Generator().manual_seed(3))).round().to(torch.uint8)
    save_file({"slices": slices}, bundle / "models" / "calibration.safetensors")
    result = export(bundle, "--to", "openvino", "--int8")
    assert result.exit_code == 0, result.output
    dice = float(re.search(r"Dice between the labels +([\d.]+)", result.output).group(1))
    assert 0.95 <= dice < 1, "8 bits are not 32"
    assert "8 source-validation slices" in result.output, "half of them calibrate, the other half judge"
    import nibabel as nib
    import numpy as np

    generator = torch.Generator().manual_seed(8)
    voxels = (900 * smooth_slices(4, SIZE, generator)[:, 0].permute(1, 2, 0)).numpy().astype(np.int16)
    nib.save(nib.Nifti1Image(voxels, np.diag([2.0, 2.0, 8.0, 1.0])), tmp_path / "a.nii.gz")
    for backend in ("torch", "openvino-int8"):
        arguments = ["segment", bundle, tmp_path / "a.nii.gz", "-o", tmp_path / backend, "--backend", backend]
        result = RUNNER.invoke(app, list(map(str, arguments)))
        assert result.exit_code == 0, result.output
    ours, small = (nib.load(tmp_path / name / "a_seg.nii.gz").get_fdata() for name in ("torch", "openvino-int8"))
    assert (ours == small).mean() > 0.9


@pytest.mark.parametrize("verb", ["segment", "shift", "export"])
def test_help_fits_80_columns_and_has_examples(verb):
    shown = RUNNER.invoke(app, [verb, "--help"]).output
    assert "Examples:" in shown
    assert f"vmfseg {verb} hearts" in shown
    assert max(map(len, shown.splitlines())) <= 80
