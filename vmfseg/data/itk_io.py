# SPDX-License-Identifier: Apache-2.0
"""NRRD and MetaImage reader: ITK interprets the header, the bytes are read strictly.

ITK alone is not enough: what it does with missing data depends on the format (an error, a line on the terminal, or
zeros), so the voxels are taken from the file by :mod:`vmfseg.data.payload`, which counts them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import itk
import numpy as np

from vmfseg.data.findings import Finding
from vmfseg.data.geometry import Affine
from vmfseg.data.payload import MAX_DEFLATE_RATIO, check_file, check_memory, inflate_exactly, read_exactly
from vmfseg.data.volume import ReadRules, Stored, VolumeHeader, check_grid, check_shape
from vmfseg.utils import VmfError

__all__ = ["LPS_TO_RAS", "itk_affine", "itk_cause", "read_itk", "read_itk_header"]

#: ITK and DICOM count mm to the left and to the back, NIfTI and MONAI to the right and to the front.
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])

_TYPES = {
    "unsigned_char": "u1",
    "char": "i1",
    "unsigned_short": "u2",
    "short": "i2",
    "unsigned_int": "u4",
    "int": "i4",
    "long": "i8",
    "unsigned_long": "u8",
    "long_long": "i8",
    "unsigned_long_long": "u8",
    "float": "f4",
    "double": "f8",
}
_MAX_HEADER = 1 << 20


def read_itk_header(path: str, rules: ReadRules) -> VolumeHeader:
    """Read and check the header of a .nrrd or .mha file; no voxel is touched.

    Raises:
        VmfError: VMF201 to VMF241, see the table of the reader.
    """
    return _inspect(path, rules)[0]


def read_itk(path: str, rules: ReadRules) -> Stored:
    """Read a .nrrd or .mha file, header and all voxels.

    Raises:
        VmfError: VMF201 to VMF241, see the table of the reader.
    """
    header, start, encoding = _inspect(path, rules)
    voxels = math.prod(header.shape)
    size = voxels * header.dtype.itemsize
    held = (check_file(path) - start) * (1 if encoding == "raw" else MAX_DEFLATE_RATIO)
    if size > held:
        raise VmfError(
            "VMF211" if encoding == "raw" else "VMF214",
            subject=path,
            rule="the file holds fewer voxels than its header declares (truncated)",
            found=f"at most {held} of {size} bytes",
            fix="copy or download the file again",
        )
    check_memory(path, voxels, voxels * (header.dtype.itemsize + 8), rules.max_voxels)
    if encoding == "zlib":
        buffer = inflate_exactly(path, start=start, size=size)
    else:
        buffer = read_exactly(path, offset=0, size=size, compressed=encoding == "gzip", start=start)
    return Stored(header, np.frombuffer(buffer, dtype=header.dtype).reshape(header.shape, order="F"))


def itk_affine(directions: Any, spacing: Any, origin: Any) -> Affine:
    """Return the RAS affine of an ITK geometry; ``directions[i]`` is the direction of array axis ``i``."""
    affine = np.eye(4)
    affine[:3, :3] = np.asarray(directions, dtype=np.float64)[:3, :3].T * np.asarray(spacing, dtype=np.float64)[:3]
    affine[:3, 3] = np.asarray(origin, dtype=np.float64)[:3]
    return np.asarray(LPS_TO_RAS @ affine, dtype=np.float64)


def itk_cause(error: Exception) -> str:
    """Return the last telling line of an ITK exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][-160:] if lines else type(error).__name__


