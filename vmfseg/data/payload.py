# SPDX-License-Identifier: Apache-2.0
"""Bounded reading of untrusted files: regular, readable, complete, and never more than they declare."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from pathlib import Path
from typing import IO

from vmfseg.utils import VmfError, did_you_mean

__all__ = [
    "MAX_DEFLATE_RATIO",
    "check_file",
    "inflate_exactly",
    "nearest_file",
    "read_exactly",
    "starts_gzip",
]

#: Deflate cannot expand a byte to more than this (RFC 1951: 258 bytes from 2 bits), so a small file cannot be large.
MAX_DEFLATE_RATIO = 1032

_CHUNK = 1 << 20
_COPY_AGAIN = "copy or download the file again"


def check_file(path: str | os.PathLike[str]) -> int:
    """Check that ``path`` is a regular, readable, non-empty file and return its size in bytes.

    Raises:
        VmfError: VMF201 missing, VMF202 not a regular file, VMF203 not readable, VMF204 empty.
    """
    name = os.fspath(path)
    try:
        status = os.stat(name)
    except (OSError, ValueError) as error:
        if isinstance(error, PermissionError):
            raise _unreadable(name, error) from error
        link = " (a broken link)" if os.path.islink(name) else ""
        fix = f"check the path.{nearest_file(name)}"
        raise VmfError("VMF201", subject=name, found=f"nothing{link}", fix=fix) from error
    if not stat.S_ISREG(status.st_mode):
        raise VmfError("VMF202", subject=name, found=_kind(status.st_mode))
    try:
        with open(name, "rb"):
            pass
    except OSError as error:
        raise _unreadable(name, error) from error
    if status.st_size == 0:
        raise VmfError("VMF204", subject=name, found="0 bytes")
    return status.st_size


def starts_gzip(path: str | os.PathLike[str]) -> bool:
    """Tell whether the file starts with the magic number of gzip."""
    with open(path, "rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def read_exactly(path: str, *, offset: int, size: int, compressed: bool, start: int = 0) -> bytearray:
    """Read ``size`` bytes from ``offset`` of the (decompressed) stream, to its very end.

    The stream begins at byte ``start`` of the file. A gzip stream is read to its checksum. Reading stops soon
    after the declared size, whatever else would follow, so neither a truncated file nor a bomb passes.

    Raises:
        VmfError: VMF210 truncated stream, VMF211 too little data, VMF212 corrupt stream, VMF213 too much data.
    """
    buffer = bytearray(size)
    view, filled = memoryview(buffer), 0
    try:
        with open(path, "rb") as file:
            file.seek(start)
            stream: IO[bytes] = gzip.GzipFile(fileobj=file) if compressed else file  # type: ignore[assignment]
            _skip(stream, offset)
            while filled < size:
                count = stream.readinto(view[filled : filled + _CHUNK])  # type: ignore[attr-defined]
                if not count:
                    break
                filled += count
            surplus = stream.read(1)
            if surplus and compressed:
                stream.read(_CHUNK)  # a damaged stream may also grow: its checksum tells, if it is near
    except EOFError as error:
        raise VmfError(
            "VMF210",
            subject=path,
            rule="the gzip stream is truncated",
            found=f"it ends before the {size} bytes of voxels and their checksum do",
        ) from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise VmfError("VMF212", subject=path, rule="the gzip stream is corrupt", found=_clean(error)) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    _check_amount(path, filled, size, bool(surplus))
    return buffer


def inflate_exactly(path: str, *, start: int, size: int) -> bytearray:
    """Inflate a zlib stream that begins at byte ``start`` of the file and must hold ``size`` bytes.

    Raises:
        VmfError: as :func:`read_exactly`.
    """
    inflater = zlib.decompressobj()
    buffer = bytearray()
    try:
        with open(path, "rb") as file:
            file.seek(start)
            while not inflater.eof and len(buffer) <= size:
                chunk = inflater.unconsumed_tail or file.read(_CHUNK)
                if not chunk:
                    break
                buffer += inflater.decompress(chunk, size + 1 - len(buffer))
            after = bool(inflater.unused_data or (inflater.eof and file.read(1)))
    except zlib.error as error:
        raise VmfError("VMF212", subject=path, rule="the compressed data is corrupt", found=str(error)) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    _check_amount(path, len(buffer), size, len(buffer) > size or after)
    if not inflater.eof:
        raise VmfError(
            "VMF210", subject=path, rule="the compressed data is truncated", found="its end and checksum are missing"
        )
    return buffer


def _check_amount(path: str, filled: int, size: int, surplus: bool) -> None:
    if surplus:
        raise VmfError("VMF213", subject=path, found=f"more than {size} bytes of voxels")
    if filled < size:
        raise VmfError("VMF211", subject=path, found=f"{filled} of {size} bytes")


def nearest_file(path: str | os.PathLike[str]) -> str:
    """Return `` Did you mean 'x'?`` for the file beside a missing one whose name is most alike, or an empty string.

    Example:
        >>> import tempfile
        >>> scan = Path(tempfile.mkdtemp()) / "subject_1.nii.gz"
        >>> scan.touch()
        >>> nearest_file(scan.with_name("subjekt_1.nii.gz"))
        " Did you mean 'subject_1.nii.gz'?"
    """
    missing = Path(path)
    try:
        names = [entry.name for entry in missing.parent.iterdir()]
    except OSError:
        return ""
    return did_you_mean(missing.name, names)


def _skip(stream: IO[bytes], count: int) -> None:
    while count > 0:
        chunk = stream.read(min(count, _CHUNK))
        if not chunk:
            return
        count -= len(chunk)


def _unreadable(path: str, error: OSError) -> VmfError:
    return VmfError("VMF203", subject=path, found=error.strerror or type(error).__name__)


def _clean(error: Exception) -> str:
    text = str(error)
    return "bytes that are no gzip follow the stream" if text.startswith("Not a gzipped file") else text


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    )
    return next((text for test, text in kinds if test(mode)), "something else")
