# SPDX-License-Identifier: Apache-2.0
"""Headers that crashed the process, took the machine's memory, or were understood wrongly without a word."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from monai.data import MetaTensor
from test_bad_images import AFFINE, PIXDIM, QFORM, QUATERN, image, patched, voxels

from vmfseg.data import read_volume
from vmfseg.data.csv_table import read_table
from vmfseg.metrics.pairing import read_domains
from vmfseg.model.scan import Scan, map_image
from vmfseg.transforms import InPlaneSpacingd
from vmfseg.utils import VmfError

SIZE = (20, 18, 5)
MHA = {
    "ObjectType": "Image", "NDims": "3", "BinaryData": "True", "BinaryDataByteOrderMSB": "False",
    "CompressedData": "False", "TransformMatrix": "1 0 0 0 1 0 0 0 1", "Offset": "0 0 0", "ElementSpacing": "1 1 8",
    "DimSize": "20 18 5", "ElementType": "MET_SHORT", "ElementDataFile": "LOCAL",
}  # fmt: skip
NRRD = {
    "type": "short", "dimension": "3", "space": "left-posterior-superior", "sizes": "20 18 5",
    "space directions": "(1,0,0) (0,1,0) (0,0,8)", "kinds": "domain domain domain", "endian": "little",
    "encoding": "raw", "space origin": "(0,0,0)",
}  # fmt: skip


def mha(folder: Path, more: bytes = b"", **changes: str | None) -> Path:
    fields = {key: value for key, value in {**MHA, **changes}.items() if value is not None}
    fields["ElementDataFile"] = fields.pop("ElementDataFile")  # it ends the header
    text = more + "".join(f"{key} = {value}\n" for key, value in fields.items()).encode()
    (folder / "a.mha").write_bytes(text + voxels("<i2", SIZE).tobytes(order="F"))
    return folder / "a.mha"


def nrrd(folder: Path, more: str = "", **changes: str | None) -> Path:
    fields = {**NRRD, **{key.replace("_", " "): value for key, value in changes.items()}}
    text = "".join(f"{key}: {value}\n" for key, value in fields.items() if value is not None)
    (folder / "a.nrrd").write_bytes(f"NRRD0004\n{text}{more}\n".encode() + voxels("<i2", SIZE).tobytes(order="F"))
    return folder / "a.nrrd"


def refused(path: Path, **rules) -> VmfError:
    with pytest.raises(VmfError) as caught:
        read_volume(path, **rules)
    error = caught.value
    assert error.exit_code == 3
    assert error.subject == str(path)
    assert error.fix
    assert len(error.render().splitlines()) <= 5
    return error


MHA_REFUSED = [
    *(pytest.param({"NDims": n}, "VMF240", id=f"NDims {n}") for n in ("-5", "0", "100", "999999999", "x", "3.5", "4")),
    pytest.param({"ElementSpacing": "-1 1 8"}, "VMF221", id="negative spacing"),
    pytest.param({"ElementSpacing": None}, "VMF221", id="no spacing"),
    pytest.param({"ElementSpacing": None, "ElementSize": "1 1 8"}, "VMF221", id="element size alone"),
    pytest.param({"ElementToIntensityFunctionSlope": "nan"}, "VMF220", id="slope not finite"),
    pytest.param({"ElementToIntensityFunctionSlope": "0"}, "VMF220", id="slope zero"),
    pytest.param({"DistanceUnits": "cm"}, "VMF222", id="centimetres"),
    pytest.param({"DimSize": "20 18"}, "VMF240", id="too few sizes"),
    pytest.param({"DimSize": "2000000000 2000000000 2000000000"}, "VMF211", id="bomb"),
    pytest.param({"BinaryData": "maybe"}, "VMF240", id="no truth value"),
    pytest.param({"TransformMatrix": "1 0 0 0 1 0 0 0"}, "VMF240", id="short matrix"),
    pytest.param({"Offset": "0 0 inf"}, "VMF240", id="infinite offset"),
    pytest.param({"Position": "1 2 3"}, "VMF240", id="two positions"),
    pytest.param({"CenterOfRotation": "1 2 3"}, "VMF240", id="center of rotation"),
    pytest.param({"ElementType": "MET_SHORT_ARRAY"}, "VMF219", id="array type"),
    pytest.param({"ElementNumberOfChannels": "3"}, "VMF219", id="colour"),
    pytest.param({"HeaderSize": "-1"}, "VMF240", id="header size"),
]


@pytest.mark.parametrize(("changes", "code"), MHA_REFUSED)
def test_mha_header_that_says_something_else_is_refused(changes, code, tmp_path):
    assert refused(mha(tmp_path, **changes)).code == code


def test_mha_field_that_comes_twice_is_refused(tmp_path):
    assert "comes twice" in refused(mha(tmp_path, b"DimSize = 9 9 9\n")).found


def test_mha_intensity_scaling_is_applied(tmp_path):
    path = mha(tmp_path, ElementToIntensityFunctionSlope="0.5", ElementToIntensityFunctionOffset="-3")
    np.testing.assert_allclose(read_volume(path).array, voxels("float32", SIZE) * 0.5 - 3)


def test_mha_without_a_place_is_said_to_have_none(tmp_path):
    found = read_volume(mha(tmp_path, TransformMatrix=None, Offset=None)).findings
    assert [finding.code for finding in found] == ["VMF225"]
    assert "no orientation and no position" in found[0].message


NRRD_REFUSED = [
    *(pytest.param({"space_units": u}, "VMF222", id=u) for u in ('"cm" "cm" "cm"', '"um" "um" "um"', '"mm" "m" "mm"')),
    *(pytest.param({"space": s}, "VMF240", id=s) for s in ("scanner-xyz", "3D-right-handed", "3D-left-handed", "RPS")),
    pytest.param({"spacings": "1 1 1"}, "VMF240", id="spacings beside directions"),
    pytest.param({"space": None, "space_directions": None}, "VMF221", id="no spacing"),
    pytest.param({"space_directions": "(1,0,0) (0,1,0) none"}, "VMF240", id="axis without direction"),
    pytest.param({"space_directions": "(1,0,0) (0,1,0) (0,0,nan)"}, "VMF240", id="nan"),
    pytest.param({"kinds": "RGB-color domain domain"}, "VMF219", id="colour"),
    pytest.param({"dimension": "17"}, "VMF240", id="dimension 17"),
    pytest.param({"dimension": "-5"}, "VMF240", id="dimension -5"),
    pytest.param({"sizes": "20 18"}, "VMF240", id="too few sizes"),
    pytest.param({"endian": None}, "VMF240", id="no byte order"),
    pytest.param({"type": "block"}, "VMF219", id="blocks"),
    pytest.param({"old_min": "-1000"}, "VMF240", id="quantized"),
    pytest.param({"spcae units": '"cm"'}, "VMF240", id="unknown field"),
]


@pytest.mark.parametrize(("changes", "code"), NRRD_REFUSED)
def test_nrrd_header_that_says_something_else_is_refused(changes, code, tmp_path):
    assert refused(nrrd(tmp_path, **changes)).code == code


SPACES = [  # signs of the axes in RAS, by definition of the names
    ("left-posterior-superior", (-1, -1, 1)), ("LPS", (-1, -1, 1)), ("right-anterior-superior", (1, 1, 1)),
    ("RAS", (1, 1, 1)), ("left-anterior-superior", (-1, 1, 1)), ("LAS", (-1, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("space", "signs"), SPACES)
def test_nrrd_space_gives_the_axes(space, signs, tmp_path):
    path = nrrd(tmp_path, space=space, space_units='"mm" "mm" "mm"', space_origin="(3,4,5)")
    volume = read_volume(path)
    np.testing.assert_allclose(volume.affine[:3, :3], np.diag(signs) @ np.diag([1.0, 1.0, 8.0]))
    np.testing.assert_allclose(volume.affine[:3, 3], np.array(signs) * [3, 4, 5])
    assert volume.findings == ()


def test_pixdim_0_of_zero_is_read_as_the_standard_says_and_can_be_written(tmp_path):
    path = patched((PIXDIM, "f", 0.0))(tmp_path)
    volume = read_volume(path)
    assert [finding.code for finding in volume.findings] == ["VMF209"]
    np.testing.assert_allclose(volume.affine, AFFINE)
    written = map_image(Scan.open(path), np.zeros(volume.array.shape, np.uint8))
    np.testing.assert_allclose(written.affine, AFFINE)
    assert refused(patched((PIXDIM, "f", 0.5))(tmp_path)).code == "VMF209"
    assert read_volume(patched((PIXDIM, "f", 0.5), (QFORM, "h", 0))(tmp_path)).findings == ()  # nothing reads it


def stored(array: np.ndarray, folder: Path) -> Path:
    nib.save(nib.Nifti1Image(array, AFFINE, dtype=array.dtype), folder / "a.nii")
    return folder / "a.nii"


LOST = [
    pytest.param(voxels("float64") + 1e9, id="offset of 1e9"),
    pytest.param(voxels("float64") * 1e-44, id="scale of 1e-44"),
    pytest.param(voxels("float64") * 1e-60, id="scale of 1e-60"),
    pytest.param((voxels("int64") + 2**31 + 5).astype("uint32"), id="uint32 above 2**31"),
    pytest.param((voxels("float64") * 1e-44).astype("float32"), id="float32 of no size"),
]


@pytest.mark.parametrize("array", LOST)
def test_values_that_float32_would_destroy_are_refused(array, tmp_path):
    assert refused(stored(array, tmp_path)).code == "VMF227"


@pytest.mark.parametrize(
    "array", [voxels("float64") * 1e9, voxels("float64") - 1e5, voxels("float64") * 1e-9, voxels("uint32") * 2**20]
)
def test_values_that_float32_holds_pass(array, tmp_path):
    found = read_volume(stored(array, tmp_path)).array
    np.testing.assert_allclose(found, array, rtol=1e-6, atol=1e-3 * np.ptp(array))


def test_labels_that_float32_would_change_are_refused(tmp_path):
    array = voxels("int32")
    array[0, 0, 0] = 2**24 + 1
    assert refused(stored(array, tmp_path), kind="label").code == "VMF227"


def test_constant_frame_of_a_cine_is_said_and_refused_when_it_is_taken(tmp_path):
    cine = voxels(shape=(24, 20, 6, 4))
    cine[..., 2] = 7
    path = image(tmp_path, array=cine)
    assert [(finding.code, "1 of 4 frames" in finding.message) for finding in read_volume(path).findings] == [
        ("VMF232", True)
    ]
    assert read_volume(path, frame=1).array.max() > 7
    with pytest.raises(VmfError, match=r"(?s)VMF232.*frame 2 is 7"):
        read_volume(path, frame=2)
    with pytest.raises(VmfError, match=r"(?s)VMF232.*frame 2 is 7"):
        Scan.open(nib.load(path)).frame(2)
    assert read_volume(path, frame=2, kind="label").array.max() == 7


def test_nifti_2_whose_line_ends_were_converted_is_refused(tmp_path):
    path = tmp_path / "a.nii"
    nib.save(nib.Nifti2Image(np.arange(480, dtype=np.int16).reshape(12, 10, 4), np.eye(4)), path)
    assert read_volume(path).array.max() == 479
    path.write_bytes(path.read_bytes().replace(b"n+2\0\r\n\x1a\n", b"n+2\0\n\n\x1a\n"))
    with pytest.raises(VmfError, match=r"(?s)VMF209.*eol_check"):
        read_volume(path)


def test_size_after_resampling_is_checked_before_anything_is_allocated(monkeypatch):
    volume = MetaTensor(np.zeros((1, 64, 64, 5), np.float32), affine=np.diag([900.0, 900.0, 8.0, 1.0]))
    resample = InPlaneSpacingd("image", pixdim=1.25)
    with pytest.raises(VmfError, match=r"(?s)VMF216.*voxels of 900 x 900 mm resampled to 1.25 mm give 102"):
        resample({"image": volume})
    monkeypatch.setattr("vmfseg.utils.memory.available_memory", lambda: 10_000_000)
    volume.affine = np.diag([20.0, 20.0, 8.0, 1.0])
    with pytest.raises(VmfError, match="VMF512"):
        resample({"image": volume})
    volume.affine = np.diag([1.0, 1.0, 8.0, 1.0])
    assert resample({"image": volume})["image"].shape == (1, 51, 51, 5)


TABLES = [
    pytest.param(b"image,domain\n", "no row below", id="header only"),
    pytest.param(b"image,domain\n" + b"x" * 200_000 + b",A\n", "field larger", id="field of 200 kB"),
]


@pytest.mark.parametrize(("content", "cause"), TABLES)
def test_table_without_use_is_refused(content, cause, tmp_path):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(VmfError, match=f"(?s)VMF278.*{cause}"):
        read_table(tmp_path / "t.csv")
    (tmp_path / "d.csv").write_bytes(content.replace(b"image", b"subject"))
    with pytest.raises(VmfError, match=f"(?s)VMF161.*{cause}"):
        read_domains(tmp_path / "d.csv")


def test_lines_that_end_in_cr_alone_are_lines(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"image,domain\ra.nii,A\rb.nii,B\r")
    assert read_table(tmp_path / "t.csv") == (["image", "domain"], [["a.nii", "A"], ["b.nii", "B"]])


def test_quaternion_that_is_none_beside_a_good_sform_is_a_conflict(tmp_path):  # found by the fuzzer
    error = refused(patched((QUATERN, "f", 9.0))(tmp_path))
    assert (error.code, "???" in error.found) == ("VMF224", True)
