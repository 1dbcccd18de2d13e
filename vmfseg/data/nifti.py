# SPDX-License-Identifier: Apache-2.0
"""NIfTI-1 and NIfTI-2 reader: nibabel interprets the header, which is checked before it is used."""

from __future__ import annotations

import gzip
import math
import zlib
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.spatialimages import HeaderDataError

from vmfseg.data.findings import Finding
from vmfseg.data.geometry import FAIL_VOXELS, WARN_VOXELS, Affine, corner_distance, describe_grid, voxel_sizes
from vmfseg.data.payload import MAX_DEFLATE_RATIO, check_file, read_exactly, starts_gzip
from vmfseg.data.volume import ReadRules, Stored, VolumeHeader, check_grid, check_shape, check_spacing
from vmfseg.utils import VmfError
from vmfseg.utils.memory import check_memory

__all__ = ["read_nifti", "read_nifti_header"]

_TYPES = {"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"}
_REFUSED_TYPES = {
    1: "one bit a voxel",
    32: "complex numbers",
    128: "RGB colour",
    1536: "128-bit floats",
    1792: "complex numbers",
    2048: "complex numbers",
    2304: "RGBA colour",
}
_QUATERNION_ROUNDING = 4e-7  # of the square of the part that is not stored
_UNITS = {1: "metres", 3: "micrometres"}


def read_nifti_header(path: str, rules: ReadRules) -> VolumeHeader:
    """Read and check the header of a NIfTI file; no voxel is touched.

    Raises:
        VmfError: VMF201 to VMF229, see the table of the reader.
    """
    return _inspect(path, rules)[0]


def read_nifti(path: str, rules: ReadRules) -> Stored:
    """Read a NIfTI file, header and all voxels to the end of the stream.

    Raises:
        VmfError: VMF201 to VMF229, see the table of the reader.
    """
    header, offset, size, compressed = _inspect(path, rules)
    itemsize = header.dtype.itemsize
    voxels = math.prod(header.shape)
    check_memory(path, voxels, voxels * (itemsize + 8), rules.max_voxels)
    buffer = read_exactly(path, offset=offset, size=size, compressed=compressed)
    values = np.frombuffer(buffer, dtype=header.dtype).reshape(header.shape, order="F")
    return Stored(header, values)


def _inspect(path: str, rules: ReadRules) -> tuple[VolumeHeader, int, int, bool]:
    file_size = check_file(path)
    compressed = starts_gzip(path)
    findings: list[Finding] = []
    nifti = _parse(path, compressed)
    if compressed != path.lower().endswith(".gz"):
        text = f"the content is {'' if compressed else 'not '}gzip, the name says otherwise; read by content"
        findings.append(Finding("warning", "VMF215", path, text, path))
    dims = [int(n) for n in nifti["dim"]]
    if not 1 <= dims[0] <= 7:
        raise _bad_header(path, f"dim[0] is {dims[0]}")
    shape, notes = check_shape(path, dims[1 : dims[0] + 1])
    findings += notes
    dtype = _dtype(path, nifti)
    if int(nifti["bitpix"]) != dtype.itemsize * 8:
        text = f"bitpix {int(nifti['bitpix'])} does not fit {dtype.name}; the type is believed, the size agrees"
        findings.append(Finding("warning", "VMF209", path, text, path))
    offset, size = _extent(path, nifti, shape, dtype, file_size, compressed)
    voxels = math.prod(shape)
    if voxels > rules.max_voxels:
        check_memory(path, voxels, 0, rules.max_voxels)
    slope, inter = _scaling(path, nifti)
    findings += _check_qfac(path, nifti)
    affine, ortho, notes = _affine(path, nifti, shape, rules)
    findings += notes
    header = VolumeHeader(path, shape, ortho, affine, dtype, slope, inter, nifti, tuple(findings))
    return header, offset, size, compressed


def _parse(path: str, compressed: bool) -> Any:
    """Return the nibabel header of a single-file NIfTI-1 or NIfTI-2, unchecked by nibabel."""
    try:
        with open(path, "rb") as file:
            block = (gzip.GzipFile(fileobj=file) if compressed else file).read(540)
    except EOFError:
        block = b""
    except (zlib.error, gzip.BadGzipFile) as error:
        raise VmfError("VMF212", subject=path, rule="the gzip stream is corrupt", found=str(error)) from error
    for kind, length in ((nib.Nifti1Header, 348), (nib.Nifti2Header, 540)):
        for endian in "<>":
            if len(block) >= 4 and block[:4] == length.to_bytes(4, "little" if endian == "<" else "big"):
                if len(block) < length:
                    raise _short(path, len(block), length)
                return _check_magic(path, kind(block[:length], endianness=endian, check=False))
    if len(block) < 348 and not block.lstrip().startswith((b"<", b"{", b"P")):
        raise _short(path, len(block), 348)
    if block[344:348] in (b"n+1\0", b"ni1\0"):
        raise _bad_header(path, f"sizeof_hdr is {int.from_bytes(block[:4], 'little', signed=True)} instead of 348")
    raise VmfError(
        "VMF206",
        subject=path,
        found=f"it starts with {bytes(block[:12])!r}" + (" (a web page?)" if block.lstrip()[:1] == b"<" else ""),
    )


