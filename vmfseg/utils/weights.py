# SPDX-License-Identifier: Apache-2.0
"""Look at a file of weights without loading it: is it what it says, and would loading it run anything?"""

from __future__ import annotations

import json
import pickletools
import zipfile
from pathlib import Path
from typing import Any

from vmfseg.utils.errors import VmfError
from vmfseg.utils.io import StrPath

__all__ = ["check_weights", "safetensors_problem", "torch_file_problem"]

_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4,
    "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_MAX_HEADER = 25_000_000
_MAX_PICKLE = 50_000_000
#: What a file of tensors and numbers names; everything else is a call of something else.
_TENSORS = frozenset(
    {
        "collections OrderedDict",
        "torch Size",
        "torch device",
        "torch.nn.parameter Parameter",
        "torch._utils _rebuild_parameter",
        "torch._utils _rebuild_tensor_v2",
        "torch.serialization _get_layout",
    }
)  # fmt: skip
_TYPES = ("Storage",)
_DTYPES = frozenset(
    f"torch {name}"
    for name in [
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ]
)  # fmt: skip


def check_weights(path: StrPath) -> None:
    """Refuse a file of weights that is damaged or holds anything but tensors and numbers. It is not loaded.

    Args:
        path: ``.safetensors``, or what ``torch.save`` wrote.

    Raises:
        VmfError: VMF413 with what is wrong.
    """
    file = Path(path)
    problem = safetensors_problem(file) if file.suffix == ".safetensors" else torch_file_problem(file)
    if problem:
        raise VmfError(
            "VMF413",
            subject=str(path),
            rule="weights must be named tensors and nothing else",
            found=problem,
            fix="get the file again from someone you trust, or train again",
        )


def safetensors_problem(path: Path) -> str:
    """Return what is wrong with the header of a ``.safetensors`` file, or an empty string.

    The header must be an object without double keys; every tensor must have a known type and as many bytes as its shape
    needs; the tensors must fill the file one after the other, without a gap, an overlap or a rest.
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


def torch_file_problem(path: Path) -> str:
    """Return what is wrong with a file of ``torch.save``, or an empty string. Its pickle is read, never run."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            pickles = [name for name in names if name.endswith("data.pkl")]
            if any("/code/" in name or name.endswith(".py") for name in names):
                return "program code (TorchScript)"
            if len(pickles) != 1 or len(set(names)) < len(names):
                return "no file of torch.save"
            if archive.getinfo(pickles[0]).file_size > _MAX_PICKLE:
                return "a pickle that is too large"
            content = archive.read(pickles[0])
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        return f"no file of torch.save: {str(error)[:80]}"
    return _pickle_problem(content)


def _pickle_problem(content: bytes) -> str:
    texts: list[str] = []
    try:
        for code, argument, _ in pickletools.genops(content):
            if code.name in ("SHORT_BINUNICODE", "BINUNICODE", "UNICODE", "BINUNICODE8"):
                texts.append(str(argument))
            elif code.name == "GLOBAL" and not _is_tensor_part(str(argument)):
                return f"a call of {str(argument).replace(' ', '.')}"
            elif code.name in ("STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4"):
                return f"a call of {'.'.join(texts[-2:]) or code.name}"
    except Exception as error:  # pickletools raises whatever a damaged stream makes it stumble over
        return f"a damaged pickle: {str(error)[:80]}"
    return ""


def _is_tensor_part(name: str) -> bool:
    module, _, word = name.partition(" ")
    storage = module in ("torch", "torch.storage") and word.endswith("Storage")
    return storage or name in _TENSORS or name in _DTYPES


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
