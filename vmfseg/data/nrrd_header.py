# SPDX-License-Identifier: Apache-2.0
"""NRRD header: every field that decides what the voxels mean is read, or the file is refused."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from vmfseg.data.geometry import Affine
from vmfseg.data.text_header import (
    LPS_TO_RAS,
    TextHeader,
    axis_sizes,
    check_unit,
    finite_numbers,
    no_spacing,
    not_scalar,
    read_head,
    refuse_header,
    spatial_part,
    whole_numbers,
)

__all__ = ["parse_nrrd"]

_ALIASES = {
    "i1": "signed char, int8, int8_t",
    "u1": "uchar, unsigned char, uint8, uint8_t",
    "i2": "short, short int, signed short, signed short int, int16, int16_t",
    "u2": "ushort, unsigned short, unsigned short int, uint16, uint16_t",
    "i4": "int, signed int, int32, int32_t",
    "u4": "uint, unsigned int, uint32, uint32_t",
    "i8": "longlong, long long, long long int, signed long long, signed long long int, int64, int64_t",
    "u8": "ulonglong, unsigned long long, unsigned long long int, uint64, uint64_t",
    "f4": "float",
    "f8": "double",
}
_TYPES = {name: code for code, names in _ALIASES.items() for name in names.split(", ")}
#: Signs that bring a space to RAS. ITK writes 4-D images without a name, in LPS.
_SPACES = {"left-posterior-superior": (-1, -1, 1), "right-anterior-superior": (1, 1, 1),
           "left-anterior-superior": (-1, 1, 1)}  # fmt: skip
_SHORT = {"lps": "left-posterior-superior", "ras": "right-anterior-superior", "las": "left-anterior-superior"}
_ENCODINGS = {"raw": "raw", "gzip": "gzip", "gz": "gzip"}
_PER_VOXEL = ("old min", "old max")  # of values that were squeezed into fewer bits
_SKIPS = ("line skip", "byte skip")
_KNOWN = {
    "content", "number", "type", "block size", "dimension", "space", "space dimension", "sizes", "spacings",
    "thicknesses", "axis mins", "axis maxs", "centers", "labels", "units", "kinds", "min", "max", "old min", "old max",
    "data file", "endian", "encoding", "line skip", "byte skip", "sample units", "space units", "space origin",
    "space directions", "measurement frame",
}  # fmt: skip
_JOINED = {name.replace(" ", ""): name for name in _KNOWN} | {"centerings": "centers"}


def parse_nrrd(path: str) -> TextHeader:
    """Read the header of a .nrrd file.

    Raises:
        VmfError: VMF240 a header that cannot be used, VMF219 voxels that are no single numbers, VMF221 no spacing,
            VMF222 a unit that is not mm.
    """
    fields, start = _fields(path)
    sizes = axis_sizes(path, ("dimension", fields.get("dimension", "")), ("sizes", fields.get("sizes", "")))
    count = len(sizes)
    encoding = _ENCODINGS.get(fields.get("encoding", "").lower())
    if encoding is None:
        raise refuse_header(path, f"encoding {fields.get('encoding', '')[:40]!r}", "save with raw or gzip encoding")
    _check_kinds(path, fields, count)
    affine, place = _affine(path, fields, count)
    return TextHeader(sizes, affine, _dtype(path, fields), start, encoding, place)


def _fields(path: str) -> tuple[dict[str, str], int]:
    """Return the fields by name, and where the voxels begin."""
    block = read_head(path)
    ends = [(block.find(mark), len(mark)) for mark in (b"\n\n", b"\r\n\r\n") if mark in block]
    if not re.match(rb"NRRD000[1-5]\r?\n", block) or not ends:
        raise refuse_header(path, "no NRRD header" if not block.startswith(b"NRRD") else "the header has no end")
    end, width = min(ends)
    fields: dict[str, str] = {}
    for line in block[:end].decode("latin-1").splitlines()[1:]:
        key, colon, value = line.partition(":")
        if line.startswith("#") or value.startswith("="):
            continue  # a comment, or a pair of the user's own
        name = _JOINED.get(key.strip().lower().replace(" ", ""))
        if not colon or name is None or name in fields:
            fault = "comes twice" if name in fields else "is no field of NRRD"
            raise refuse_header(path, f"the line {line[:60]!r} {fault}")
        fields[name] = value.strip()
    if "data file" in fields:
        fix = "save header and voxels in one .nrrd or .nii.gz file"
        raise refuse_header(path, "the voxels are in another file", fix)
    if any(fields.get(key, "0") not in ("", "0") for key in _SKIPS):
        raise refuse_header(path, "a header that skips bytes")
    if any(key in fields for key in _PER_VOXEL):
        raise refuse_header(path, "values that were quantized (old min, old max)", "save the values themselves")
    return fields, end + width


def _check_kinds(path: str, fields: dict[str, str], count: int) -> None:
    kinds = fields.get("kinds", "domain " * count).lower().split()
    good = {"domain", "space", "none", "???"}
    if len(kinds) != count or not set(kinds[:3]) <= good or not set(kinds[3:]) <= good | {"time", "list"}:
        rule = "the axes must be three of space, and time as the fourth"
        raise not_scalar(path, f"kinds {fields.get('kinds', '')[:60]}", rule)


def _dtype(path: str, fields: dict[str, str]) -> np.dtype[np.generic]:
    kind = " ".join(fields.get("type", "").lower().split())
    if kind not in _TYPES:
        raise not_scalar(path, f"type {kind[:40] or 'unknown'}")
    endian = {"little": "<", "big": ">"}.get(fields.get("endian", "").lower())
    if endian is None and _TYPES[kind][1] != "1":
        raise refuse_header(path, f"endian {fields.get('endian', '')[:40]!r}, neither little nor big")
    return np.dtype((endian or "<") + _TYPES[kind])


def _affine(path: str, fields: dict[str, str], count: int) -> tuple[Affine, str]:
    """Return the affine in RAS, and what of the orientation the header leaves open."""
    words = fields.get("space", "").strip('"').lower()
    time = words.endswith(("-time", "t")) and words.removesuffix("-time").removesuffix("t") in {*_SHORT, *_SPACES}
    name = words.removesuffix("-time").removesuffix("t") if time else words
    name = _SHORT.get(name, name)
    for unit in re.findall(r'"[^"]*"|\S+', fields.get("space units", "") or fields.get("units", ""))[:3]:
        check_unit(path, unit)
    if name and name not in _SPACES:
        fix = f"save the image in one of {', '.join(_SPACES)}"
        raise refuse_header(path, f"space {words[:40]!r}, whose axes are not those of a patient", fix)
    if "space directions" not in fields:
        if name or "spacings" not in fields:
            raise no_spacing(path, "no space directions" if name else "neither space directions nor spacings")
        spacing = finite_numbers(path, "spacings", " ".join(fields["spacings"].split()[:3]), 3)
        return np.asarray(LPS_TO_RAS @ np.diag([*spacing, 1.0])), "orientation and no position"
    if "spacings" in fields and set(fields["spacings"].lower().split()) != {"nan"}:
        raise refuse_header(path, "spacings beside space directions")
    declared = (
        4 if time else 3 if name else whole_numbers(path, "space dimension", fields.get("space dimension", ""))[0]
    )
    matrix = _vectors(path, fields["space directions"], count, declared)
    affine = np.eye(4)
    affine[:3, :3] = spatial_part(path, "space directions", matrix).T
    if "space origin" in fields:
        affine[:3, 3] = _vector(path, "space origin", fields["space origin"], declared)[:3]
    affine[:3] *= np.asarray(_SPACES[name or "left-posterior-superior"], dtype=np.float64)[:, None]
    missing = " and no ".join(
        what for what, there in (("orientation", name), ("position", "space origin" in fields)) if not there
    )
    return affine, missing


def _vectors(path: str, text: str, count: int, declared: int) -> npt.NDArray[np.float64]:
    """Return the directions of the axes as rows; an axis without one, time, must be the fourth."""
    words = re.findall(r"\([^)]*\)|\S+", text)
    if len(words) != count or declared not in (3, 4) or "none" in (word.lower() for word in words[:3]):
        raise refuse_header(path, f"space directions {text[:60]!r} of {count} axes in {declared} dimensions")
    rows = np.zeros((4, 4))
    rows[3, 3] = 1.0
    for number, word in enumerate(words):
        if word.lower() != "none":
            rows[number, :declared] = _vector(path, "space directions", word, declared)
    if count == 4 and words[3].lower() != "none" and declared == 3:
        raise refuse_header(path, "four directions in a space of three dimensions")
    return rows


def _vector(path: str, key: str, text: str, count: int) -> npt.NDArray[np.float64]:
    if not (text.startswith("(") and text.endswith(")")):
        raise refuse_header(path, f"{key} is {text[:60]!r}, no vector")
    return finite_numbers(path, key, text[1:-1].replace(",", " "), count)
