# SPDX-License-Identifier: Apache-2.0
"""The viewer for notebooks: what it is given is what the widget holds."""

import sys

import nibabel as nib
import numpy as np
import pytest

from vmfseg.utils import VmfError
from vmfseg.visualize import show_volume

AFFINE = np.diag([1.2, 1.2, 8.0, 1.0])
IMAGE = nib.Nifti1Image(np.arange(96, dtype=np.int16).reshape(4, 6, 4), AFFINE)


def test_a_missing_package_is_named_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipyniivue", None)
    with pytest.raises(VmfError, match=r"(?s)VMF530.*pip install 'vmfseg\[tutorials\]'"):
        show_volume(IMAGE)


def test_layers_are_image_labels_and_one_kernel(tmp_path):
    pytest.importorskip("ipyniivue", reason="the extra tutorials is not installed")
    labels = np.zeros((4, 6, 4), np.uint8)
    labels[1:3] = 2
    maps = np.random.default_rng(0).random((4, 6, 4, 3)).astype(np.float32)
    nib.save(IMAGE, tmp_path / "scan.nii.gz")
    viewer = show_volume(tmp_path / "scan.nii.gz", labels, maps, names={0: "background", 2: "MYO"}, kernel=1)
    assert [volume.name for volume in viewer.volumes] == ["image.nii", "labels.nii", "kernel_1.nii"]
    shown = [nib.Nifti1Image.from_bytes(volume.data) for volume in viewer.volumes]
    for found, expected in zip(shown, (IMAGE.dataobj, labels, maps[..., 1]), strict=True):
        np.testing.assert_array_equal(np.asarray(found.dataobj), np.asarray(expected))
        np.testing.assert_allclose(found.affine, AFFINE)
    lut = viewer.volumes[1].colormap_label
    assert lut.lut[-4:] == [0x00, 0x9E, 0x73, 255], "the color of class 2"
    assert viewer.volumes[2].cal_max == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"labels": np.zeros((4, 6, 5))}, "labels must lie on the grid", id="labels"),
        pytest.param({"activations": np.zeros((4, 6, 5, 2))}, "activations must lie on the grid", id="activations"),
        pytest.param({"activations": np.zeros((4, 6, 4, 2)), "kernel": 2}, "kernel must be an index", id="kernel"),
        pytest.param({"activations": {3: np.zeros((4, 6, 4))}}, r"kernel must be one of \[3\], got 0", id="by number"),
        pytest.param({"image": 7}, "image must be a path or a nibabel image, got int", id="image"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    pytest.importorskip("ipyniivue", reason="the extra tutorials is not installed")
    with pytest.raises(ValueError, match=message):
        show_volume(**{"image": IMAGE, **options})
