# SPDX-License-Identifier: Apache-2.0
"""Atomic writing of files: a file is either the old one or the complete new one, whatever happens in between.

:func:`atomic_path` hands out a temporary file beside the target; when the block ends well, the file is flushed to disk
and renamed over the target in one step (``os.replace``), otherwise it is removed and the target stays as it was.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vmfseg.utils.errors import VmfError

__all__ = [
    "atomic_path",
    "atomic_write",
    "copy_file",
    "read_json",
    "refuse_existing",
    "sha256_bytes",
    "sha256_file",
    "write_json",
]

StrPath = str | os.PathLike[str]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def atomic_path(path: StrPath, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` (same suffixes) that replaces it when the block ends without an error.

    Args:
        path: the final file. Missing parent folders are made.
        overwrite: whether an existing file may be replaced.

    Raises:
        VmfError: VMF501 disk full, VMF502 not writable, VMF503 the file exists and ``overwrite`` is false.
    """
    target = Path(path)
    refuse_existing([target], overwrite)
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        suffix = "".join(target.suffixes[-2:])
        handle, name = tempfile.mkstemp(prefix=".vmfseg-", suffix=suffix, dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        if overwrite:
            os.replace(temporary, target)
        else:
            _link_new(temporary, target)
        _sync_folder(target.parent)
    except OSError as error:
        if _about_other_file(error, target, temporary):
            raise
        raise _as_vmf_error(error, target) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()


def atomic_write(path: StrPath, data: bytes | str, *, overwrite: bool = True) -> None:
    """Write ``data`` to ``path`` in one step. See :func:`atomic_path`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> atomic_write(folder / "a.txt", "hello")
        >>> (folder / "a.txt").read_text(), [p.name for p in folder.iterdir()]
        ('hello', ['a.txt'])
    """
    with atomic_path(path, overwrite=overwrite) as temporary:
        # a name that is no UTF-8 can stand in a text; JSON reads the escape as the same name
        temporary.write_bytes(data.encode(errors="backslashreplace") if isinstance(data, str) else data)


def copy_file(source: StrPath, target: StrPath, *, overwrite: bool = True) -> None:
    """Copy a file in one step. See :func:`atomic_path`."""
    with atomic_path(target, overwrite=overwrite) as temporary:
        shutil.copyfile(source, temporary)


def refuse_existing(files: Iterable[StrPath], overwrite: bool) -> None:
    """Refuse outputs that exist already; call it before the work, not after.

    Raises:
        VmfError: VMF503.
    """
    there = [file for file in files if Path(file).exists()]
    if there and not overwrite:
        raise _exists(there[0])


@contextmanager
def refusing(folder: StrPath) -> Iterator[None]:
    """Report as an error about ``folder`` what the system refuses while a library or a lock writes there.

    Raises:
        VmfError: VMF501 disk full, VMF502 not writable.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in _FULL
        raise VmfError(
            "VMF501" if full else "VMF502",
            subject=str(folder),
            rule="the disk is full" if full else "the output folder cannot be written",
            found=_reason(error),
            fix="free some space or choose another folder"
            if full
            else "check the permissions or choose another folder",
        ) from error


def write_json(path: StrPath, value: Any, *, overwrite: bool = True) -> None:
    """Write ``value`` as indented JSON with a final newline. NaN and infinity are refused: they are not JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    atomic_write(path, text + "\n", overwrite=overwrite)


def read_json(path: StrPath) -> Any:
    """Read a JSON file.

    Raises:
        VmfError: VMF301 if the file is missing or not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise VmfError(
            "VMF301", subject=str(path), rule="the file cannot be read", found=_reason(error), fix="check the path"
        ) from error
    except (ValueError, RecursionError) as error:
        raise VmfError(
            "VMF301", subject=str(path), rule="the file is not valid JSON", found=str(error), fix="correct the file"
        ) from error


def sha256_file(path: StrPath) -> str:
    """Return the SHA-256 of a file as hexadecimal text."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_bytes(*parts: bytes) -> str:
    """Return the SHA-256 of the concatenated ``parts`` as hexadecimal text."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _exists(path: StrPath) -> VmfError:
    fix = "pass --overwrite or choose another output"
    return VmfError("VMF503", subject=os.fspath(path), rule="the output exists already", fix=fix)


def _as_vmf_error(error: OSError, target: Path) -> VmfError:
    if error.errno == errno.EEXIST and os.path.lexists(target):  # else a folder on the way is a file
        return _exists(target)
    if error.errno in _FULL:
        return VmfError("VMF501", subject=str(target), found=_reason(error))
    return VmfError(
        "VMF502",
        subject=str(target),
        rule="the output cannot be written; the previous file is unchanged",
        found=_reason(error),
    )


def _about_other_file(error: OSError, target: Path, temporary: Path | None) -> bool:
    """Whether the block failed on a file of its own, which says nothing about the output."""
    if temporary is None or not isinstance(error.filename, str | bytes | os.PathLike):
        return False  # without a temporary file, the block was not even entered
    own = Path(os.fsdecode(error.filename)) in (target, temporary, *target.parents)
    return not own and error.errno not in _FULL


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _link_new(source: Path, target: Path) -> None:
    """Give ``source`` its final name unless that exists (``os.link`` fails then, ``os.replace`` would not)."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        os.replace(source, target)  # no hard links here (exFAT, some network shares): one step, though not exclusive


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems cannot sync folders; the file itself is safe already
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
