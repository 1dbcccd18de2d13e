# SPDX-License-Identifier: Apache-2.0
"""Bundles as zip files: checked before a byte is unpacked, then unpacked into a temporary folder."""

from __future__ import annotations

import lzma
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from vmfseg.utils import VmfError, atomic_path
from vmfseg.utils.io import StrPath

__all__ = ["check_archive", "opened_bundle"]

_MAX_TOTAL = 2_000_000_000
_MAX_MEMBERS = 10_000
_MAX_RATIO = 200
_HIDDEN = (".gitkeep", ".gitignore", ".gitattributes")
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, RuntimeError, NotImplementedError, EOFError, ValueError,
)  # fmt: skip
_SMALL = 1_000_000  # below this any ratio is harmless: empty texts compress well


@contextmanager
def opened_bundle(path: StrPath) -> Iterator[Path]:
    """Yield the folder of a bundle; a zip file is unpacked into a temporary folder for as long as the block lasts.

    Args:
        path: a folder, or a zip file that holds a bundle at its top or in its only folder.

    Raises:
        VmfError: VMF415 if the archive is damaged or could do harm, VMF318 if it holds no bundle.
    """
    if not Path(path).is_file():
        yield Path(path)
        return
    check_archive(path)
    with tempfile.TemporaryDirectory(prefix="vmfseg-") as place:
        root = Path(place)
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if not member.is_dir():
                    _unpack(archive, member, root, path)
        inside = sorted(root.iterdir())
        folder = inside[0] if len(inside) == 1 and inside[0].is_dir() else root
        if not (folder / "configs").is_dir():
            fix = "zip the folder that holds configs and models, and nothing beside it"
            raise VmfError("VMF318", subject=str(path), found="no folder configs", fix=fix)
        yield folder


def check_archive(path: StrPath) -> None:
    """Refuse a zip file whose members lead out of their folder, are links or hidden, come twice, or grow too much.

    Raises:
        VmfError: VMF415 with the member.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise _refuse(path, "the file must be a zip archive of a bundle", str(error)) from error
    if len(members) > _MAX_MEMBERS:
        raise _refuse(path, f"an archive may have {_MAX_MEMBERS} members", str(len(members)))
    seen: dict[str, str] = {}
    files: dict[str, str] = {}
    for member in members:
        name = member.filename
        problem = _name_problem(name) or _kind_problem(member)
        if problem:
            raise _refuse(path, problem, name)
        folded = name.rstrip("/").casefold()
        if folded in seen:
            raise _refuse(path, "two members would become one file", f"{seen[folded]}, {name}")
        seen[folded] = name
        if not member.is_dir():
            files[folded] = name
        if member.file_size > max(_SMALL, _MAX_RATIO * member.compress_size):
            found = f"{name}: {member.compress_size} bytes become {member.file_size}"
            raise _refuse(path, f"a member may grow {_MAX_RATIO}-fold", found)
    for folded, name in seen.items():
        above = next((str(p) for p in PurePosixPath(folded).parents if str(p) in files), None)
        if above is not None:
            raise _refuse(path, "a member must not be both a file and a folder", f"{files[above]}, {name}")
    total = sum(member.file_size for member in members)
    if total > _MAX_TOTAL:
        raise _refuse(path, f"an archive may unpack to {_MAX_TOTAL} bytes", str(total))


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, root: Path, path: StrPath) -> None:
    """Write one member; a stream that is longer than the archive says is stopped."""
    left = member.file_size
    with (
        atomic_path(root / member.filename, overwrite=False) as target,
        open(target, "wb") as sink,
    ):
        for chunk in _chunks(archive, member, path):
            left -= len(chunk)
            if left < 0:
                raise _refuse(path, "a member is longer than the archive says", member.filename)
            sink.write(chunk)


def _chunks(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: StrPath) -> Iterator[bytes]:
    """Yield the content of a member; whatever its decompressor says is a damaged archive."""
    try:
        with archive.open(member) as source:
            while chunk := source.read(1 << 20):
                yield chunk
    except _DAMAGED as error:
        raise _refuse(path, "a member cannot be unpacked", f"{member.filename}: {error}") from error


def _name_problem(name: str) -> str:
    pure = PurePosixPath(name)
    if "\\" in name or "\0" in name or ":" in name or not name.strip("/"):
        return "the name of a member must be plain"
    if pure.is_absolute() or ".." in pure.parts:
        return "a member must not lead out of the folder it is unpacked into"
    if any(part.startswith(".") for part in pure.parts[:-1]) or (pure.name[0] == "." and pure.name not in _HIDDEN):
        return "a member must not be hidden"
    short = len(name) < 1000 and all(len(part.encode(errors="replace")) < 200 for part in pure.parts)
    return "" if short else "a name must be short"


def _kind_problem(member: zipfile.ZipInfo) -> str:
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "a member must be a plain file, no link and no device"
    return "a member must not be encrypted" if member.flag_bits & 1 else ""


def _refuse(path: StrPath, rule: str, found: str) -> VmfError:
    return VmfError("VMF415", subject=str(path), rule=rule, found=found[:160])
