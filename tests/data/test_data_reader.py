# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

import itk
import nibabel as nib
import numpy as np
import pytest
from monai.transforms import EnsureChannelFirst, LoadImage

from vmfseg.data import VolumeReader, read_volume
from vmfseg.data import reader as reader_module
from vmfseg.data.geometry import corner_distance
from vmfseg.data.reader import read_header
from vmfseg.utils import VmfError


@pytest.fixture(autouse=True)
def _fresh():
    reader_module.clear_cache()


def itk_image(array: np.ndarray, direction: np.ndarray | None = None):
    """Return an ITK image of an (x, y, z) array with a known place in LPS space."""
    image = itk.image_from_array(np.ascontiguousarray(array.transpose()))
    image.SetSpacing([0.5, 0.75, 5.0, 1.0][: array.ndim])
    image.SetOrigin([10.0, -20.0, 30.0, 0.0][: array.ndim])
    if direction is not None:
        image.SetDirection(itk.matrix_from_array(direction))
    return image


AFFINE_OF_ITK = np.array([[-0.5, 0, 0, -10], [0, -0.75, 0, 20], [0, 0, 5, 30], [0, 0, 0, 1]], dtype=float)


@pytest.mark.parametrize("compress", [False, True], ids=["raw", "packed"])
@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
def test_nrrd_and_mha_equal_what_was_written(suffix, dtype, compress, scan, tmp_path):
    array = (scan() % 200).astype(dtype)
    path = tmp_path / f"a{suffix}"
    itk.imwrite(itk_image(array), str(path), compression=compress)
    volume = read_volume(path)
    np.testing.assert_array_equal(volume.array, array.astype(np.float32))
    np.testing.assert_allclose(volume.affine, AFFINE_OF_ITK)
    assert volume.header is None
    assert volume.findings == ()
    assert read_header(path).shape == array.shape


def test_oblique_nrrd_lies_where_the_nifti_of_the_same_image_lies(scan, tmp_path):
    angle = np.array([[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, 1.0]])
    for name in ("a.nrrd", "a.nii.gz"):
        itk.imwrite(itk_image(scan(), angle), str(tmp_path / name))
    nrrd, nifti = read_volume(tmp_path / "a.nrrd"), read_volume(tmp_path / "a.nii.gz")
    np.testing.assert_allclose(nrrd.affine, nifti.affine, atol=1e-5)
    np.testing.assert_array_equal(nrrd.array, nifti.array)


@pytest.mark.parametrize("suffix", [".nrrd", ".mha"])
def test_frames_of_nrrd_and_mha(suffix, scan, tmp_path):
    array = scan((20, 18, 4, 3))
    itk.imwrite(itk_image(array), str(tmp_path / f"a{suffix}"))
    np.testing.assert_array_equal(read_volume(tmp_path / f"a{suffix}", frame=2).array, array[..., 2])


DAMAGE = [
    pytest.param(".nrrd", False, lambda d: d[:-50], "VMF211", id="nrrd-truncated"),
    pytest.param(".nrrd", True, lambda d: d[:-50], "VMF210", id="nrrd-gz-truncated"),
    pytest.param(".nrrd", False, lambda d: d + b"x", "VMF213", id="nrrd-surplus"),
    pytest.param(".nrrd", False, lambda d: d.replace(b"sizes: 20 18 4", b"sizes: 20 0 4"), "VMF218", id="nrrd-zero"),
    pytest.param(".nrrd", False, lambda d: d.replace(b"encoding: raw", b"encoding: hex"), "VMF240", id="nrrd-hex"),
    pytest.param(
        ".nrrd", False, lambda d: d.replace(b"\n\n", b"\ndata file: b.raw\n\n", 1), "VMF240", id="nrrd-detached"
    ),
    pytest.param(".nrrd", False, lambda d: b"NRRD0004\n", "VMF240", id="nrrd-no-header"),
    pytest.param(".nrrd", False, lambda d: d.replace(b"(0.5,0,0)", b"(0,0,0)"), "VMF223", id="nrrd-zero-spacing"),
    pytest.param(
        ".nrrd", False, lambda d: d.replace(b"sizes: 20 18 4", b"sizes: 20000 18000 4000"), "VMF211", id="nrrd-bomb"
    ),
    pytest.param(".mha", False, lambda d: d[:-50], "VMF211", id="mha-truncated"),
    pytest.param(".mha", True, lambda d: d[:-50], "VMF21[01]", id="mha-packed-truncated"),
    pytest.param(".mha", True, lambda d: d[:-4] + b"1234", "VMF212", id="mha-packed-corrupt"),
    pytest.param(".mha", False, lambda d: d + b"x", "VMF213", id="mha-surplus"),
    pytest.param(".mha", False, lambda d: d.replace(b"LOCAL", b"other.raw"), "VMF240", id="mha-detached"),
    pytest.param(".mha", False, lambda d: b"ObjectType = Image\n", "VMF240", id="mha-no-header"),
    pytest.param(
        ".mha", False, lambda d: d.replace(b"ElementSpacing = 0.5", b"ElementSpacing = 0.0"), "VMF22[13]", id="mha-zero"
    ),
]