def _check_magic(path: str, nifti: Any) -> Any:
    magic = bytes(nifti["magic"].tobytes()).rstrip(b"\0\r\n\x1a")
    if magic in (b"n+1", b"n+2"):
        marks = nifti["eol_check"].tobytes() if magic == b"n+2" else b"\0\0\0\0"
        if marks not in (b"\0\0\0\0", b"\r\n\x1a\n"):  # NIfTI-2 has them to show a transfer as text
            raise _bad_header(path, f"eol_check is {marks!r}: line ends were converted")
        return nifti
    found = {b"ni1": "the header of a .hdr/.img pair", b"ni2": "the header of a .hdr/.img pair", b"": "Analyze 7.5"}
    raise VmfError("VMF208", subject=path, found=found.get(magic, f"magic {magic!r}"))


def _dtype(path: str, nifti: Any) -> np.dtype[Any]:
    code = int(nifti["datatype"])
    try:
        dtype: np.dtype[Any] = np.dtype(nifti.get_data_dtype())
    except (HeaderDataError, KeyError):
        dtype = np.dtype("V1")
    if code in _REFUSED_TYPES or dtype.name not in _TYPES:
        raise VmfError(
            "VMF219",
            subject=path,
            rule="voxels must be integers up to 64 bits or floats of 32 or 64 bits",
            found=_REFUSED_TYPES.get(code, f"datatype {code}"),
            fix="save one scalar image, for instance as float32 (of complex data the magnitude)",
        )
    return dtype.newbyteorder("<" if nifti.endianness == "<" else ">")


def _extent(
    path: str, nifti: Any, shape: tuple[int, ...], dtype: np.dtype[Any], file_size: int, compressed: bool
) -> tuple[int, int]:
    """Return offset and size of the voxels after checking that the file can hold them."""
    start = float(nifti["vox_offset"])
    lowest = 352 if nifti.sizeof_hdr == 348 else 544
    if not math.isfinite(start) or start < lowest or start != int(start):
        raise _bad_header(path, f"vox_offset is {start:g}, below {lowest} or no whole number")
    offset, size = int(start), math.prod(shape) * dtype.itemsize
    if compressed:
        limit = file_size * MAX_DEFLATE_RATIO
        if offset + size > limit:
            raise VmfError(
                "VMF214", subject=path, found=f"{offset + size} bytes declared in a gzip file of {file_size}"
            )
    elif offset + size > file_size:
        raise VmfError("VMF211", subject=path, found=f"{max(0, file_size - offset)} of {size} bytes")
    return offset, size


def _check_qfac(path: str, nifti: Any) -> list[Finding]:
    """Read ``pixdim[0]`` 0 as 1, as the standard says; the header is changed so that outputs can be written with it."""
    qfac = float(nifti["pixdim"][0])
    if qfac in (-1.0, 1.0) or not int(nifti["qform_code"]) > 0:
        return []
    if qfac != 0:
        raise _bad_header(path, f"pixdim[0] is {qfac:g}, neither 1 nor -1")
    nifti["pixdim"][0] = 1.0
    text = "pixdim[0], the handedness of the qform, is 0; read as 1, as the standard says"
    return [Finding("warning", "VMF209", path, text, path)]


def _scaling(path: str, nifti: Any) -> tuple[float, float]:
    slope, inter = float(nifti["scl_slope"]), float(nifti["scl_inter"])
    if not (math.isfinite(slope) and math.isfinite(inter)):
        raise VmfError(
            "VMF220", subject=path, rule="scl_slope and scl_inter must be finite", found=f"{slope:g} and {inter:g}"
        )
    return (slope, inter) if slope != 0 else (1.0, 0.0)  # the standard: slope 0 means no scaling


