# SPDX-License-Identifier: Apache-2.0
"""MetaImage (.mha) header: every field that decides what the voxels mean is read, or the file is refused."""

from __future__ import annotations

import numpy as np

from vmfseg.data.text_header import (
    TextHeader,
    axis_sizes,
    check_unit,
    finite_numbers,
    itk_affine,
    no_spacing,
    not_scalar,
    read_head,
    refuse_header,
    spatial_part,
)
from vmfseg.data.volume import check_spacing
from vmfseg.utils import VmfError

__all__ = ["parse_mha"]

_TYPES = {
    "met_char": "i1", "met_uchar": "u1", "met_short": "i2", "met_ushort": "u2", "met_int": "i4", "met_uint": "u4",
    "met_long": "i4", "met_ulong": "u4", "met_long_long": "i8", "met_ulong_long": "u8", "met_float": "f4",
    "met_double": "f8",
}  # fmt: skip
_TRUE, _FALSE = {"true", "t", "1"}, {"false", "f", "0"}
#: Names of one thing; the format has had several.
_SYNONYMS = {
    "transformmatrix": ("transformmatrix", "rotation", "orientation"),
    "offset": ("offset", "position", "origin"),
    "msb": ("binarydatabyteordermsb", "elementbyteordermsb"),
}
_SLOPE, _INTER = "elementtointensityfunctionslope", "elementtointensityfunctionoffset"


def parse_mha(path: str) -> TextHeader:
    """Read the header of a .mha file.

    Raises:
        VmfError: VMF240 a header that cannot be used, VMF219 voxels that are no single numbers, VMF220 a scaling that
            is not finite, VMF221 no spacing or a wrong one, VMF222 a unit that is not mm.
    """
    fields, start = _fields(path)
    if fields.get("objecttype", "image").lower() != "image":
        raise refuse_header(path, f"ObjectType {fields['objecttype'][:40]!r}")
    sizes = axis_sizes(path, ("NDims", fields.get("ndims", "")), ("DimSize", fields.get("dimsize", "")))
    count = len(sizes)
    _check_storage(path, fields)
    check_unit(path, fields.get("distanceunits", ""))
    if "elementspacing" not in fields:
        raise no_spacing(path, "no ElementSpacing")
    spacing = finite_numbers(path, "ElementSpacing", fields["elementspacing"], count)[:3]
    check_spacing(path, spacing)
    directions, origin = np.eye(3), np.zeros(3)
    matrix, offset = _one_of(path, fields, "transformmatrix"), _one_of(path, fields, "offset")
    if matrix:
        values = finite_numbers(path, "TransformMatrix", matrix, count * count).reshape(count, count)
        directions = spatial_part(path, "TransformMatrix", values)
    if offset:
        origin = finite_numbers(path, "Offset", offset, count)[:3]
    if finite_numbers(path, "CenterOfRotation", fields.get("centerofrotation", "0 " * count), count).any():
        raise refuse_header(path, f"CenterOfRotation is {fields['centerofrotation'][:60]}", "put it into Offset")
    missing = " and no ".join(name for name, text in (("orientation", matrix), ("position", offset)) if not text)
    slope, inter = (float(fields.get(key, default)) for key, default in ((_SLOPE, "1"), (_INTER, "0")))
    return TextHeader(
        sizes, itk_affine(directions, spacing, origin), _dtype(path, fields), start,
        "zlib" if _flag(path, fields, "compresseddata", False) else "raw", missing, slope, inter,
    )  # fmt: skip


def _fields(path: str) -> tuple[dict[str, str], int]:
    """Return the fields up to the one that ends the header, and where the voxels begin."""
    block = read_head(path)
    fields: dict[str, str] = {}
    position = 0
    while "elementdatafile" not in fields:
        end = block.find(b"\n", position)
        key, equals, value = block[position:end].decode("latin-1").partition("=")
        if end < 0 or not equals:
            raise refuse_header(path, "no complete MetaImage header")
        name = key.strip().lower()
        if name in fields:
            raise refuse_header(path, f"{key.strip()[:40]} comes twice")
        fields[name] = value.strip()
        position = end + 1
    return fields, position


def _check_storage(path: str, fields: dict[str, str]) -> None:
    if fields["elementdatafile"].upper() != "LOCAL":
        raise refuse_header(path, "the voxels are in another file", "save header and voxels in one .mha or .nii.gz")
    if not _flag(path, fields, "binarydata", False):
        raise refuse_header(path, "voxels written as text", "save with BinaryData = True")
    if fields.get("headersize", "0") != "0":
        raise refuse_header(path, "a header that skips bytes")
    try:
        scaling = [float(fields.get(key, "1")) for key in (_SLOPE, _INTER)]
    except ValueError:
        scaling = [np.nan]
    if not np.isfinite(scaling).all() or scaling[0] == 0:
        raise VmfError(
            "VMF220",
            subject=path,
            rule="slope and offset of the intensities must be finite, the slope not 0",
            found=f"{fields.get(_SLOPE, '1')[:40]} and {fields.get(_INTER, '0')[:40]}",
        )


def _dtype(path: str, fields: dict[str, str]) -> np.dtype[np.generic]:
    kind, channels = fields.get("elementtype", ""), fields.get("elementnumberofchannels", "1")
    if kind.lower() not in _TYPES or channels != "1":
        raise not_scalar(path, f"{channels[:20]} components of type {kind[:40] or 'unknown'}")
    msb = _one_of(path, fields, "msb") or "False"
    return np.dtype((">" if _flag(path, {"msb": msb}, "msb", False) else "<") + _TYPES[kind.lower()])


def _one_of(path: str, fields: dict[str, str], name: str) -> str:
    """Return the value of a field that has several names."""
    given = [fields[key] for key in _SYNONYMS[name] if key in fields]
    if len(set(given)) > 1:
        raise refuse_header(path, f"{' and '.join(key for key in _SYNONYMS[name] if key in fields)} differ")
    return given[0] if given else ""


def _flag(path: str, fields: dict[str, str], key: str, default: bool) -> bool:
    text = fields.get(key, str(default)).lower()
    if text not in _TRUE | _FALSE:
        raise refuse_header(path, f"{key} is {text[:40]!r}, neither True nor False")
    return text in _TRUE
