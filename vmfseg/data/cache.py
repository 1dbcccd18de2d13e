# SPDX-License-Identifier: Apache-2.0
"""Prepared volumes on disk: found again by content, checked when read, rebuilt when bad.

An entry is one safetensors file (no pickle) whose name is the SHA-256 of all that decides its content: the bytes of
image and label, the row, the transforms, the versions. A changed scan or setting therefore never meets an old entry.
Inside, every slice has a checksum, and one digest covers the checksums, shapes and types; so a damaged entry is
noticed when it is opened or, at the latest, when the damaged slice is read, without reading everything at the start.
Entries are written in one step (:func:`vmfseg.utils.atomic_write`), so processes may share a folder.
"""

from __future__ import annotations

import json
import os
import re
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import monai
import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

import vmfseg
from vmfseg.data.payload import check_file
from vmfseg.utils import VmfError, atomic_write, sha256_bytes, sha256_file

__all__ = ["CacheFault", "CachedStack", "VolumeCache", "config_text"]

_FORMAT = "vmfseg-cache-1"
_CHECKSUM = "crc32/"
_ATTEMPTS = 5
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


class CacheFault(Exception):
    """A cache entry that cannot be trusted; the message says why. Callers rebuild the entry."""


class CachedStack:
    """The slices of one prepared volume in a file; each is checked as it is read.

    No file stays open and nothing stays mapped between two reads, so any number of them can be held and sent to
    workers.

    Args:
        path: the entry.
        key: the key it must have.

    Raises:
        FileNotFoundError: if there is no such entry.
        CacheFault: if the entry is truncated, altered, or belongs to another key or version.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._checksums: Arrays = {}
        dtypes: dict[str, str] = {}
        try:
            with safe_open(path, framework="numpy") as file:
                meta = file.metadata() or {}
                for name in file.keys():  # noqa: SIM118 - not a dictionary
                    if name.startswith(_CHECKSUM):
                        self._checksums[name.removeprefix(_CHECKSUM)] = file.get_tensor(name)
                    else:
                        part = file.get_slice(name)
                        self.shapes[name], dtypes[name] = tuple(part.get_shape()), str(part.get_dtype())
        except FileNotFoundError:
            raise
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise CacheFault(f"it is damaged ({_first_line(error)})") from error
        if meta.get("format") != _FORMAT or meta.get("version") != vmfseg.__version__:
            raise CacheFault(f"another version wrote it ({meta.get('version', 'unknown')})")
        if meta.get("key") != key:
            raise CacheFault("it belongs to another volume or other settings")
        if meta.get("digest") != _digest(key, self.shapes, dtypes, self._checksums):
            raise CacheFault("it is damaged (its header does not fit its digest)")

    def __len__(self) -> int:
        return next(iter(self.shapes.values()))[0]

    def read(self, name: str, index: int | None = None) -> Array:
        """Return one slice of an array, or all of it, after its checksums have been compared.

        Raises:
            CacheFault: if the bytes are not those that were written, or the entry is gone.
        """
        try:
            with safe_open(self.path, framework="numpy") as file:
                array: Array = file.get_tensor(name) if index is None else file.get_slice(name)[index : index + 1]
        except (SafetensorError, OSError, ValueError) as error:
            raise CacheFault(f"it cannot be read any more ({_first_line(error)})") from error
        wanted = self._checksums[name] if index is None else self._checksums[name][index : index + 1]
        if not np.array_equal(_checksums(array), wanted):
            raise CacheFault("it is damaged (a slice does not fit its checksum)")
        return array if index is None else array[0]


class VolumeCache:
    """A folder of prepared volumes.

    Args:
        folder: where entries live; made when the first one is written. Safe to share between processes and to delete.
        config: text that stands for the settings, for instance :func:`config_text` of the transforms.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> scan = Path(folder) / "scan.raw"
        >>> _ = scan.write_bytes(b"voxels")
        >>> cache = VolumeCache(Path(folder) / "cache", config="spacing 1.2")
        >>> stack = cache.stack({"image": str(scan)}, lambda: {"image": np.ones((3, 1, 4, 4), np.float32)})
        >>> len(stack), stack.read("image", 2).shape
        (3, (1, 4, 4))
    """

    def __init__(self, folder: str | os.PathLike[str], config: str) -> None:
        self.folder, self.config = Path(folder), config
        #: Names and faults of the entries that had to be rebuilt.
        self.rebuilt: list[tuple[str, str]] = []
        self._hashes: dict[tuple[str, int, int], str] = {}

    def key(self, row: Mapping[str, Any]) -> str:
        """Return the key of a row: content of the files, everything else in the row, settings, versions.

        Raises:
            VmfError: VMF201 to VMF204 if a file of the row cannot be read.
        """
        files = {name: self._hashes_of(row[name]) for name in ("image", "label") if row.get(name) is not None}
        rest = {str(k): str(v) for k, v in row.items() if k not in ("image", "label")}
        text = json.dumps(
            [_FORMAT, vmfseg.__version__, monai.__version__, self.config, files, rest],
            sort_keys=True,
            ensure_ascii=True,
        )
        return sha256_bytes(text.encode())

    def path(self, key: str) -> Path:
        """Return the file of a key."""
        return self.folder / key[:2] / f"{key}.safetensors"

    def stack(self, row: Mapping[str, Any], build: Callable[[], Arrays]) -> CachedStack:
        """Return the entry of ``row``; a missing or bad one is built first, a bad one with one warning a folder.

        Args:
            row: a row of a datalist with absolute paths.
            build: makes the arrays, each with the slices along the first axis.

        Raises:
            VmfError: VMF501 or VMF502 if the entry cannot be written, VMF512 if the disk does not keep what is written.
        """
        key = self.key(row)
        return self._open(key) or self._store(key, build())

    def arrays(self, row: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
        """Return the arrays of ``row`` in memory, all checksums compared. See :meth:`stack`."""
        key = self.key(row)
        stack = self._open(key)
        try:
            if stack is not None:
                return {name: stack.read(name) for name in stack.shapes}
        except CacheFault as fault:
            self.report(self.path(key), fault)
        arrays = build()
        _write_entry(self.path(key), key, arrays)
        return arrays

    def rebuild(self, row: Mapping[str, Any], build: Callable[[], Arrays], fault: CacheFault) -> CachedStack:
        """Replace an entry whose slice was found bad after it had been opened."""
        key = self.key(row)
        self.report(self.path(key), fault)
        return self._store(key, build())

    def report(self, path: Path, fault: CacheFault) -> None:
        """Record a bad entry, and warn about the first."""
        self.rebuilt.append((path.name, str(fault)))
        if len(self.rebuilt) == 1:
            warnings.warn(
                f"cache entry {path.name} in {self.folder} is not used: {fault}. It is rebuilt from the scan, "
                "and so is any other bad entry of this folder.",
                stacklevel=2,
            )

    def _open(self, key: str) -> CachedStack | None:
        try:
            return CachedStack(self.path(key), key)
        except FileNotFoundError:
            return None
        except CacheFault as fault:
            self.report(self.path(key), fault)
            return None

    def _store(self, key: str, arrays: Arrays) -> CachedStack:
        problem: Exception | None = None
        for _ in range(_ATTEMPTS):
            _write_entry(self.path(key), key, arrays)
            try:
                return CachedStack(self.path(key), key)
            except (CacheFault, FileNotFoundError) as error:  # somebody may be clearing the folder
                problem = error
        raise VmfError(
            "VMF512",
            subject=str(self.path(key)),
            rule="the cache folder does not keep what is written to it",
            found=str(problem),
            fix="choose another cache_dir, or check the disk",
        )

    def _hashes_of(self, paths: str | Sequence[str]) -> list[str]:
        return [self._hash(str(path)) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]

    def _hash(self, path: str) -> str:
        if os.path.isdir(path):  # a DICOM series
            files = sorted(file for file in Path(path).rglob("*") if file.is_file())
            return sha256_bytes(*(f"{file.relative_to(path)}\0{sha256_file(file)}\n".encode() for file in files))
        check_file(path)
        status = os.stat(path)
        memo = (path, status.st_size, status.st_mtime_ns)
        if memo not in self._hashes:  # the frames of one cine share a file
            self._hashes[memo] = sha256_file(path)
        return self._hashes[memo]


def config_text(value: Any) -> str:
    """Describe transforms as text that is equal for equal settings, in every process and on every day.

    Walks through the attributes of nested objects. Functions count by name and code, so an edited one is another
    setting. Random states are left out.

    Example:
        >>> from monai.transforms import ScaleIntensity
        >>> config_text(ScaleIntensity(0, 2)) == config_text(ScaleIntensity(0, 2)) != config_text(ScaleIntensity(0, 3))
        True
    """
    return json.dumps(_describe(value, ()), sort_keys=True)


def _describe(value: Any, seen: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) in seen:
        return "recursion"
    seen = (*seen, id(value))
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        return ["array", array.dtype.str, list(array.shape), sha256_bytes(array.tobytes())]
    if isinstance(value, Mapping):
        return {str(k): _describe(v, seen) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_describe(v, seen) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_describe(v, seen), sort_keys=True) for v in value)
    return _describe_object(value, seen)


def _describe_object(value: Any, seen: tuple[int, ...]) -> Any:
    if isinstance(value, np.random.RandomState | np.random.Generator | torch.Generator):
        return "random state"
    if isinstance(value, CodeType):
        return [sha256_bytes(value.co_code), [_describe(c, seen) for c in value.co_consts], list(value.co_names)]
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    if isinstance(value, type | torch.dtype | np.dtype):
        return [name, str(value)]
    if isinstance(value, FunctionType):
        defaults = [value.__defaults__, value.__kwdefaults__]
        closure = [_describe(cell.cell_contents, seen) for cell in value.__closure__ or ()]
        return [name, _describe(value.__code__, seen), _describe(defaults, seen), closure]
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, partial):
        return [kind, [_describe(part, seen) for part in (value.func, value.args, value.keywords)]]
    if isinstance(value, MethodType):
        return [kind, _describe(value.__func__, seen), _describe(value.__self__, seen)]
    if not getattr(value, "__dict__", None):
        return [kind, _ADDRESS.sub("", repr(value))]
    return [kind, {k: _describe(v, seen) for k, v in vars(value).items()}]


def _write_entry(path: Path, key: str, arrays: Arrays) -> None:
    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    checksums = {name: _checksums(array) for name, array in tensors.items()}
    table = {f"{_CHECKSUM}{name}": array for name, array in checksums.items()}
    data = save({**tensors, **table}, metadata=_metadata(key, tensors, checksums))
    atomic_write(path, data)


def _metadata(key: str, tensors: Arrays, checksums: Arrays) -> dict[str, str]:
    shapes = {name: tuple(array.shape) for name, array in tensors.items()}
    dtypes = {name: _DTYPES[array.dtype] for name, array in tensors.items()}
    digest = _digest(key, shapes, dtypes, checksums)
    return {"format": _FORMAT, "version": vmfseg.__version__, "key": key, "digest": digest}


#: The names that safetensors gives to the types that are cached.
_DTYPES = {np.dtype(np.float32): "F32", np.dtype(np.uint8): "U8", np.dtype(np.bool_): "BOOL"}


def _digest(key: str, shapes: dict[str, tuple[int, ...]], dtypes: dict[str, str], checksums: Arrays) -> str:
    head = json.dumps([_FORMAT, key, {k: list(v) for k, v in shapes.items()}, dtypes], sort_keys=True)
    return sha256_bytes(head.encode(), *(f"{k}={checksums[k].tolist()}".encode() for k in sorted(checksums)))


def _checksums(array: Array) -> Array:
    return np.array([zlib.crc32(np.ascontiguousarray(part).data) for part in array], dtype=np.int64)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
