# SPDX-License-Identifier: Apache-2.0
"""Temporary folders of requests and sessions, removed when they end or expire.

All lie in one temporary folder that only the server's user can read and that is removed when the server stops.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vmfseg.serving.names import split_suffix
from vmfseg.utils import VmfError

__all__ = ["Session", "Sessions", "Upload", "Workspace", "keep_upload"]

_MAX_SESSIONS = 64
_PREFIX, _LOCK = "vmfseg-serve-", ".lock"


@dataclass(frozen=True)
class Upload:
    """A file that a client sent, under a name that the server chose.

    Attributes:
        path: where it lies.
        name: what the client calls it.
        stem: that name without its ending.
        suffix: the ending.
    """

    path: Path
    name: str
    stem: str
    suffix: str


class Workspace:
    """A temporary folder with private folders in it; those that killed servers left behind are removed.

    Example:
        >>> workspace = Workspace()
        >>> with workspace.folder() as folder:
        ...     folder.is_dir()
        True
        >>> folder.exists()
        False
        >>> workspace.close()
    """

    def __init__(self) -> None:
        _remove_orphans()
        self.root = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = _hold(self.root / _LOCK)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield a new folder, which is removed in the end."""
        place = self.new_folder()
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def new_folder(self) -> Path:
        """Return a new folder that somebody else removes."""
        return Path(tempfile.mkdtemp(dir=self.root))

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.root, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


def _hold(path: Path) -> BinaryIO | None:
    """Open and lock a file; ``None`` if another process holds it. The lock goes with the process, however it ends."""
    stream = path.open("ab")
    try:
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # not a POSIX system
        return stream
    except OSError:
        stream.close()
        return None
    return stream


def _remove_orphans() -> None:
    """Remove the folders of servers that were killed: their locks are free."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError):
            if os.name == "posix" and lock.stat().st_uid == os.geteuid() and not lock.is_symlink():
                held = _hold(lock)
                if held is not None:
                    shutil.rmtree(lock.parent, ignore_errors=True)
                    held.close()


def keep_upload(what: str, filename: str | None, stream: BinaryIO, folder: Path) -> Upload:
    """Write what a client sent into a private folder.

    Raises:
        VmfError: VMF184 and VMF205 about its name.
    """
    stem, suffix = split_suffix(what, filename)
    path = folder / f"{what}{suffix}"
    with path.open("wb") as target:
        shutil.copyfileobj(stream, target, 1 << 20)
    return Upload(path, f"{stem}{suffix}", stem, suffix)


@dataclass
class Session:
    """An image that a client left for several requests.

    Attributes:
        id: 128 random bits: who does not have it cannot guess it.
        folder: what it occupies.
        image: a file, or a folder with a DICOM series.
        name: what the client calls it.
        expiry: seconds without use after which it is removed.
        created: when.
        used: last time.
    """

    id: str
    folder: Path
    image: Path
    name: str
    expiry: int
    created: int
    used: float

    def describe(self) -> dict[str, Any]:
        """Return what MONAI Label says about a session; paths are the client's own names."""
        return {
            "name": self.id,
            "path": self.id,
            "image": self.name,
            "meta": {},
            "create_ts": self.created,
            "last_access_ts": int(self.used),
            "expiry": self.expiry,
        }


class Sessions:
    """Sessions by id; those not used for long are removed.

    Args:
        workspace: where their images lie.
        expiry: seconds that a session lives at most without use.
    """

    def __init__(self, workspace: Workspace, expiry: int = 3600) -> None:
        self.workspace, self.expiry = workspace, expiry
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}

    def add(self, files: Sequence[tuple[str | None, BinaryIO]], expiry: int = 0) -> Session:
        """Begin a session with one image, or with the files of one DICOM series.

        Raises:
            VmfError: VMF542 too many sessions, VMF185 no file, VMF184 and VMF205 about names.
        """
        self.sweep()
        if len(self._sessions) >= _MAX_SESSIONS:
            raise VmfError("VMF542")
        if not files:
            raise VmfError("VMF185", subject="files", rule="a session needs an image", fix="send files=@scan.nii.gz")
        folder = self.workspace.new_folder()
        try:
            if len(files) == 1:
                upload = keep_upload("image", files[0][0], files[0][1], folder)
                image, name = upload.path, upload.name
            else:
                image, name = folder / "series", f"series of {len(files)} files"
                image.mkdir()
                for number, (_, stream) in enumerate(files):
                    with (image / f"{number:06d}.dcm").open("wb") as target:
                        shutil.copyfileobj(stream, target, 1 << 20)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        now = time.time()
        lifetime = min(expiry, self.expiry) if expiry > 0 else self.expiry
        session = Session(secrets.token_hex(16), folder, image, name, lifetime, int(now), now)
        with self._lock:
            self._sessions[session.id] = session
        return session

    def get(self, session_id: str, *, touch: bool = True) -> Session:
        """Look up a session.

        Raises:
            VmfError: VMF183.
        """
        self.sweep()
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                raise VmfError("VMF183", subject="session")
            if touch:
                session.used = time.time()
            return session

    def remove(self, session_id: str) -> Session:
        """End a session.

        Raises:
            VmfError: VMF183.
        """
        session = self.get(session_id)
        with self._lock:
            self._sessions.pop(session_id, None)
        shutil.rmtree(session.folder, ignore_errors=True)
        return session

    def sweep(self) -> int:
        """Remove what expired; return how many."""
        now = time.time()
        with self._lock:
            old = [session for session in self._sessions.values() if session.used + session.expiry < now]
            for session in old:
                del self._sessions[session.id]
        for session in old:
            shutil.rmtree(session.folder, ignore_errors=True)
        return len(old)