def _affine(path: str, nifti: Any, shape: tuple[int, ...], rules: ReadRules) -> tuple[Affine, Affine, list[Finding]]:
    """Return the affine as stored, the one for processing, and findings."""
    unit = int(nifti["xyzt_units"]) & 7
    if unit in _UNITS:
        raise VmfError(
            "VMF222", subject=path, found=_UNITS[unit], fix="convert spacing and affine to mm, or correct the unit code"
        )
    pixdim = np.asarray(nifti["pixdim"][1:4], dtype=np.float64)
    check_spacing(path, pixdim)
    codes = {name: int(nifti[f"{name}_code"]) for name in ("sform", "qform")}
    for name, code in codes.items():
        if not 0 <= code <= 5:
            raise _bad_header(path, f"{name}_code is {code}")
    forms = {name: _form(path, nifti, name) for name, code in codes.items() if code > 0 and name != _other(rules)}
    if not forms and rules.prefer is not None and codes[_other(rules)] > 0:
        forms = {_other(rules): _form(path, nifti, _other(rules))}
    findings: list[Finding] = []
    if not forms:
        base = np.diag([*pixdim, 1.0])
        text = "no orientation in the header; voxel sizes are believed, axes are taken as R, A, S"
        findings.append(Finding("warning", "VMF225", path, text, path))
        return base, *_checked(path, base, shape, rules, findings, "pixdim")
    name = "sform" if "sform" in forms else "qform"
    affine = forms[name]
    ortho, findings = _checked(path, affine, shape, rules, findings, name)
    rivals = {"qform": forms["qform"]} if len(forms) == 2 else {}
    rivals["pixdim"] = affine.copy()
    rivals["pixdim"][:3, :3] *= pixdim / voxel_sizes(affine)
    for rival, other in rivals.items():
        slack = _quaternion_slack(nifti, affine, shape) if rival == "qform" else 0.0
        findings += _compare_forms(path, ortho if rival == "qform" else affine, other, shape, rival, rules, slack)
    return affine, ortho, findings


def _checked(
    path: str, affine: Affine, shape: tuple[int, ...], rules: ReadRules, findings: list[Finding], source: str
) -> tuple[Affine, list[Finding]]:
    ortho, notes = check_grid(path, affine, shape, rules, source)
    return ortho, findings + notes


def _quaternion_slack(nifti: Any, affine: Affine, shape: tuple[int, ...]) -> float:
    r"""Return how far a corner may move, in voxels, because the qform is stored as three 32-bit numbers.

    The fourth part of the quaternion, :math:`a = \sqrt{1 - b^2 - c^2 - d^2}`, is not stored. Near half a turn, where
    scans in DICOM's axes lie, :math:`a` is small and rounding of the others turns the whole grid by up to 1e-3 rad.
    """
    squared = max(0.0, 1.0 - sum(float(nifti[f"quatern_{part}"]) ** 2 for part in "bcd"))
    more, less = squared + _QUATERNION_ROUNDING, max(0.0, squared - _QUATERNION_ROUNDING)
    angle = 2.0 * max(math.sqrt(more) - math.sqrt(squared), math.sqrt(squared) - math.sqrt(less))
    diagonal = np.linalg.norm(affine[:3, :3] @ (np.asarray(shape[:3], dtype=np.float64) - 1.0))
    return float(angle * diagonal / voxel_sizes(affine).min())


def _compare_forms(
    path: str, affine: Affine, other: Affine, shape: tuple[int, ...], rival: str, rules: ReadRules, slack: float
) -> list[Finding]:
    if not np.isfinite(other).all():
        mm = voxels = math.inf
    else:
        mm, voxels = corner_distance(affine, other, shape)
        voxels -= slack
    if voxels <= WARN_VOXELS:
        return []
    if voxels > FAIL_VOXELS and not (rival == "pixdim" and rules.prefer is not None):
        raise VmfError(
            "VMF224",
            subject=path,
            rule=f"sform and {rival} contradict each other",
            found=f"{describe_grid(affine, shape)} and {describe_grid(other, shape)}, {mm:.3g} mm apart at a corner",
        )
    return [Finding("warning", "VMF224", path, f"sform and {rival} differ by {mm:.2g} mm at a corner", path)]


def _form(path: str, nifti: Any, name: str) -> Affine:
    try:
        form = nifti.get_sform() if name == "sform" else nifti.get_qform()
    except (ValueError, np.linalg.LinAlgError):  # nibabel: no unit quaternion
        form = np.full((4, 4), np.nan)
    return np.asarray(form, dtype=np.float64)


def _other(rules: ReadRules) -> str:
    return {"sform": "qform", "qform": "sform", None: ""}[rules.prefer]


def _short(path: str, found: int, wanted: int) -> VmfError:
    return VmfError("VMF207", subject=path, found=f"{found} of {wanted} bytes")


def _bad_header(path: str, found: str) -> VmfError:
    return VmfError("VMF209", subject=path, found=found)
