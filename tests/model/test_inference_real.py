# SPDX-License-Identifier: Apache-2.0
"""Real scans, oblique and with permuted axes, go through ``segment``; labels and picture lie on their own grid."""

from __future__ import annotations

import os
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from inference_bundle import tiny_network, write_tiny_bundle

from vmfseg.model import Predictor, SegmentOptions, segment_files
from vmfseg.model.inputs import plan_jobs
from vmfseg.visualize import draw_overlay

FOLDER = Path(os.environ.get("VMFSEG_REAL_DATA") or Path(__file__).parents[3] / "shared" / "data" / "real_mini")
pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is absent; set VMFSEG_REAL_DATA"),
]


@pytest.mark.parametrize(("part", "name", "classes"), [("cardiac", "vmfnet_mnms", 4), ("spinal", "vmfnet_scgm", 3)])
def test_real_scans_are_segmented_on_their_own_grid(part, name, classes, tmp_path):
    bundle = write_tiny_bundle(tmp_path / "bundles", tiny_network(classes=classes), name)
    jobs = plan_jobs([FOLDER / part], tmp_path / "out")
    scans = [path for path in sorted((FOLDER / part).glob("*.nii.gz")) if not path.name.endswith("_label.nii.gz")]
    assert [job.image for job in jobs] == scans
    results = list(segment_files(Predictor.from_bundle(bundle, "cpu"), jobs, SegmentOptions(overlay=draw_overlay)))
    assert [result.status for result in results] == ["written"] * len(scans), [result.error for result in results]
    for job in jobs:
        scan, labels = nib.load(job.image), nib.load(job.output)
        for field in (
            "dim",
            "pixdim",
            "srow_x",
            "srow_y",
            "srow_z",
            "quatern_b",
            "qoffset_x",
            "sform_code",
            "qform_code",
        ):
            assert np.array_equal(scan.header[field], labels.header[field]), (job.image.name, field)
        assert len(np.unique(labels.dataobj)) > 1
        assert job.beside("overlay", ".png").read_bytes()[:4] == b"\x89PNG"


def test_labels_of_real_scans_follow_their_axes(tmp_path):
    bundle = write_tiny_bundle(tmp_path / "bundles", tiny_network())
    predictor = Predictor.from_bundle(bundle, "cpu")
    scan = nib.load(next(iter(sorted((FOLDER / "cardiac").glob("sunnybrook*_ED.nii.gz")))))
    expected = predictor(scan)
    for orientation in ([[2, 1], [0, -1], [1, 1]], [[1, -1], [0, 1], [2, -1]]):
        turned = predictor(scan.as_reoriented(np.array(orientation, dtype=float)))
        assert np.array_equal(turned.dataobj, expected.as_reoriented(np.array(orientation, dtype=float)).dataobj)
