# SPDX-License-Identifier: Apache-2.0
"""Index of the images in a folder, looked up by id and rebuilt from disk.

Images of the folder are only read. Uploaded ones are added beside them and never replace one. What the server itself
has to remember lies in the hidden folder ``.vmfseg`` and can be removed without losing an image or a label.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmfseg.data.reader import SUPPORTED_SUFFIXES
from vmfseg.model.inputs import find_images
from vmfseg.serving.names import check_id, check_plain
from vmfseg.utils import VmfError, read_json, sha256_file, write_json
from vmfseg.utils.io import StrPath, copy_file

__all__ = ["HIDDEN", "LABELS", "ImageIndex", "IndexedImage", "is_inside", "keep_version"]

LABELS, HIDDEN = "labels", ".vmfseg"
_FRESH_SECONDS = 2.0


@dataclass(frozen=True)
class IndexedImage:
    """One image.

    Attributes:
        id: by which clients name it: its path in the folder without its ending.
        path: a file, or a folder with a DICOM series.
        suffix: ending of the file, empty for a folder.
    """

    id: str
    path: Path
    suffix: str


class ImageIndex:
    """Images below a folder by id.

    Links that lead out of the folder are left out, and so are masks beside images, see
    :func:`vmfseg.model.inputs.find_images`.

    Args:
        root: the folder; it must exist.

    Raises:
        VmfError: VMF279 if there is no such folder, VMF301 if ``.vmfseg/info.json`` is damaged.

    Example:
        >>> import nibabel as nib, numpy as np, tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> nib.save(nib.Nifti1Image(np.zeros((8, 8, 2), np.int16), np.eye(4)), root / "scan.nii.gz")
        >>> studies = ImageIndex(root)
        >>> studies.ids(), studies.get("scan").path.name
        (['scan'], 'scan.nii.gz')
        >>> studies.get("../scan")
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF184: image must be the id of something that is listed...
    """

    def __init__(self, root: StrPath) -> None:
        self.root = Path(root).expanduser().absolute()
        if not self.root.is_dir():
            raise VmfError("VMF279", subject=str(root), found="none")
        self.lock = threading.RLock()
        self._index: dict[str, IndexedImage] = {}
        self._read_at = 0.0
        note = self.root / HIDDEN / "info.json"
        content = read_json(note) if note.is_file() else {}
        known = content if isinstance(content, dict) else {}
        self._info: dict[str, dict[str, Any]] = {
            key: value for key, value in known.items() if isinstance(value, dict)
        }  # fmt: skip
        self.refresh()

    def refresh(self) -> None:
        """Read the folder again."""
        with self.lock:
            try:
                found = [path for path, _ in find_images(self.root)]
            except VmfError as error:
                if error.code != "VMF295":
                    raise
                found = []
            inside = [path for path in found if self._counts(path)]
            stems: dict[str, list[tuple[Path, str]]] = {}
            for path in inside:
                stem, suffix = self._split(path)
                stems.setdefault(stem, []).append((path, suffix))
            index = {}
            for stem, paths in stems.items():
                for path, suffix in paths:  # two files that differ in their ending alone keep it
                    name = stem if len(paths) == 1 else f"{stem}{suffix}"
                    index[name] = IndexedImage(name, path, suffix)
            self._index = dict(sorted(index.items()))
            self._read_at = time.monotonic()

    def ids(self) -> list[str]:
        """Return all ids, sorted."""
        with self.lock:
            if time.monotonic() - self._read_at > _FRESH_SECONDS:
                self.refresh()
            return list(self._index)

    def get(self, image: str) -> IndexedImage:
        """Look up an image.

        Raises:
            VmfError: VMF184 an id that is none, VMF181 one that is not there.
        """
        check_id("image", image)
        with self.lock:
            study = self._index.get(image)
            if study is None or not self._counts(study.path):
                self.refresh()
                study = self._index.get(image)
        if study is None:
            raise VmfError(
                "VMF181", subject=image, rule="there is no such image", fix="take an id from /datastore/?output=all"
            )
        return study

    def add(self, name: str, suffix: str, file: Path, info: Mapping[str, Any], *, exact: bool = True) -> str:
        """Put a new image into the folder, in one step.

        Args:
            name: wanted id, a plain name.
            suffix: ending of the file.
            file: what to copy.
            info: what to remember about it.
            exact: whether another id must not be taken instead; the same content under the same id is taken as done.

        Raises:
            VmfError: VMF184 the name is not plain, VMF196 the id is taken, VMF501 and VMF502 if it cannot be written.
        """
        check_plain("image", name)
        with self.lock:
            self.refresh()
            known = self._index.get(name)
            if known is not None and exact:
                if known.path.is_file() and sha256_file(known.path) == sha256_file(file):
                    return name
                raise _taken(name)
            number, free = 1, name
            while self._is_taken(free):
                if exact:
                    raise _taken(name)
                number += 1
                free = f"{name}-{number}"
            copy_file(file, self.root / f"{free}{suffix}", overwrite=False)
            self.refresh()
            if free not in self._index:
                (self.root / f"{free}{suffix}").unlink()
                raise VmfError(
                    "VMF184",
                    subject=name,
                    rule="image must not be named like a mask",
                    found=free,
                    fix="leave out endings like _gt, _seg and _label",
                )
            self.update_info(free, {**info, "uploaded": True, "ts": int(time.time()), "name": f"{free}{suffix}"})
            return free

    def remove(self, image: str) -> None:
        """Take an uploaded image out of the folder; it is kept in ``.vmfseg/removed``.

        Raises:
            VmfError: VMF181 no such image, VMF198 one that was not uploaded here.
        """
        with self.lock:
            study = self.get(image)
            if not self.info(image).get("uploaded"):
                raise VmfError("VMF198", subject=image)
            keep_version(study.path, self.root / HIDDEN / "removed", study.suffix)
            study.path.unlink()
            self._info.pop(image, None)
            self._save_info()
            self.refresh()

    def info(self, image: str) -> dict[str, Any]:
        """Return what is remembered about an image: file name and time, and what clients added."""
        study = self.get(image)
        with self.lock:
            remembered = dict(self._info.get(image, {}))
        stamp = int(study.path.stat().st_mtime)
        return {"name": study.path.name, "ts": stamp, **{k: v for k, v in remembered.items() if k != "labels"}}

    def update_info(self, image: str, info: Mapping[str, Any]) -> dict[str, Any]:
        """Add to what is remembered about an image."""
        with self.lock:
            self._info.setdefault(image, {}).update(info)
            self._save_info()
        return self.info(image)

    def label_notes(self, image: str) -> dict[str, dict[str, Any]]:
        """Return what is remembered about the labels of an image, by tag; :meth:`save_label_note` changes it."""
        with self.lock:
            notes = self._info.get(image, {}).get("labels", {})
            return {tag: dict(note) for tag, note in notes.items()} if isinstance(notes, dict) else {}

    def save_label_note(self, image: str, tag: str, note: Mapping[str, Any] | None) -> None:
        """Remember something about a label, or forget it."""
        with self.lock:
            notes = self.label_notes(image)
            notes.pop(tag, None)
            if note is not None:
                notes[tag] = dict(note)
            self._info.setdefault(image, {})["labels"] = notes
            self._save_info()

    def _save_info(self) -> None:
        write_json(self.root / HIDDEN / "info.json", self._info)

    def _is_taken(self, name: str) -> bool:
        return name in self._index or any(os.path.lexists(self.root / f"{name}{end}") for end in SUPPORTED_SUFFIXES)

    def _counts(self, path: Path) -> bool:
        return path != self.root and path.relative_to(self.root).parts[0] != LABELS and is_inside(path, self.root)

    def _split(self, path: Path) -> tuple[str, str]:
        name = path.relative_to(self.root).as_posix()
        endings = sorted(SUPPORTED_SUFFIXES, key=len, reverse=True)
        length = next((len(end) for end in endings if name.lower().endswith(end)), 0) if path.is_file() else 0
        return name[: len(name) - length], name[len(name) - length :]


def is_inside(path: Path, root: Path) -> bool:
    """Tell whether something exists and lies in a folder when all links are followed."""
    try:
        return path.resolve(strict=True).is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        return False


def keep_version(path: Path, folder: Path, suffix: str) -> int:
    """Keep a file in a folder under its own name and the next free number; return the number.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.nii.gz").write_text("first")
        >>> keep_version(folder / "a.nii.gz", folder / "old", ".nii.gz"), next((folder / "old").iterdir()).name
        (1, 'a.1.nii.gz')
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while os.path.lexists(kept := folder / f"{path.name.removesuffix(suffix)}.{number}{suffix}"):
        number += 1
    copy_file(path, kept, overwrite=False)
    return number


def _taken(name: str) -> VmfError:
    return VmfError("VMF196", subject=name)
