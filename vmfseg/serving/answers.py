# SPDX-License-Identifier: Apache-2.0
"""Encode label maps as NIfTI or NRRD, alone or as a multipart response with figures."""

from __future__ import annotations

import gzip
import json
import secrets
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.data.text_header import LPS_TO_RAS
from vmfseg.model.scan import Scan, map_image
from vmfseg.serving.names import safe_stem
from vmfseg.utils import VmfError

__all__ = ["DTYPES", "EXTENSIONS", "encode_map", "multipart", "result_name"]

EXTENSIONS = (".nii.gz", ".nii", ".nrrd")
_NRRD_TYPES = {"uint8": "uint8", "uint16": "uint16", "int16": "int16", "int32": "int32", "float32": "float"}
DTYPES = tuple(_NRRD_TYPES)


def encode_map(scan: Scan, values: npt.NDArray[Any], extension: str = ".nii.gz", dtype: str = "uint8") -> bytes:
    """Return a map on the grid of a scan as a file's content.

    Args:
        scan: whose grid it is; its geometry is kept, oblique or not.
        values: of the scan's shape, or of one frame of it.
        extension: one of :data:`EXTENSIONS`.
        dtype: one of :data:`DTYPES`.

    Raises:
        VmfError: VMF185 an extension or type that is not offered.
    """
    name = extension if extension.startswith(".") else f".{extension}"
    for what, given, offered in (("result_extension", name, EXTENSIONS), ("result_dtype", dtype, DTYPES)):
        if given not in offered:
            rule = f"must be one of {', '.join(offered)}"
            raise VmfError("VMF185", subject=what, rule=rule, found=str(given)[:40], fix=f"use {offered[0]}")
    array = values.astype(dtype)
    if name == ".nrrd":
        whole = array.size == np.prod(scan.shape)  # else one frame of a cine
        return _nrrd(array.reshape(scan.header.shape) if whole else array, scan)
    image: Any = map_image(scan, array)
    content: bytes = image.to_bytes()
    return gzip.compress(content, compresslevel=4, mtime=0) if name == ".nii.gz" else content


def result_name(name: str, extension: str) -> str:
    """Return a file name for a result that no other result has: clients write it into a common folder.

    Example:
        >>> result_name("site1/scan", ".nrrd").startswith("scan_seg_")
        True
    """
    return f"{safe_stem(name)}_seg_{secrets.token_hex(4)}{extension}"


def multipart(params: dict[str, Any], content: bytes, filename: str) -> tuple[bytes, str]:
    """Return body and content type of an answer with figures (``params``) and a file (``image``).

    Example:
        >>> body, kind = multipart({"label_names": {"LV": 1}}, b"...", "scan.nrrd")
        >>> kind.startswith("multipart/form-data; boundary="), body.count(b"Content-Disposition")
        (True, 2)
    """
    mark = secrets.token_hex(16)
    head = f'--{mark}\r\nContent-Disposition: form-data; name="params"\r\nContent-Type: application/json\r\n\r\n'
    file = (
        f'\r\n--{mark}\r\nContent-Disposition: form-data; name="image"; filename="{filename}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    text = json.dumps(params, allow_nan=False)
    parts = [head.encode(), text.encode(), file.encode(), content, f"\r\n--{mark}--\r\n".encode()]
    return b"".join(parts), f"multipart/form-data; boundary={mark}"


def _nrrd(array: npt.NDArray[Any], scan: Scan) -> bytes:
    """Return an NRRD file. ITK could write one, but takes many seconds to load when it is first asked."""
    affine = LPS_TO_RAS @ scan.header.original_affine
    vectors = [affine[:3, axis].tolist() for axis in range(3)]
    origin = affine[:3, 3].tolist()
    if array.ndim == 4:
        step = 1.0 if scan.header.nifti is None else float(scan.header.nifti["pixdim"][4])
        vectors = [[*vector, 0.0] for vector in vectors] + [[0.0, 0.0, 0.0, step if step > 0 else 1.0]]
        origin.append(0.0)
    stored = array.astype(array.dtype.newbyteorder("<"))
    head = [
        "NRRD0004",
        f"type: {_NRRD_TYPES[array.dtype.name]}",
        f"dimension: {array.ndim}",
        f"space: left-posterior-superior{'-time' if array.ndim == 4 else ''}",
        f"sizes: {' '.join(str(size) for size in array.shape)}",
        f"space directions: {' '.join(_vector(vector) for vector in vectors)}",
        f"kinds: {' '.join(['domain'] * array.ndim)}",
        "endian: little",
        "encoding: gzip",
        f"space origin: {_vector(origin)}",
    ]
    voxels = gzip.compress(stored.tobytes(order="F"), compresslevel=4, mtime=0)
    return "\n".join(head).encode() + b"\n\n" + voxels


def _vector(numbers: list[float]) -> str:
    return f"({','.join(repr(float(number)) for number in numbers)})"
