# SPDX-License-Identifier: Apache-2.0
"""Threats T10 to T65: a bad image is refused by name, cause and cure, or accepted by a stated rule, never silently."""

from __future__ import annotations

import gzip
import os
import re
import socket
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from monai.data import DataLoader, Dataset
from monai.transforms import LoadImage

from vmfseg.data import LoadVolumed, VolumeReader, read_volume
from vmfseg.data import reader as reader_module
from vmfseg.data.findings import DataWarning
from vmfseg.data.reader import read_header
from vmfseg.utils import VmfError
from vmfseg.utils.errors import find_vmf_error

SHAPE = (24, 20, 6)
AFFINE = np.diag([1.25, 1.25, 8.0, 1.0])
DIM, DATATYPE, BITPIX, PIXDIM, OFFSET, SLOPE, INTER, UNITS = 40, 70, 72, 76, 108, 112, 116, 123
QFORM, SFORM, QUATERN, SROW, MAGIC = 252, 254, 256, 280, 344


def voxels(dtype: str = "int16", shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 200, shape).astype(dtype)


def image(folder: Path, name: str = "scan.nii.gz", array: np.ndarray | None = None, affine=AFFINE, **codes) -> Path:
    nifti = nib.Nifti1Image(voxels() if array is None else array, affine)
    nifti.set_qform(affine if codes.get("qform", 1) else None, codes.get("qform", 1))
    nifti.set_sform(affine if codes.get("sform", 1) else None, codes.get("sform", 1))
    nib.save(nifti, folder / name)
    return folder / name


