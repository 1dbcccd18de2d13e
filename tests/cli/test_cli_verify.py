# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner

from vmfseg.cli.main import app
from vmfseg.data import Datalist
from vmfseg.utils import VmfError

RUNNER = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = ["image,label,domain"]
    for name in ("one", "two"):
        label = np.zeros((20, 18, 3), np.uint8)
        label[5:9, 5:9] = 1
        for suffix, array in (("", rng.integers(0, 99, label.shape).astype(np.int16)), ("_gt", label)):
            nib.save(nib.Nifti1Image(array, np.diag([1.0, 1.0, 5.0, 1.0])), tmp_path / f"{name}{suffix}.nii.gz")
        lines.append(f"{name}.nii.gz,{name}_gt.nii.gz,site-{name}")
    (tmp_path / "scans.csv").write_text("\n".join(lines))
    return tmp_path


def test_good_folder_passes_and_its_datalist_is_written_outside(folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("out") / "datalist.json"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    result = RUNNER.invoke(app, ["verify", str(folder), "--classes", "LV", "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert "2 subjects, 2 domains (site-one, site-two), 2 rows, 2 labelled: no errors, no warnings" in result.output
    assert len(Datalist.load(output).rows) == 2
    assert before == {path: path.read_bytes() for path in folder.iterdir()}
    assert RUNNER.invoke(app, ["verify", str(output)]).exit_code == 0
    again = RUNNER.invoke(app, ["verify", str(folder), "--classes", "LV", "-o", str(output)])
    assert isinstance(again.exception, VmfError)
    assert again.exception.code == "VMF503"
    assert (
        RUNNER.invoke(app, ["verify", str(folder), "--classes", "LV", "-o", str(output), "--overwrite"]).exit_code == 0
    )


def test_errors_give_exit_code_3_a_table_and_no_datalist(folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("out") / "datalist.json"
    path = folder / "one.nii.gz"
    path.write_bytes(path.read_bytes()[:-9])
    result = RUNNER.invoke(app, ["verify", str(folder), "--classes", "LV", "-o", str(output)])
    assert result.exit_code == 3
    assert "VMF210" in result.output
    assert "1 error, no warnings" in result.output
    assert not output.exists()


def test_json_is_json(folder):
    (folder / "two.nii.gz").write_bytes((folder / "one.nii.gz").read_bytes())
    result = RUNNER.invoke(app, ["verify", str(folder), "--classes", "LV", "--json"])
    assert result.exit_code == 3
    content = json.loads(result.stdout)
    assert (content["errors"], content["warnings"], content["subjects"]) == (1, 0, 2)
    assert content["findings"][0]["code"] == "VMF260"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("gone", "VMF287: there is no such file or folder", id="missing"),
        pytest.param(".", "VMF285: the folder must hold one CSV or JSON table", id="empty"),
        pytest.param("x.txt", "VMF287: a file must be a datalist or a table", id="other-file"),
    ],
)
def test_refusals_name_the_path_and_the_cure(name, message, tmp_path):
    (tmp_path / "x.txt").write_text("x")
    error = RUNNER.invoke(app, ["verify", str(tmp_path / name)]).exception
    assert isinstance(error, VmfError)
    assert message in str(error)
    assert error.fix


def test_program_prints_a_refusal_without_a_traceback(tmp_path):
    command = [sys.executable, "-m", "vmfseg.cli.main", "verify", "gone"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 3
    assert result.stderr.startswith("vmfseg: error VMF287: there is no such file or folder")
    assert len(result.stderr.strip().splitlines()) <= 5
