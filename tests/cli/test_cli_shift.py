# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

sys.path.append(str(Path(__file__).parent.parent / "model"))
from inference_bundle import SIZE, smooth_slices, tiny_network, write_tiny_bundle

from vmfseg.cli.main import app
from vmfseg.engines import CalibrationStage
from vmfseg.utils import VmfError

RUNNER = CliRunner(env={"COLUMNS": "160"})


def save(folder: Path, seed: int, gain: float = 1.0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    planes = smooth_slices(4, SIZE, generator)[:, 0].permute(1, 2, 0) ** gain
    path = folder / f"{seed}.nii.gz"
    nib.save(nib.Nifti1Image((900 * planes).numpy().astype(np.int16), np.diag([2.0, 2.0, 8.0, 1.0])), path)
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Return a bundle that knows one scanner."""
    network, place = tiny_network(), tmp_path_factory.mktemp("shift")
    root = write_tiny_bundle(place / "bundles", network)
    rows = [{"image": str(save(place / "source", k)), "domain": "A", "subject": str(k)} for k in range(8)]
    stage = CalibrationStage(root / "models", rows, ckpt_dir=root / "models", device="cpu")
    stage.run(place / "stage", False)
    return root


def test_a_known_scanner_is_known_and_a_new_one_is_new(bundle, tmp_path):
    for k in range(20, 25):
        save(tmp_path / "same", k)
        save(tmp_path / "other", k, gain=4.0)
    verdicts = {}
    for name in ("same", "other"):
        result = RUNNER.invoke(app, ["shift", str(bundle), str(tmp_path / name), "--json", "--device", "cpu"])
        assert result.exit_code == 0, result.output
        verdicts[name] = json.loads(result.stdout)[name]
    assert verdicts["same"]["new"] is False
    assert verdicts["other"]["new"] is True
    assert verdicts["other"]["nearest"] == "A"
    table = RUNNER.invoke(app, ["shift", str(bundle), str(tmp_path / "other"), "--device", "cpu"]).output
    assert "new" in table.splitlines()[1]


def test_without_statistics_and_with_a_wrong_level_there_is_an_error(bundle, tmp_path):
    save(tmp_path / "same", 30)
    bare = write_tiny_bundle(tmp_path / "bundles", tiny_network())
    result = RUNNER.invoke(app, ["shift", str(bare), str(tmp_path / "same"), "--device", "cpu"])
    assert isinstance(result.exception, VmfError)
    assert result.exception.code == "VMF342"
    result = RUNNER.invoke(app, ["shift", str(bundle), str(tmp_path / "same"), "--alpha", "2", "--device", "cpu"])
    assert "alpha must lie between 0 and 1" in str(result.exception)
