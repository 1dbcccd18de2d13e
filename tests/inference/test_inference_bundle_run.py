# SPDX-License-Identifier: Apache-2.0
"""``inference.json`` through MONAI and ``vmfseg segment`` must give the same voxels."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
from monai.bundle import create_workflow

from vmfseg.inference import Predictor, plan_jobs, segment_files


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
