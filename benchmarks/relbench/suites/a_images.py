# SPDX-License-Identifier: Apache-2.0
"""Suite A: bad images are refused or repaired aloud; good ones pass, and their label map lies on their grid."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np

from benchmarks.relbench.meeting import Fault, case
from benchmarks.relbench.scans import AFFINE, SHAPE, array_of, edit_header, rewrite, write_scan
from benchmarks.relbench.tools.base import Job, Wanted
from benchmarks.relbench.verdict import Case

__all__ = ["cases"]

SCAN = "scan.nii.gz"
NAN, INF = float("nan"), float("inf")


def good_scan(place: Path) -> None:
    """One good scan."""
    write_scan(place / SCAN)


def segment(name: str = SCAN, *words: str) -> Job:
    """Ask for the label map of an image."""
    return Job("segment", (name, "-o", "out", *words), {"images": [name]})


def _bad(
    name: str, threat: str, damage: Callable[[Path], object], code: str, cause: str, file: str = SCAN, status: int = 3
) -> Case:
    fault = Fault(good_scan, damage, segment(file), Wanted(cause, _quoted(file), code, status), later=segment())
    return case("A", name, threat, fault)


def _noted(name: str, threat: str, damage: Callable[[Path], object], code: str, cause: str, *words: str) -> Case:
    wanted = Wanted(cause, _quoted(SCAN), code, noted=True)
    return case("A", name, threat, Fault(good_scan, damage, segment(SCAN, *words), wanted, segment(), SCAN))


def _control(name: str, threat: str, damage: Callable[[Path], object], file: str = SCAN) -> Case:
    return case("A", name, threat, Fault(good_scan, damage, segment(file), geometry=file))


def _quoted(name: str) -> str:
    return name.replace(".", r"\.")


def header(**fields: object) -> Callable[[Path], object]:
    """Damage the header of the scan."""
    return lambda place: edit_header(place / SCAN, **fields)


def content(change: Callable[[bytes], bytes], inside: bool = False) -> Callable[[Path], object]:
    """Damage the bytes of the scan."""
    return lambda place: rewrite(place / SCAN, change, inside=inside)


def voxels(change: Callable[[np.ndarray], object], dtype: str = "float32") -> Callable[[Path], object]:
    """Change the voxels of the scan."""

    def damage(place: Path) -> None:
        array = array_of(dtype=dtype)
        change(array)
        write_scan(place / SCAN, array)

    return damage


def image(
    array: np.ndarray | None = None, affine: np.ndarray = AFFINE, name: str = SCAN, **codes: int
) -> Callable[[Path], object]:
    """Write another image in the place of the scan."""
    return lambda place: write_scan(place / name, array, affine, **codes)


def typed(dtype: np.dtype) -> Callable[[Path], object]:
    """Write voxels of a type that images seldom have."""

    def damage(place: Path) -> None:
        nib.save(nib.Nifti1Image(np.zeros(SHAPE, dtype), AFFINE, dtype=dtype), place / SCAN)  # type: ignore[attr-defined]

    return damage


def sheared(amount: float) -> np.ndarray:
    """Return the affine with axes that are not perpendicular."""
    affine = AFFINE.copy()
    affine[0, 1] += amount
    return affine


def oblique() -> np.ndarray:
    """Return an affine turned about two axes."""
    affine = np.eye(4)
    a, b = 0.5, 0.3
    first = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    second = np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]])
    affine[:3, :3] = first @ second @ AFFINE[:3, :3]
    affine[:3, 3] = (-30.0, 12.0, 5.0)
    return affine


def _crc(data: bytes) -> bytes:
    return data[:-8] + struct.pack("<I", zlib.crc32(b"other")) + data[-4:]


def _flip(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 0x10
    return bytes(changed)


def _fifo(place: Path) -> None:
    os.mkfifo(place / "pipe.nii")


def _device(place: Path) -> None:
    (place / "zero.nii").symlink_to("/dev/zero")


def _mha(text: str) -> Callable[[Path], object]:
    def damage(place: Path) -> None:
        lines = ["ObjectType = Image", "NDims = 3", "BinaryData = True", "BinaryDataByteOrderMSB = False",
                 "DimSize = 24 20 6", "ElementSpacing = 1.25 1.25 8", "ElementType = MET_SHORT"]  # fmt: skip
        key = text.split(" = ")[0]
        kept = [line for line in lines if line.split(" = ")[0] != key]
        head = "\n".join([kept[0], text, *kept[1:], "ElementDataFile = LOCAL"]) + "\n"
        (place / "scan.mha").write_bytes(head.encode() + array_of().tobytes(order="F"))

    return damage


def _big_endian(place: Path) -> None:
    picture = nib.Nifti1Image(array_of(), AFFINE, nib.Nifti1Header(endianness=">"))
    picture.set_sform(AFFINE, 1)
    nib.save(picture, place / SCAN)  # type: ignore[attr-defined]


def _misnamed(place: Path) -> None:
    rewrite(place / SCAN, gzip.decompress)


def cases() -> list[Case]:
    """Return the 45 cases."""
    huge = {f"dim{k}": 32767 for k in (1, 2, 3)}
    rgb = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
    cut = r"truncated|fewer|ended before|end of|expected \d+ bytes|EOF"
    return [
        _bad("truncated-gz", "T10", content(lambda d: d[: len(d) // 2]), "VMF210", cut),
        _bad("truncated-inside-gz", "T11", content(lambda d: d[:-999], True), "VMF211", cut),
        _bad("short-header", "T12", content(lambda d: d[:200], True), "VMF207",
             r"inside its header|(short|truncated|incomplete) header|header .*(short|truncated)|file type"),
        _bad("empty", "T13", content(lambda d: b""), "VMF204", "empty"),
        _bad("web-page", "T14", content(lambda d: b"<!DOCTYPE html><html>404</html>"), "VMF206",
             "web page|not a gzip|not NIfTI"),
        _bad("garbage", "T14", content(lambda d: b"x" * 4000), "VMF206", "not NIfTI|not a gzip|file type"),
        _bad("bad-crc", "T15", content(_crc), "VMF212", "CRC|checksum"),
        _bad("bit-flip", "T16", content(_flip), "VMF21[02]", "corrupt|truncated|CRC|decompress"),
        _bad("junk-after-gz", "T16", content(lambda d: d + b"junk"), "VMF212", "follow|after the|trailing|not a gzip"),
        _bad("nan", "T20", voxels(lambda a: a.__setitem__((1, 2, 3), np.nan)), "VMF230", "NaN"),
        _bad("all-nan", "T20", voxels(lambda a: a.fill(np.nan)), "VMF230", "NaN"),
        _bad("inf", "T21", voxels(lambda a: a.__setitem__((1, 2, 3), -np.inf)), "VMF231", r"infinite|\binf\b"),
        _bad("constant", "T22", voxels(lambda a: a.fill(7)), "VMF232", "every voxel is 7|constant"),
        _bad("absurd-range", "T23", voxels(lambda a: a.__setitem__((0, 0, 0), 1e20)), "VMF233", r"1e\+20|large|range"),
        _bad("float64-offset", "T23", voxels(lambda a: a.__iadd__(1e9), "float64"), "VMF23[0-9]|VMF219|VMF227",
             "float32|32-bit|precision|cast|large"),
        _bad("zero-spacing", "T30", header(pixdim1=0.0), "VMF221", r"voxel size|spacing|pixdim|\b0 x 1\.25"),
        _bad("negative-spacing", "T30", header(pixdim2=-1.25), "VMF221", "voxel size|spacing|pixdim|-1.25"),
        _bad("nan-spacing", "T30", header(pixdim3=NAN), "VMF221", "nan"),
        _bad("unit-micrometres", "T30", header(units=3), "VMF222", "unit|micromet"),
        _bad("zero-sform", "T31", lambda p: rewrite(p / SCAN, lambda d: d[:280] + bytes(48) + d[328:], inside=True),
             "VMF223", "sform|singular|affine|SVD"),
        _bad("nan-sform", "T31", header(srow_x0=NAN), "VMF223", "sform|affine|nan|SVD"),
        _bad("mirrored-sform", "T32", header(srow_x0=-1.25), "VMF224", "contradict|conflict|differ|inconsistent"),
        _bad("shear", "T34", image(affine=sheared(0.6), qform=0), "VMF226", "perpendicular|shear|orthonormal|degrees"),
        _bad("nan-slope", "T36", header(slope=NAN), "VMF220", "scaling|slope|nan"),
        _bad("five-dimensions", "T41", image(array_of((24, 20, 6, 1, 3))), "VMF218",
             r"5 dimensions|5-?D\b|five|ndim|rank|too many"),
        _bad("one-voxel", "T44", image(array_of((1, 1, 1))), "VMF229", r"1x1x1|too small|at least|\b1, 1, 1\b"),
        _bad("rgb", "T50", typed(rgb), "VMF219", "RGB|structured|dtype|data ?type|voxel type|void"),
        _bad("complex", "T51", typed(np.dtype("complex64")), "VMF219", "complex"),
        _bad("bad-magic", "T54", header(magic=b"zzz\0"), "VMF208", "magic|file type"),
        _bad("header-size-347", "T54", header(sizeof=347), "VMF209", "347|sizeof"),
        _bad("header-bomb", "T60", header(**huge), "VMF214", r"declare|too (large|small)|fewer|memory|allocate"),
        _bad("gzip-bomb", "T61", content(lambda d: gzip.compress(gzip.decompress(d) + bytes(64 << 20))), "VMF213",
             "more data|larger|surplus"),
        _bad("negative-dimension", "T62", header(dim2=-20), "VMF218", r"-20|negative"),
        _bad("fifo", "T63", _fifo, "VMF202", "named pipe|not a (regular )?file", "pipe.nii"),
        _bad("device", "T63", _device, "VMF202", "character device|not a (regular )?file", "zero.nii"),
        _bad("mha-minus-5-dimensions", "T62", _mha("NDims = -5"), "VMF240|VMF218", "NDims|-5|dimension", "scan.mha"),
        _noted("no-orientation", "T33", image(qform=0, sform=0), "VMF225", "no orientation|no affine|no .form"),
        _noted("nan-replaced", "T20", voxels(lambda a: a.__setitem__((1, 2, 3), np.nan)), "VMF230", "NaN", "--nan-to",
               "0"),
        _noted("one-2d-slice", "T42", image(array_of((24, 20))), "VMF236", "2-?D|(one|single) slice|two dimensions"),
        _noted("gz-named-wrongly", "T55", _misnamed, "VMF215", "gzip|by content|compress"),
        _control("oblique", "T35", image(affine=oblique())),
        _control("single-slice", "T43", image(array_of((24, 20, 1)))),
        _control("anisotropic-1-to-20", "T45", image(affine=np.diag([0.5, 0.5, 10.0, 1.0]))),
        _control("big-endian", "T53", _big_endian),
        _control("strange-name", "T65", image(name="a b \u00e9\u5fc3 [1].nii.gz"), "a b \u00e9\u5fc3 [1].nii.gz"),
    ]  # fmt: skip
