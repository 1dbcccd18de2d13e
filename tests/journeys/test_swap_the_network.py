# SPDX-License-Identifier: Apache-2.0
"""A journey: another network in the place of ours; everything after the training uses what was trained."""

from __future__ import annotations

import json

import nibabel as nib
import numpy as np
import pytest

pytestmark = pytest.mark.slow

NETWORK = {
    "_target_": "monai.networks.nets.BasicUNet",
    "spatial_dims": 2,
    "in_channels": 1,
    "out_channels": 4,
    "features": [8, 8, 16, 16, 16, 8],
}


def test_a_network_of_monai_trains_segments_and_reports(shell, short):
    shell("bundle", "build", "vmfnet_mnms")
    losses = ("--loss_weights", '{"dice": 1, "cross_entropy": 1}', "--loss_ramps", "{}")
    phantom = ("--phantom", '{"subjects": 8, "size": 64, "frames": 3}')
    shell("train", "vmfnet_mnms", *losses, "--network_def", json.dumps(NETWORK), *phantom, *short, "-o", "runs/unet")
    manifest = json.loads((shell.folder / "runs" / "unet" / "models" / "manifest.json").read_text())
    assert manifest["network"]["_target_"].endswith("BasicUNet")
    assert list(manifest["network"]["features"]) == NETWORK["features"]
    assert not list((shell.folder / "bundles" / "vmfnet_mnms" / "models").glob("model*"))  # the bundle stays as it was

    about = shell("info", "runs/unet")
    assert "BasicUNet" in about
    scan = sorted((shell.folder / "cache").glob("phantom-*/Testing/*/*_sa.nii.gz"))[0]
    command = ("segment", "vmfnet_mnms", scan, "--checkpoint", "runs/unet", "--activations")
    shown = shell(*command, "-o", "labels")
    assert "no vMF kernels" in shown
    label, image = nib.load(shell.folder / "labels" / scan.name.replace("_sa", "_sa_seg")), nib.load(scan)
    assert label.shape == image.shape
    np.testing.assert_allclose(label.affine, image.affine)

    shell("report", "runs/unet", "--cases", "1")
    page = (shell.folder / "runs" / "unet" / "report.html").read_text(encoding="utf-8")
    assert "no vMF kernels" in page
    assert "BasicUNet" in page
