# SPDX-License-Identifier: Apache-2.0
"""``inference.json`` through MONAI and ``vmfseg segment`` must give the same voxels, also as commands of a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from monai.bundle import create_workflow

from vmfseg.bundle.package import vendor_bundle
from vmfseg.model import Predictor, segment_files
from vmfseg.model.inputs import plan_jobs
from vmfseg.utils import VmfError, read_json


def run_inference_json(bundle: Path, data: Path, output: Path) -> None:
    workflow = create_workflow(
        config_file=str(bundle / "configs" / "inference.json"),
        workflow_type="inference",
        bundle_root=str(bundle),
        dataset_dir=str(data),
        output_dir=str(output),
        device="$torch.device('cpu')",
    )
    workflow.run()


def test_inference_json_and_segment_agree_in_every_voxel(bundle, save_scan, tmp_path):
    save_scan("data/plain.nii.gz", seed=1)
    save_scan("data/sub/cine.nii.gz", shape=(30, 26, 3, 3), seed=2)
    oblique = np.array([[0, -1.1, 2.0, -9], [1.2, 0, 0.4, 8], [0.1, 0.3, 7.6, 3], [0, 0, 0, 1]])
    left, _, right = np.linalg.svd(oblique[:3, :3] / np.linalg.norm(oblique[:3, :3], axis=0))
    oblique[:3, :3] = (left @ right) * [1.2, 1.1, 8.0]
    save_scan("data/oblique.nii.gz", shape=(50, 36, 9), affine=oblique, seed=3)
    run_inference_json(bundle, tmp_path / "data", tmp_path / "monai")
    results = list(
        segment_files(Predictor.from_bundle(bundle, "cpu"), plan_jobs([tmp_path / "data"], tmp_path / "ours"))
    )
    assert [result.status for result in results] == ["written"] * 3
    checked = 0
    for path in sorted((tmp_path / "ours").rglob("*_seg.nii.gz")):
        ours = nib.load(path)
        relative = path.relative_to(tmp_path / "ours")
        frames = [relative.with_name(relative.name.replace("_seg", f"_frame{k:02d}_seg")) for k in range(3)]
        theirs = frames if ours.ndim == 4 else [relative]
        for k, name in enumerate(theirs):
            other = nib.load(tmp_path / "monai" / name)
            voxels = np.asanyarray(ours.dataobj)
            assert np.array_equal(other.dataobj, voxels[..., k] if ours.ndim == 4 else voxels), name
            assert np.array_equal(other.affine, ours.affine)
            assert len(np.unique(voxels)) > 2
            checked += 1
    assert checked == 5


def run(*command: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, "PYTHONUTF8": "1", **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_both_commands_of_a_shell_agree_in_every_voxel(bundle, save_scan, tmp_path):
    source = save_scan("data/scan.nii.gz", shape=(34, 28, 4), seed=5)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    config = bundle / "configs" / "inference.json"
    run("-m", "monai.bundle", "run", "--config_file", config, "--dataset_dir", source.parent,
        "--output_dir", tmp_path / "monai", "--device", "cpu", cwd=elsewhere)  # fmt: skip
    run("-m", "vmfseg.cli.main", "segment", bundle, source, "-o", tmp_path / "ours", "--device", "cpu", cwd=elsewhere)
    theirs, ours = (nib.load(tmp_path / who / "scan_seg.nii.gz") for who in ("monai", "ours"))
    assert np.array_equal(theirs.dataobj, ours.dataobj)
    assert theirs.header.binaryblock == ours.header.binaryblock
    assert len(np.unique(ours.dataobj)) > 2


#: MONAI's command in a Python that has no vmfseg of its own.
WITHOUT_VMFSEG = """
import runpy, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ditable" not in repr(finder)]
sys.path[:] = [entry for entry in sys.path if entry not in sys.argv[1].split(":")]
del sys.argv[1]
try:
    import vmfseg
except ImportError:
    runpy.run_module("monai.bundle", run_name="__main__")
else:
    sys.exit(f"vmfseg is still there: {vmfseg.__file__}")
"""


def test_a_vendored_bundle_runs_where_vmfseg_is_not_installed(bundle, save_scan, tmp_path):
    source = save_scan("data/scan.nii.gz", shape=(30, 26, 3), seed=6)
    (bundle / "models" / "calibration.safetensors").write_bytes(b"slices of patients")
    place = vendor_bundle(bundle, tmp_path / "zoo")
    (bundle / "models" / "calibration.safetensors").unlink()
    assert place == tmp_path / "zoo" / "vmfnet_mnms"
    assert sorted(path.name for path in place.iterdir()) == ["LICENSE", "configs", "docs", "models", "vmfseg"]
    assert not list(place.rglob("*calibration.safetensors")), "images stay where they are"
    assert not (place / "vmfseg" / "cli").exists()
    needed = read_json(place / "configs" / "metadata.json")["required_packages_version"]
    assert "vmfseg" not in needed
    assert "nibabel" in needed
    package = Path(__file__).parents[2]
    run("-c", WITHOUT_VMFSEG, f"{package}:", "run", "--config_file", place / "configs" / "inference.json",
        "--dataset_dir", source.parent, "--output_dir", tmp_path / "out", "--device", "cpu",
        cwd=tmp_path, PYTHONDONTWRITEBYTECODE="1")  # fmt: skip
    expected = Predictor.from_bundle(bundle, "cpu")(source).labels
    assert np.array_equal(nib.load(tmp_path / "out" / "scan_seg.nii.gz").dataobj, expected)
    with pytest.raises(VmfError, match="VMF503"):
        vendor_bundle(bundle, tmp_path / "zoo")
    with pytest.raises(VmfError, match="VMF503"):
        vendor_bundle(bundle, bundle.parent, overwrite=True)  # onto itself