@pytest.mark.parametrize(("suffix", "compress", "damage", "code"), DAMAGE)
def test_damaged_nrrd_and_mha_are_refused(suffix, compress, damage, code, scan, tmp_path):
    path = tmp_path / f"a{suffix}"
    itk.imwrite(itk_image(scan()), str(path), compression=compress)
    content = path.read_bytes()
    path.write_bytes(damage(content))
    assert path.read_bytes() != content
    with pytest.raises(VmfError, match=code) as caught:
        read_volume(path)
    assert caught.value.subject == str(path)
    assert caught.value.fix


def write_series(folder, array: np.ndarray, positions, series: str = "1.2.3.4", start: int = 0) -> None:
    """Write one DICOM file per slice and frame with ITK; array is (x, y, z, t)."""
    folder.mkdir(exist_ok=True)
    number = start
    for frame in range(array.shape[3]):
        for depth, position in enumerate(positions):
            image = itk.image_from_array(np.ascontiguousarray(array[:, :, depth, frame].T[None]))
            image.SetSpacing([1.25, 1.5, 8.0])
            image.SetOrigin([5.0, -7.0, position])
            tags = image.GetMetaDataDictionary()
            number += 1
            for key, value in {
                "0008|0060": "MR",
                "0020|000d": "1.2.3",
                "0020|000e": series,
                "0020|0013": str(number),
                "0018|1060": str(30.0 * frame),
                "0020|0032": f"5\\-7\\{position}",
                "0020|0037": "1\\0\\0\\0\\1\\0",
            }.items():
                tags[key] = value
            io = itk.GDCMImageIO.New()
            io.KeepOriginalUIDOn()
            writer = itk.ImageFileWriter[type(image)].New()
            writer.SetInput(image)
            writer.SetImageIO(io)
            writer.SetFileName(str(folder / f"{1000 - number}.dcm"))  # names against the order
            writer.Update()


@pytest.mark.parametrize("frames", [1, 3])
def test_dicom_series_is_sorted_by_position_and_time(frames, scan, tmp_path):
    array = scan((20, 18, 4, frames))
    write_series(tmp_path / "series", array, [0.0, 8.0, 16.0, 24.0])
    volume = read_volume(tmp_path / "series")
    np.testing.assert_array_equal(volume.array, array[..., 0] if frames == 1 else array)
    expected = np.diag([-1.25, -1.5, 8.0, 1.0])
    expected[:3, 3] = [-5.0, 7.0, 0.0]
    np.testing.assert_allclose(volume.affine, expected)
    np.testing.assert_array_equal(read_volume(tmp_path / "series", frame=frames - 1).array, array[..., -1])


def test_incomplete_dicom_folders_are_refused(scan, tmp_path):
    array = scan((20, 18, 4, 1))
    write_series(tmp_path / "gap", array, [0.0, 8.0, 16.0, 40.0])
    with pytest.raises(VmfError, match=r"(?s)VMF241.*a slice is missing"):
        read_volume(tmp_path / "gap")
    write_series(tmp_path / "two", array, [0.0, 8.0, 16.0, 24.0])
    write_series(tmp_path / "two", array, [0.0, 8.0, 16.0, 24.0], series="1.2.3.9", start=100)
    with pytest.raises(VmfError, match=r"(?s)VMF241.*2 DICOM series"):
        read_volume(tmp_path / "two")
    write_series(tmp_path / "cut", array, [0.0, 8.0, 16.0, 24.0])
    file = next((tmp_path / "cut").iterdir())
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(VmfError, match=r"(?s)VMF241.*dcm.*cannot be read"):
        read_volume(tmp_path / "cut")