def _inspect(path: str, rules: ReadRules) -> tuple[VolumeHeader, int, str]:
    check_file(path)
    fields, start, encoding = _nrrd_fields(path) if path.lower().endswith(".nrrd") else _mha_fields(path)
    io = (itk.NrrdImageIO if path.lower().endswith(".nrrd") else itk.MetaImageIO).New()
    io.SetFileName(path)
    try:
        io.ReadImageInformation()
    except RuntimeError as error:
        raise _refuse(path, itk_cause(error)) from error
    kind = io.GetComponentTypeAsString(io.GetComponentType())
    if io.GetNumberOfComponents() != 1 or kind not in _TYPES:
        raise VmfError(
            "VMF219",
            subject=path,
            rule="voxels must be single integers or floats",
            found=f"{io.GetNumberOfComponents()} components of type {kind}",
            fix="save one scalar image; a time series as 4-D NIfTI",
        )
    order = "<" if io.GetByteOrderAsString(io.GetByteOrder()) != "BigEndian" else ">"
    axes = range(io.GetNumberOfDimensions())
    shape, findings = check_shape(path, [int(io.GetDimensions(i)) for i in axes])
    if len(axes) < 3:
        raise _refuse(path, "a 2-D image without a place in space")
    directions = [io.GetDirection(i)[:3] for i in range(3)]
    affine = itk_affine(directions, [io.GetSpacing(i) for i in range(3)], [io.GetOrigin(i) for i in range(3)])
    ortho, notes = check_grid(path, affine, shape, rules, "geometry")
    findings += notes
    if not fields & {"space directions", "transformmatrix", "orientation", "rotation"}:
        text = "no orientation in the header; voxel sizes are believed, axes are taken as L, P, S"
        findings.append(Finding("warning", "VMF225", path, text, path))
    dtype = np.dtype(order + _TYPES[kind])
    return VolumeHeader(path, shape, ortho, affine, dtype, findings=tuple(findings)), start, encoding


def _nrrd_fields(path: str) -> tuple[set[str], int, str]:
    """Return the field names, the offset of the data and its encoding."""
    block = _head(path)
    ends = [(block.find(mark), len(mark)) for mark in (b"\n\n", b"\r\n\r\n") if mark in block]
    if not block.startswith(b"NRRD") or not ends:
        raise _refuse(path, "no NRRD header" if not block.startswith(b"NRRD") else "the header has no end")
    end, width = min(ends)
    pairs = [line.split(":", 1) for line in block[:end].decode("latin-1").splitlines()[1:] if ":" in line]
    fields = {key.strip().lower(): value.strip() for key, value in pairs if not key.startswith("#")}
    if "data file" in fields or "datafile" in fields:
        raise _refuse(path, "the voxels are in another file", "save header and voxels in one .nrrd or .nii.gz file")
    if any(fields.get(key, "0") not in ("", "0") for key in ("line skip", "lineskip", "byte skip", "byteskip")):
        raise _refuse(path, "a header that skips bytes")
    encoding = {"raw": "raw", "gzip": "gzip", "gz": "gzip"}.get(fields.get("encoding", "").lower())
    if encoding is None:
        raise _refuse(path, f"encoding {fields.get('encoding')!r}", "save with raw or gzip encoding")
    return set(fields), end + width, encoding


def _mha_fields(path: str) -> tuple[set[str], int, str]:
    block = _head(path)
    fields: dict[str, str] = {}
    position = 0
    while "elementdatafile" not in fields:
        end = block.find(b"\n", position)
        key, equals, value = block[position:end].decode("latin-1").partition("=")
        if end < 0 or not equals:
            raise _refuse(path, "no complete MetaImage header")
        fields[key.strip().lower()] = value.strip()
        position = end + 1
    if fields["elementdatafile"].upper() != "LOCAL":
        raise _refuse(path, "the voxels are in another file", "save header and voxels in one .mha or .nii.gz file")
    if fields.get("binarydata", "true").lower() not in ("true", "1"):
        raise _refuse(path, "voxels written as text", "save with BinaryData = True")
    packed = fields.get("compresseddata", "false").lower() in ("true", "1")
    return set(fields), position, "zlib" if packed else "raw"


def _head(path: str) -> bytes:
    with Path(path).open("rb") as stream:
        return stream.read(_MAX_HEADER)


def _refuse(path: str, found: str, fix: str = "export the file again, best as .nii.gz") -> VmfError:
    return VmfError("VMF240", subject=path, rule="the header cannot be used", found=found, fix=fix)
