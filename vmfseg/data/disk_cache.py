# SPDX-License-Identifier: Apache-2.0
"""Disk cache of prepared volumes: MONAI's ``PersistentDataset`` with keys by content and checked files.

The name of an entry is the SHA-256 of all that decides its content: the bytes of image and label, the row, the
settings of the transforms, the versions. A changed scan or setting therefore never meets an old entry. Entries are
written in one step, so processes may share a folder; their checksums are compared before they are read, and a damaged
entry is rebuilt.
"""

from __future__ import annotations

import json
import os
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from enum import Enum
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import monai
import numpy as np
import torch
from monai.data import MetaTensor, PersistentDataset
from monai.transforms import Compose

import vmfseg
from vmfseg.data.payload import check_file
from vmfseg.utils import atomic_path, sha256_file
from vmfseg.utils.io import sha256_bytes

__all__ = ["DiskCache", "config_text"]

_FORMAT = "vmfseg-cache-2"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class DiskCache(PersistentDataset):  # type: ignore[misc]
    """Prepare rows once and keep them in a folder.

    Args:
        data: rows with absolute paths.
        transform: deterministic transforms of a row.
        cache_dir: the folder; made when the first entry is written. Safe to share between processes and to delete.

    Raises:
        VmfError: VMF201 to VMF204 if a file of a row cannot be read; VMF501 or VMF502 if an entry cannot be written.

    Example:
        >>> import tempfile
        >>> from monai.transforms import Lambda
        >>> scan = Path(tempfile.mkdtemp()) / "scan.raw"
        >>> _ = scan.write_bytes(b"voxels")
        >>> cache = DiskCache([{"image": str(scan)}], Compose(Lambda(lambda row: {"image": torch.ones(1, 4, 4, 3)})),
        ...                   scan.parent / "cache")
        >>> cache[0]["image"].shape, len(list((scan.parent / "cache").rglob("*.pt")))
        (torch.Size([1, 4, 4, 3]), 1)
    """

    def __init__(
        self, data: Sequence[Mapping[str, Any]], transform: Compose, cache_dir: str | os.PathLike[str]
    ) -> None:
        super().__init__(data, transform, cache_dir=None, track_meta=True)
        self.cache_dir = Path(cache_dir)
        self.settings = config_text(transform)
        #: Names and faults of the entries that had to be rebuilt.
        self.rebuilt: list[tuple[str, str]] = []
        self._keys: dict[int, str] = {}
        self._hashes: dict[tuple[str, int, int], str] = {}
        self._intact: dict[Path, tuple[int, int]] = {}

    def key(self, row: Mapping[str, Any]) -> str:
        """Return the key of a row: content of its files, everything else in it, settings, versions."""
        files = {name: self._digests(row[name]) for name in ("image", "label") if row.get(name) is not None}
        rest = {str(k): str(v) for k, v in row.items() if k not in files}
        content = [_FORMAT, vmfseg.__version__, monai.__version__, self.settings, files, rest]
        return sha256_bytes(json.dumps(content, sort_keys=True).encode())

    def path(self, key: str) -> Path:
        """Return the file of a key."""
        return self.cache_dir / key[:2] / f"{key}.pt"

    def fetch(self, index: int, mapped: bool = False) -> Any:
        """Return a prepared row; a missing or damaged entry is built first, a damaged one with one warning a folder.

        Args:
            index: number of the row.
            mapped: map the file into memory and read what is used, for callers that want one slice of a volume.
        """
        if index not in self._keys:
            self._keys[index] = self.key(self.data[index])
        key = self._keys[index]
        found = self._read(key, mapped)
        if found is None:
            found = _plain(self._pre_transform(deepcopy(self.data[index])))
            with atomic_path(self.path(key)) as temporary, open(temporary, "wb") as stream:
                torch.save({"key": key, "item": found}, stream)
        return found

    def _transform(self, index: int) -> Any:
        return self.fetch(index)

    def _read(self, key: str, mapped: bool) -> Any:
        path = self.path(key)
        try:
            status = os.stat(path)
            stamp = (status.st_mtime_ns, status.st_size)
            if self._intact.get(path) != stamp:
                with zipfile.ZipFile(path) as archive:
                    if archive.testzip() is not None:
                        raise ValueError("a checksum does not fit")
            content = torch.load(path, weights_only=True, mmap=mapped)
            if content["key"] != key:
                raise ValueError("it belongs to another volume or other settings")
            self._intact[path] = stamp
            return content["item"]
        except FileNotFoundError:
            return None
        except Exception as error:  # whatever a damaged file makes torch, pickle and zipfile raise
            if isinstance(error, MemoryError) or "allocate memory" in str(error):
                raise
            self._report(path, (str(error) or type(error).__name__).splitlines()[0])
            return None

    def _report(self, path: Path, fault: str) -> None:
        self.rebuilt.append((path.name, fault))
        if len(self.rebuilt) == 1:
            warnings.warn(
                f"cache entry {path.name} in {self.cache_dir} is not used: {fault}. It is rebuilt from the scan, "
                "and so is any other bad entry of this folder.",
                stacklevel=2,
            )

    def _digests(self, paths: str | os.PathLike[str] | Sequence[str]) -> list[str]:
        return [self._digest(str(path)) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]

    def _digest(self, path: str) -> str:
        if os.path.isdir(path):  # a DICOM series
            files = sorted(file for file in Path(path).rglob("*") if file.is_file())
            return sha256_bytes(*(f"{file.relative_to(path)}\0{sha256_file(file)}\n".encode() for file in files))
        check_file(path)
        status = os.stat(path)
        memo = (path, status.st_size, status.st_mtime_ns)
        if memo not in self._hashes:  # the frames of one cine share a file
            self._hashes[memo] = sha256_file(path)
        return self._hashes[memo]


def _plain(value: Any) -> Any:
    """Replace NumPy arrays and enumerations in metadata: ``torch.load`` restores tensors and plain values only."""
    if isinstance(value, MetaTensor):
        meta = {k: v for k, v in value.meta.items() if k != "affine"}
        return MetaTensor(value.as_tensor(), value.affine, _plain(meta), _plain(value.applied_operations))
    if isinstance(value, np.ndarray | np.generic):
        return torch.as_tensor(value) if isinstance(value, np.ndarray) else value.item()
    if isinstance(value, Mapping):
        return {_plain(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(v) for v in value)
    return value.value if isinstance(value, Enum) else value


def config_text(value: Any) -> str:
    """Describe transforms as text that is equal for equal settings, in every process.

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
