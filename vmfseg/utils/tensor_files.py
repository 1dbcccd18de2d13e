# SPDX-License-Identifier: Apache-2.0
"""Check files of weights before they are used: complete, and nothing but tensors and numbers."""

from __future__ import annotations

import json
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from vmfseg.utils.errors import VmfError
from vmfseg.utils.io import StrPath

__all__ = ["check_weights", "safetensors_problem", "torch_file_problem"]

_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4,
    "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_MAX_HEADER = 25_000_000


def check_weights(path: StrPath) -> None:
    """Refuse a file of weights that is damaged or holds anything but tensors and numbers. Nothing in it is executed.

    Args:
        path: ``.safetensors``, or what ``torch.save`` wrote.

    Raises:
        VmfError: VMF413 with what is wrong.
    """
    file = Path(path)
    problem = safetensors_problem(file) if file.suffix == ".safetensors" else torch_file_problem(file)
    if problem:
        raise VmfError("VMF413", subject=str(path), found=problem)


def torch_file_problem(path: Path) -> str:
    """Return what is wrong with a file of ``torch.save``, or an empty string.

    It is read by the restricted unpickler of torch (``weights_only``), which calls nothing but constructors of tensors,
    onto the meta device, which holds no values. Compressed members, which could grow without bound, are refused.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                return "no file of torch.save: compressed"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols
            torch.load(path, map_location="meta", weights_only=True, mmap=True)
    except OSError as error:
        return error.strerror or type(error).__name__
    except Exception as error:  # the unpickler raises whatever a damaged stream makes it stumble over
        call = re.search(r"GLOBAL ([\w.]+)", str(error))
        return f"a call of {call[1]}" if call else "no file of torch.save, or something else than tensors"
    return ""


def safetensors_problem(path: Path) -> str:
    """Return what is wrong with the header of a ``.safetensors`` file, or an empty string.

    The header must be an object without double keys (the library takes the last of two); every tensor must have a known
    type and as many bytes as its shape needs; the tensors must fill the file one after the other, without a gap, an
    overlap or a rest.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or not 2 <= length <= min(size - 8, _MAX_HEADER):
                return f"a header of {length} bytes in a file of {size}"
            header = json.loads(stream.read(length).decode("utf-8"), object_pairs_hook=_once)
    except OSError as error:
        return error.strerror or type(error).__name__
    except (ValueError, RecursionError) as error:
        return f"a header that is no JSON: {str(error).splitlines()[0][:100]}"
    if not isinstance(header, dict):
        return "a header that is no object"
    header.pop("__metadata__", None)
    ranges = []
    for name, entry in header.items():
        found = _tensor_range(entry)
        if isinstance(found, str):
            return f"the tensor {name[:60]!r} has {found}"
        ranges.append((*found, name))
    end = 0
    for first, last, name in sorted(ranges):
        if first != end:
            return f"the tensor {name[:60]!r} begins at byte {first} instead of {end}"
        end = last
    return "" if end == size - 8 - length else f"{size - 8 - length} bytes of tensors instead of {end}"


def _tensor_range(entry: Any) -> tuple[int, int] | str:
    try:
        shape, (first, last), dtype = entry["shape"], entry["data_offsets"], entry["dtype"]
        count = 1
        for extent in shape:
            if type(extent) is not int or extent < 0:
                return f"the shape {shape}"
            count *= extent
        if dtype not in _BYTES:
            return f"the type {str(dtype)[:30]}"
        if type(first) is not int or type(last) is not int or last - first != count * _BYTES[dtype] or first < 0:
            return f"bytes {first} to {last} for shape {shape} of {dtype}"
        return first, last
    except (KeyError, TypeError, ValueError):
        return f"the entry {str(entry)[:60]}"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found