def test_cine_is_opened_once_and_again_when_it_changes(save_volume, scan):
    path = save_volume("cine.nii.gz", scan((20, 18, 3, 5)))
    first = [read_volume(path, frame=k).array for k in range(5)]
    np.testing.assert_array_equal(np.stack(first, axis=-1), scan((20, 18, 3, 5)))
    assert len(reader_module._cache) == 1
    first[0][...] = -1.0  # what callers do to their copy must not reach the cache
    assert read_volume(path, frame=0).array.min() >= 0
    changed = scan((20, 18, 3, 5), seed=1)
    save_volume("cine.nii.gz", changed)
    os.utime(path, ns=(1, 1))
    np.testing.assert_array_equal(read_volume(path, frame=2).array, changed[..., 2])


def test_cache_is_small_and_holds_no_3d_files(save_volume, scan):
    for index in range(6):
        read_volume(save_volume(f"v{index}.nii.gz", scan()))
    assert len(reader_module._cache) == 0
    for index in range(6):
        read_volume(save_volume(f"c{index}.nii.gz", scan((20, 18, 2, 2))))
    assert len(reader_module._cache) == 4


def test_monai_reads_frames_as_space_and_never_as_channels(save_volume, scan):
    path = save_volume("cine.nii.gz", scan((20, 18, 3, 5)))
    tensor = EnsureChannelFirst()(LoadImage(reader=VolumeReader())(path))
    assert tuple(tensor.shape) == (1, 20, 18, 3, 5)
    frame = LoadImage(reader=VolumeReader(frame=1))(path)
    assert tuple(frame.shape) == (20, 18, 3)
    assert frame.meta["filename_or_obj"] == str(path)
    np.testing.assert_allclose(frame.affine.numpy(), np.diag([1.25, 1.25, 8.0, 1.0]))


def test_reader_refuses_several_files_and_unknown_rules(tmp_path):
    with pytest.raises(ValueError, match="data must be one file, got 2"):
        VolumeReader().read(["a.nii", "b.nii"])
    with pytest.raises(ValueError, match="prefer must be one of sform, qform, got 'sfrom'"):
        VolumeReader(prefer="sfrom")
    assert VolumeReader().verify_suffix("a.NII.GZ")
    assert not VolumeReader().verify_suffix(["a.nii", "b.png"])


def test_noise_in_the_directions_is_removed_for_processing_and_kept_for_output(save_volume, scan):
    affine = np.diag([1.25, 1.25, 8.0, 1.0])
    affine[0, 1] = 1e-4
    volume = read_volume(save_volume("a.nii.gz", scan(), affine))
    np.testing.assert_allclose(volume.original_affine, nib.load(volume.path).affine)
    directions = volume.affine[:3, :3] / np.sqrt((volume.affine[:3, :3] ** 2).sum(axis=0))
    np.testing.assert_allclose(directions.T @ directions, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(volume.affine, volume.original_affine, atol=2e-3)


@pytest.mark.parametrize("frame", [-1, 5])
def test_frame_must_exist(frame, save_volume, scan):
    path = save_volume("cine.nii.gz", scan((20, 18, 3, 5)))
    with pytest.raises(VmfError, match=rf"(?s)VMF235.*frame {frame} of 5"):
        read_volume(path, frame=frame)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("real_part", [1e-4, 5e-4])
def test_forms_near_half_a_turn_agree_within_the_precision_of_the_quaternion(real_part, seed, scan, tmp_path):
    """Scans in DICOM's axes: storing the quaternion alone moves corners by a part of a voxel, and is no conflict."""
    vector = np.array([0.0, 0.0, 1.0]) + np.random.default_rng(seed).normal(size=3) * 0.1
    vector *= np.sqrt(1 - real_part**2) / np.linalg.norm(vector)
    affine = np.eye(4)
    affine[:3, :3] = nib.quaternions.quat2mat([real_part, *vector]) * [0.3, 0.3, 5.0]
    image = nib.Nifti1Image(scan((300, 300, 3)), affine)
    image.set_sform(affine, 1)
    image.set_qform(affine, 1)
    nib.save(image, tmp_path / "a.nii")
    header = nib.load(tmp_path / "a.nii").header
    assert corner_distance(header.get_sform(), header.get_qform(), (300, 300, 3))[1] > 0.05
    assert read_volume(tmp_path / "a.nii").findings == ()


def test_uneven_steps_of_a_dicom_series_are_said(scan, tmp_path):
    array = scan((20, 18, 4, 1))
    write_series(tmp_path / "uneven", array, [0.0, 8.5, 16.0, 24.0])
    found = read_volume(tmp_path / "uneven").findings
    assert [finding.code for finding in found] == ["VMF241"]
    assert "6 % of a step" in found[0].message
