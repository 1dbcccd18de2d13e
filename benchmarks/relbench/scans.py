# SPDX-License-Identifier: Apache-2.0
"""Scans, label maps and tables made from one seed, and the ways to damage their files."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

__all__ = ["AFFINE", "FIELDS", "SHAPE", "array_of", "edit_header", "folder_of_pairs", "heart", "rewrite", "write_scan"]

SEED = 0
SHAPE = (24, 20, 6)
AFFINE = np.diag([1.25, 1.25, 8.0, 1.0])
#: Offsets and types of the fields of a NIfTI-1 header.
FIELDS = {
    "sizeof": (0, "i"), "dim0": (40, "h"), "dim1": (42, "h"), "dim2": (44, "h"), "dim3": (46, "h"),
    "datatype": (70, "h"), "bitpix": (72, "h"), "pixdim1": (80, "f"), "pixdim2": (84, "f"), "pixdim3": (88, "f"),
    "offset": (108, "f"), "slope": (112, "f"), "inter": (116, "f"), "units": (123, "B"), "sform_code": (254, "h"),
    "quatern_b": (256, "f"), "qoffset_x": (268, "f"), "srow_x0": (280, "f"), "magic": (344, "4s"),
}  # fmt: skip


def array_of(shape: tuple[int, ...] = SHAPE, dtype: str = "int16", number: int = 0) -> np.ndarray:
    """Return voxels with structures of a few pixels; they depend on the seed and a number."""
    rng = np.random.default_rng([SEED, number])
    coarse = rng.integers(0, 900, (*(-(-size // 4) for size in shape[:2]), *shape[2:]))
    fine = np.repeat(np.repeat(coarse, 4, axis=0), 4, axis=1)[: shape[0], : shape[1]]
    return (fine + rng.integers(0, 40, shape)).astype(dtype)


def write_scan(path: Path, array: np.ndarray | None = None, affine: np.ndarray = AFFINE, **codes: int) -> Path:
    """Write a NIfTI file with both orientations, unless a code is 0."""
    image = nib.Nifti1Image(array_of() if array is None else array, affine)
    for name in ("qform", "sform"):
        code = codes.get(name, 1)
        getattr(image, f"set_{name}")(affine if code else None, code)
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(image, path)  # type: ignore[attr-defined]
    return path


def edit_header(path: Path, **fields: Any) -> Path:
    """Overwrite fields of the header of a file, see :data:`FIELDS`."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        for name, value in fields.items():
            offset, form = FIELDS[name]
            struct.pack_into("<" + form, changed, offset, value)
        return bytes(changed)

    return rewrite(path, change, inside=True)


def rewrite(path: Path, change: Callable[[bytes], bytes], *, inside: bool = False) -> Path:
    """Change the bytes of a file, those inside its compression if asked."""
    data = path.read_bytes()
    packed = inside and data[:2] == b"\x1f\x8b"
    data = change(gzip.decompress(data) if packed else data)
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    return path


def heart(shape: tuple[int, int, int] = SHAPE, radius: float = 3.0) -> np.ndarray:
    """Return a label map: LV 1 inside MYO 2, RV 3 beside."""
    x, y = np.meshgrid(np.arange(shape[0]), np.arange(shape[1]), indexing="ij")
    distance = np.hypot(x - 8, y - 9)
    plane = np.where(distance <= radius, 1, np.where(distance <= radius + 2, 2, 0))
    plane[16:19, 7:12] = 3
    return np.repeat(plane[..., None], shape[2], axis=2).astype(np.uint8)


def folder_of_pairs(place: Path, domains: str = "AABBCC") -> None:
    """Write subjects s0, s1, ... with their labels, and the same list as CSV and in MONAI's form."""
    rows = []
    for number, domain in enumerate(domains):
        image = array_of(number=number) + (120 * heart(radius=3 + number % 3)).astype(np.int16)
        write_scan(place / f"s{number}.nii.gz", image)
        write_scan(place / f"s{number}_gt.nii.gz", heart(radius=3 + number % 3))
        rows.append({"image": f"s{number}.nii.gz", "label": f"s{number}_gt.nii.gz", "domain": domain})
    write_lists(place, rows)
    (place / "labels.json").write_text(json.dumps({"1": "LV", "2": "MYO", "3": "RV"}))


def write_lists(place: Path, rows: list[dict[str, str]]) -> None:
    """Write a table for vmfseg and a data list for MONAI."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    lines = [",".join(names), *(",".join(row.get(name, "") for name in names) for row in rows)]
    (place / "scans.csv").write_text("\n".join(lines) + "\n")
    (place / "plain").mkdir(exist_ok=True)
    (place / "plain" / "datalist.json").write_text(json.dumps({"training": rows}))