def patched(*edits: tuple[int, str, object], name: str = "scan.nii.gz", **kwargs) -> Callable[[Path], Path]:
    """Return a builder of a good file whose header bytes are overwritten: (offset, struct format, value)."""

    def build(folder: Path) -> Path:
        path = image(folder, name, **kwargs)
        raw = path.read_bytes()
        data = bytearray(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        for offset, form, value in edits:
            struct.pack_into("<" + form, data, offset, value)
        path.write_bytes(gzip.compress(bytes(data), mtime=0) if name.endswith(".gz") else bytes(data))
        return path

    return build


def raw(content: Callable[[bytes], bytes] | bytes, name: str = "scan.nii.gz") -> Callable[[Path], Path]:
    """Return a builder of a good file whose bytes are replaced."""

    def build(folder: Path) -> Path:
        path = image(folder, name)
        path.write_bytes(content if isinstance(content, bytes) else content(path.read_bytes()))
        return path

    return build


def values(change: Callable[[np.ndarray], object], dtype: str = "float32") -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        array = voxels(dtype)
        change(array)
        return image(folder, array=array)

    return build


def saved(array: np.ndarray, **kwargs) -> Callable[[Path], Path]:
    return lambda folder: image(folder, array=array, **kwargs)


def placed(affine: np.ndarray, **codes: int) -> Callable[[Path], Path]:
    return lambda folder: image(folder, affine=affine, **codes)


def flip_bit(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 0x10
    return bytes(changed)


def bad_crc(data: bytes) -> bytes:
    return data[:-8] + struct.pack("<I", zlib.crc32(b"other")) + data[-4:]


def typed(dtype: np.dtype) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        nib.save(nib.Nifti1Image(np.zeros(SHAPE, dtype=dtype), AFFINE, dtype=dtype), folder / "scan.nii.gz")
        return folder / "scan.nii.gz"

    return build


def with_affine(row: int, column: int, delta: float) -> np.ndarray:
    affine = AFFINE.copy()
    affine[row, column] += delta
    return affine


def special(kind: str) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        path = folder / "scan.nii"
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as server:
                os.chdir(folder)  # the path of a socket must be short
                server.bind("scan.nii")
        elif kind == "zero":
            path.symlink_to("/dev/zero")
        elif kind == "broken":
            path.symlink_to(folder / "gone.nii")
        return path

    return build


def empty_folder(folder: Path) -> Path:
    (folder / "series").mkdir()
    return folder / "series"


def bomb(folder: Path) -> Path:
    """A small header, then far more data than it declares."""
    path = image(folder)
    data = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(data + bytes(64 << 20)))
    return path


def analyze(folder: Path) -> Path:
    nib.save(nib.AnalyzeImage(voxels(), AFFINE), folder / "scan.img")
    return folder / "scan.img"


RGB = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
MIRROR = np.diag([-1.25, 1.25, 8.0, 1.0])

REFUSED = [  # builder, code, cause
    pytest.param(raw(lambda d: d[: len(d) // 2]), "VMF210", "truncated", id="T10-truncated-gz"),
    pytest.param(raw(lambda d: d[:-6]), "VMF210", "truncated", id="T10-gz-without-checksum"),
    pytest.param(raw(lambda d: d[:-999], "scan.nii"), "VMF211", "fewer voxels.*truncated", id="T11-truncated-data"),
    pytest.param(
        raw(lambda d: gzip.compress(gzip.decompress(d)[:-99])), "VMF211", "fewer voxels", id="T11-truncated-inside-gz"
    ),
    pytest.param(raw(lambda d: d[:200], "scan.nii"), "VMF207", "200 of 348", id="T12-short-header"),
    pytest.param(raw(lambda d: d[:20]), "VMF207", "ends inside its header", id="T12-short-header-gz"),
    pytest.param(raw(b""), "VMF204", "empty", id="T13-empty"),
    pytest.param(raw(b"<!DOCTYPE html><html>404</html>"), "VMF206", "web page", id="T14-html"),
    pytest.param(raw(b"x" * 4000), "VMF206", "not NIfTI", id="T14-garbage"),
    pytest.param(raw(bad_crc), "VMF212", "CRC", id="T15-bad-crc"),
    pytest.param(raw(flip_bit), "VMF21[02]", "corrupt|truncated", id="T16-bit-flip"),
    pytest.param(raw(lambda d: d + b"junk"), "VMF212", "follow the stream", id="T16-junk-after-stream"),
    pytest.param(values(lambda a: a.__setitem__((1, 2, 3), np.nan)), "VMF230", "1 NaN", id="T20-nan"),
    pytest.param(values(lambda a: a.fill(np.nan)), "VMF230", "2880 NaN", id="T20-all-nan"),
    pytest.param(values(lambda a: a.__setitem__((1, 2, 3), -np.inf)), "VMF231", "1 infinite", id="T21-inf"),
    pytest.param(values(lambda a: a.fill(0)), "VMF232", "every voxel is 0", id="T22-zero"),
    pytest.param(values(lambda a: a.fill(7)), "VMF232", "every voxel is 7", id="T22-constant"),
    pytest.param(values(lambda a: a.__setitem__((0, 0, 0), 1e20)), "VMF233", r"1e\+20", id="T23-absurd-range"),
    pytest.param(patched((PIXDIM + 4, "f", 0.0)), "VMF221", "0 x 1.25 x 8", id="T30-zero-spacing"),
    pytest.param(patched((PIXDIM + 8, "f", -1.25)), "VMF221", "-1.25", id="T30-negative-spacing"),
    pytest.param(patched((PIXDIM + 12, "f", float("nan"))), "VMF221", "nan", id="T30-nan-spacing"),
    pytest.param(patched((PIXDIM + 12, "f", 1e30)), "VMF221", r"1e\+30", id="T30-huge-spacing"),
    pytest.param(patched((UNITS, "B", 3)), "VMF222", "micrometres", id="T30-unit"),
    pytest.param(patched(*[(SROW + 4 * i, "f", 0.0) for i in range(12)]), "VMF223", "sform.*zero", id="T31-zero-sform"),
    pytest.param(patched((SROW, "f", float("nan"))), "VMF223", "sform.*NaN", id="T31-nan-sform"),
    pytest.param(patched((QUATERN, "f", 9.0), sform=0), "VMF223", "qform.*NaN", id="T31-impossible-quaternion"),
    pytest.param(patched((SROW, "f", -1.25)), "VMF224", "qform contradict", id="T32-mirrored-sform"),
    pytest.param(patched((268, "f", 30.0)), "VMF224", "30 mm apart", id="T32-origin-conflict"),
    pytest.param(patched((PIXDIM + 4, "f", 2.5), qform=0), "VMF224", "pixdim contradict", id="T32-spacing-conflict"),
    pytest.param(placed(with_affine(0, 1, 0.6), qform=0), "VMF226", "26 degrees", id="T34-shear"),
    pytest.param(patched((SLOPE, "f", float("nan"))), "VMF220", "nan", id="T36-nan-slope"),
    pytest.param(patched((INTER, "f", float("inf"))), "VMF220", "inf", id="T36-inf-inter"),
    pytest.param(saved(voxels(shape=(24, 20, 6, 1, 3))), "VMF218", "5 dimensions", id="T41-5d"),
    pytest.param(saved(voxels(shape=(24,))), "VMF218", "24", id="T41-1d"),
    pytest.param(saved(voxels(shape=(1, 1, 1))), "VMF229", "1x1x1", id="T44-one-voxel"),
    pytest.param(saved(voxels(shape=(64, 3, 1))), "VMF229", "64x3x1", id="T44-profile"),
    pytest.param(typed(RGB), "VMF219", "RGB", id="T50-rgb"),
    pytest.param(typed(np.dtype("complex64")), "VMF219", "complex", id="T51-complex"),
    pytest.param(patched((DATATYPE, "h", 1536), (BITPIX, "h", 128)), "VMF219", "128-bit", id="T52-float128"),
    pytest.param(patched((DATATYPE, "h", 77)), "VMF219", "datatype 77", id="T52-unknown-type"),
    pytest.param(analyze, "VMF205", "img", id="T54-img-pair"),
    pytest.param(patched((MAGIC, "4s", b"ni1\0"), name="scan.nii"), "VMF208", "pair", id="T54-pair-header"),
    pytest.param(patched((MAGIC, "4s", b"\0" * 4), name="scan.nii"), "VMF208", "Analyze", id="T54-analyze"),
    pytest.param(patched((MAGIC, "4s", b"zzz\0")), "VMF208", "magic", id="T54-bad-magic"),
    pytest.param(patched((0, "i", 347)), "VMF209", "347", id="T54-bad-header-size"),
    pytest.param(patched((OFFSET, "f", 12.0)), "VMF209", "vox_offset is 12", id="T54-bad-offset"),
    pytest.param(patched((SFORM, "h", 99)), "VMF209", "sform_code is 99", id="T54-bad-code"),
    pytest.param(patched(*[(DIM + 2 * i, "h", 32767) for i in (1, 2, 3)]), "VMF214", "declared", id="T60-bomb-gz"),
    pytest.param(
        patched(*[(DIM + 2 * i, "h", 32767) for i in (1, 2, 3)], name="scan.nii"), "VMF211", "fewer", id="T60-bomb"
    ),
    pytest.param(bomb, "VMF213", "more data than", id="T61-gzip-bomb"),
    pytest.param(raw(lambda d: d + bytes(8), "scan.nii"), "VMF213", "more data than", id="T61-surplus"),
    pytest.param(patched((DIM + 2, "h", 0)), "VMF218", "0x20x6", id="T62-zero-dimension"),
    pytest.param(patched((DIM + 4, "h", -20)), "VMF218", "-20", id="T62-negative-dimension"),
    pytest.param(patched((DIM, "h", 9)), "VMF209", r"dim\[0\] is 9", id="T62-nine-dimensions"),
    pytest.param(special("fifo"), "VMF202", "named pipe", id="T63-fifo"),
    pytest.param(special("socket"), "VMF202", "socket", id="T63-socket"),
    pytest.param(special("zero"), "VMF202", "character device", id="T63-device"),
    pytest.param(special("broken"), "VMF201", "broken link", id="T63-broken-link"),
    pytest.param(empty_folder, "VMF241", "no DICOM series", id="T63-folder"),
    pytest.param(lambda folder: folder / "scan.nii.gz", "VMF201", "does not exist", id="T64-missing"),
    pytest.param(lambda folder: folder / "scan.png", "VMF205", ".png", id="T54-other-format"),
]


@pytest.fixture(autouse=True)
def _stay_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # restored afterwards, also when a builder changes the folder
    reader_module.clear_cache()


@pytest.mark.parametrize(("build", "code", "cause"), REFUSED)
def test_bad_image_is_refused_by_name_cause_and_cure(build, code, cause, tmp_path):
    path = build(tmp_path)
    before = {p: p.lstat().st_mtime_ns for p in tmp_path.rglob("*")}
    with pytest.raises(VmfError) as caught:
        read_volume(path)
    error = caught.value
    assert re.fullmatch(code, error.code)
    assert path.name in error.subject
    assert re.search(cause, f"{error.rule}; {error.found}"), error.render()
    assert error.fix
    assert len(error.render().splitlines()) <= 5
    assert error.exit_code == 3
    assert before == {p: p.lstat().st_mtime_ns for p in tmp_path.rglob("*")}


@pytest.mark.parametrize(("build", "code", "cause"), REFUSED)
def test_monai_falls_back_to_no_other_reader(build, code, cause, tmp_path):
    path = build(tmp_path)
    with pytest.raises(VmfError) as caught:
        LoadImage(reader=VolumeReader())(str(path))
    assert re.fullmatch(code, caught.value.code)


def no_forms(folder: Path) -> Path:
    return image(folder, qform=0, sform=0)


def misnamed(name: str, packed: bool) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        good = image(folder, "good.nii").read_bytes()
        (folder / name).write_bytes(gzip.compress(good) if packed else good)
        return folder / name

    return build


ACCEPTED = [  # builder, rules, code of the finding, what it says
    pytest.param(
        values(lambda a: a.__setitem__((1, 2, 3), np.nan)),
        {"nan_to": 0.0},
        "VMF230",
        "replaced by 0",
        id="T20-nan-to-0",
    ),
    pytest.param(no_forms, {}, "VMF225", "no orientation", id="T33-no-forms"),
    pytest.param(placed(with_affine(0, 1, 3e-3), qform=0), {}, "VMF226", "orthonormal", id="T34-noise"),
    pytest.param(
        placed(with_affine(0, 1, 0.6), qform=0), {"allow_shear": True}, "VMF226", "orthonormal", id="T34-allow-shear"
    ),
    pytest.param(patched((268, "f", 0.1)), {}, "VMF224", "differ by 0.1 mm", id="T32-small-conflict"),
    pytest.param(saved(voxels(shape=(24, 20))), {}, "VMF236", "one slice", id="T42-2d"),
    pytest.param(saved(voxels(shape=(8, 8, 4))), {}, "VMF229", "very small", id="T44-small"),
    pytest.param(placed(np.diag([0.2, 0.2, 8.0, 1.0])), {}, "VMF228", "extreme", id="T45-1-to-40"),
    pytest.param(typed(np.dtype("int64")), {"kind": "label"}, "VMF227", "int64", id="T52-int64"),
    pytest.param(misnamed("scan.nii", True), {}, "VMF215", "read by content", id="T55-gz-named-nii"),
    pytest.param(misnamed("scan.nii.gz", False), {}, "VMF215", "read by content", id="T55-nii-named-gz"),
    pytest.param(patched((BITPIX, "h", 8)), {}, "VMF209", "bitpix", id="T54-bitpix"),
]


@pytest.mark.parametrize(("build", "rules", "code", "text"), ACCEPTED)
def test_unusual_image_is_accepted_by_a_stated_rule(build, rules, code, text, tmp_path):
    volume = read_volume(build(tmp_path), **rules)
    assert [(f.code, f.severity) for f in volume.findings] == [(code, "warning")]
    assert text in volume.findings[0].message
    assert np.isfinite(volume.array).all()


def test_what_is_accepted_is_said_aloud_when_loading(tmp_path):
    with pytest.warns(DataWarning, match="VMF225 .*no orientation"):
        LoadVolumed()({"image": str(no_forms(tmp_path))})


@pytest.mark.parametrize(("prefer", "first"), [("sform", -1.25), ("qform", 1.25)])
def test_prefer_settles_a_conflict_of_the_forms(prefer, first, tmp_path):
    path = patched((SROW, "f", -1.25))(tmp_path)
    volume = read_volume(path, prefer=prefer)
    assert volume.affine[0, 0] == pytest.approx(first)


def rotation() -> np.ndarray:
    axis = np.array([0.3, 0.5, 0.8]) / np.linalg.norm([0.3, 0.5, 0.8])
    cross = np.array([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]])
    affine = np.eye(4)
    affine[:3, :3] = (np.eye(3) + np.sin(0.7) * cross + (1 - np.cos(0.7)) * cross @ cross) @ np.diag([1.25, 1.25, 8.0])
    affine[:3, 3] = [-80.0, 33.0, 12.5]
    return affine


def big_endian(folder: Path) -> Path:
    nifti = nib.Nifti1Image(voxels(), AFFINE, nib.Nifti1Header(endianness=">"))
    nifti.set_sform(AFFINE, 1)
    nifti.set_qform(AFFINE, 1)
    nib.save(nifti, folder / "scan.nii.gz")
    return folder / "scan.nii.gz"


def nifti2(folder: Path) -> Path:
    nib.save(nib.Nifti2Image(voxels(), AFFINE), folder / "scan.nii")
    return folder / "scan.nii"


def scaled(folder: Path) -> Path:
    return patched((SLOPE, "f", 0.5), (INTER, "f", -3.0))(folder)


GOOD = [
    pytest.param(lambda folder: image(folder), id="plain"),
    pytest.param(placed(rotation()), id="T35-oblique"),
    pytest.param(placed(AFFINE[[2, 0, 1, 3]]), id="T35-permuted"),
    pytest.param(placed(with_affine(0, 1, 1e-6)), id="T34-noise-of-1e-6"),
    pytest.param(saved(voxels(shape=(24, 20, 1))), id="T43-single-slice"),
    pytest.param(placed(np.diag([0.5, 0.5, 10.0, 1.0])), id="T45-1-to-20"),
    pytest.param(big_endian, id="T53-big-endian"),
    pytest.param(nifti2, id="T54-nifti2"),
    pytest.param(scaled, id="scaled"),
    pytest.param(saved(voxels("float64")), id="float64"),
    pytest.param(saved(voxels(shape=(24, 20, 6, 1, 1))), id="trailing-ones"),
    pytest.param(lambda folder: image(folder, "a b \u00e9\u5fc3 [1]{x}%s.nii.gz"), id="T65-unicode-and-spaces"),
    pytest.param(lambda folder: image(folder, "new\nline.nii.gz"), id="T65-newline"),
    pytest.param(lambda folder: image(folder, "x" * 248 + ".nii.gz"), id="T65-255-characters"),
]


@pytest.mark.parametrize("build", GOOD)
def test_good_image_passes_without_a_finding_and_as_nibabel_reads_it(build, tmp_path):
    path = build(tmp_path)
    volume = read_volume(path)
    oracle = nib.load(path)
    assert volume.findings == ()
    np.testing.assert_array_equal(volume.array.squeeze(), oracle.get_fdata(dtype=np.float32).squeeze())
    np.testing.assert_allclose(volume.original_affine, oracle.affine, atol=1e-6)
    np.testing.assert_allclose(volume.affine, oracle.affine, atol=1e-4)
    assert read_header(path).shape == volume.array.shape


def test_message_with_a_newline_in_the_name_keeps_to_its_lines(tmp_path):
    path = tmp_path / "new\nline.nii.gz"
    path.write_bytes(b"")
    with pytest.raises(VmfError) as caught:
        read_volume(path)
    assert len(caught.value.render().splitlines()) == 4


@pytest.fixture
def ordinary_user():
    """Root may read everything: be somebody else during the test."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


@pytest.mark.usefixtures("ordinary_user")
def test_unreadable_file_is_named():  # T64
    with tempfile.TemporaryDirectory() as folder:
        path = image(Path(folder))
        path.chmod(0)
        with pytest.raises(VmfError, match="VMF203: the image file cannot be read") as caught:
            read_volume(path)
        assert caught.value.subject == str(path)
        Path(folder).chmod(0)
        with pytest.raises(VmfError, match="VMF203"):
            read_volume(path)
        Path(folder).chmod(0o700)


def test_image_too_large_for_the_machine_is_refused_before_allocation(tmp_path, monkeypatch):  # T60
    path = image(tmp_path)
    with pytest.raises(VmfError, match="VMF216: an image may have at most 1000 voxels"):
        read_volume(path, max_voxels=1000)
    monkeypatch.setattr("vmfseg.utils.memory.available_memory", lambda: 1000)
    with pytest.raises(VmfError, match="VMF512: the image does not fit into the free memory"):
        read_volume(path)


def test_bomb_is_not_inflated_beyond_its_declared_size(tmp_path, monkeypatch):  # T61
    path = bomb(tmp_path)
    seen = []
    original = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: seen.append(size) or original(self, size))
    with pytest.raises(VmfError, match="VMF213"):
        read_volume(path)
    assert seen
    assert all(0 <= size <= 1 << 20 for size in seen)


@pytest.mark.parametrize("workers", [0, 2])
def test_error_of_a_worker_names_the_file(workers, tmp_path):
    rows = []
    for index in range(6):
        path = image(tmp_path, f"scan{index}.nii.gz")
        rows.append({"image": str(path)})
    bad = Path(rows[3]["image"])
    bad.write_bytes(bad.read_bytes()[:-20])
    loader = DataLoader(Dataset(rows, LoadVolumed()), batch_size=1, num_workers=workers, collate_fn=lambda b: b)
    with pytest.raises(RuntimeError, match="applying transform") as caught:
        list(loader)
    error = find_vmf_error(caught.value)
    assert error is not None
    assert error.code == "VMF210"
    assert error.subject.endswith("scan3.nii.gz")
