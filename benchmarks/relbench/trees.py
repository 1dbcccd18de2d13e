# SPDX-License-Identifier: Apache-2.0
"""Hashes of folders, and how a folder is put back into an earlier state."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path

__all__ = ["Tree", "empty", "hash_files", "is_hidden", "restore", "save_tree", "tree"]

#: What lies below a folder: kind and hash by relative path.
Tree = dict[str, str]


def tree(root: Path) -> Tree:
    """Return kind and content of everything below a folder but folders themselves."""
    found: Tree = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            found[os.path.relpath(path, root)] = _describe(path)
        for name in [n for n in os.listdir(folder) if os.path.islink(os.path.join(folder, n))]:
            found[os.path.relpath(os.path.join(folder, name), root)] = _describe(Path(folder) / name)
    return found


def _describe(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"link {os.readlink(path)}"
    if not stat.S_ISREG(mode):
        return f"special {stat.S_IFMT(mode)}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hash_files(root: Path) -> str:
    """Return one hash of all files below a folder but hidden ones, empty if there are none."""
    found = tree(root) if root.is_dir() else {}
    files = {name: content for name, content in found.items() if not is_hidden(name)}
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest() if files else ""


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder above it, is hidden, as temporary ones are."""
    return any(part.startswith(".") for part in Path(name).parts)


def empty(root: Path) -> None:
    """Remove everything below a folder."""
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def save_tree(root: Path) -> dict[str, bytes]:
    """Return the content of all regular files below a folder."""
    paths = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def restore(root: Path, saved: dict[str, bytes], faulty: Tree) -> None:
    """Put back what was saved and remove what a fault added; what a tool wrote stays."""
    for name in faulty:
        path = root / name
        if name not in saved and (path.is_symlink() or path.exists()):
            path.unlink()
    for name, content in saved.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
            if path.is_symlink() or path.exists():
                path.unlink()
            path.write_bytes(content)
