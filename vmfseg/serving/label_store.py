# SPDX-License-Identifier: Apache-2.0
"""Labels of the studies, ``labels/TAG/ID.nii.gz`` as in MONAI Label; versions are kept, frames of a cine together.

The newest label of an image and tag has the plain name; those before it are kept, numbered, in
``.vmfseg/versions/TAG``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.data.masks import align_label
from vmfseg.data.reader import SUPPORTED_SUFFIXES, Volume, read_header, read_volume
from vmfseg.model.scan import Scan, map_image, write_map
from vmfseg.serving.image_index import HIDDEN, LABELS, ImageIndex, IndexedImage, is_inside, keep_version
from vmfseg.serving.names import check_id, check_plain
from vmfseg.utils import VmfError
from vmfseg.utils.io import copy_file

__all__ = ["FINAL", "ORIGINAL", "Label", "LabelStore", "check_frame", "check_label", "write_frame_label"]

#: Tags of MONAI Label: what a person has finished, and what a model proposed.
FINAL, ORIGINAL = "final", "original"


@dataclass(frozen=True)
class Label:
    """A label file.

    Attributes:
        image: id of its image.
        tag: what kind of label it is.
        path: the file.
        suffix: its ending.
    """

    image: str
    tag: str
    path: Path
    suffix: str


class LabelStore:
    """Labels of studies by id and tag, looked up on disk each time.

    Args:
        studies: whose labels they are.
    """

    def __init__(self, studies: ImageIndex) -> None:
        self.studies, self.root = studies, studies.root / LABELS

    def tags(self) -> list[str]:
        """Return the tags that have a folder."""
        if not self.root.is_dir() or not is_inside(self.root, self.studies.root):
            return []
        folders = [path for path in self.root.iterdir() if path.is_dir() and not path.name.startswith(".")]
        return sorted(path.name for path in folders if is_inside(path, self.studies.root))

    def of_image(self, image: str) -> dict[str, Label]:
        """Return the labels of an image by tag."""
        found = {tag: self._find(image, tag) for tag in self.tags()}
        return {tag: label for tag, label in found.items() if label is not None}

    def get(self, image: str, tag: str) -> Label:
        """Look up a label.

        Raises:
            VmfError: VMF184 a name that is none, VMF181 no such image, VMF182 no such label.
        """
        check_plain("tag", tag)
        study = self.studies.get(check_id("label", image))
        label = self._find(study.id, tag)
        if label is None:
            there = ", ".join(self.of_image(study.id)) or "none"
            raise VmfError("VMF182", subject=f"{image}, tag {tag}", found=there)
        return label

    def save(self, image: str, tag: str, file: Path, suffix: str, info: Mapping[str, Any]) -> Label:
        """Keep a new label in one step; an earlier one of the same image and tag is put aside, not lost.

        Args:
            image: id.
            tag: what kind of label it is.
            file: the label, in a private folder. One volume is a frame of a cine if ``info`` says which (``frame``);
                it is kept together with the frames that were saved before.
            suffix: ending of the file.
            info: what to remember about it.

        Raises:
            VmfError: VMF184 a name that is none, VMF181 no such image, VMF253 to VMF255 a label of another grid, VMF235
                a frame that does not exist, what the reader refuses, VMF501 and VMF502 if it cannot be written.
        """
        check_plain("tag", tag)
        study = self.studies.get(image)
        values, frames = check_label(study, file)
        is_frame = frames > 1 and values.ndim == 3 and info.get("frame") is not None
        suffix = ".nii.gz" if is_frame else suffix
        target = self.root / tag / f"{study.id}{suffix}"
        with self.studies.lock:
            old = self._find(study.id, tag)
            if is_frame:
                before = None if old is None else old.path
                file = write_frame_label(study, before, values, info["frame"], file.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not is_inside(target.parent, self.studies.root):
                rule = "the folder of the tag must lie in the studies"
                raise VmfError("VMF184", subject="tag", rule=rule, found="a link", fix="choose another tag")
            version = 1 if old is None else self._keep(old) + 1
            copy_file(file, target, overwrite=True)
            if old is not None and old.path != target:
                old.path.unlink()
            note = {**info, "ts": int(time.time()), "name": target.name, "version": version}
            self.studies.save_label_note(study.id, tag, note)
        return Label(study.id, tag, target, suffix)

    def remove(self, image: str, tag: str) -> None:
        """Take a label out; it is kept among the versions.

        Raises:
            VmfError: VMF181, VMF182, VMF184.
        """
        with self.studies.lock:
            label = self.get(image, tag)
            self._keep(label)
            label.path.unlink()
            self.studies.save_label_note(label.image, tag, None)

    def info(self, image: str, tag: str) -> dict[str, Any]:
        """Return what is remembered about a label."""
        label = self.get(image, tag)
        note = self.studies.label_notes(label.image).get(tag, {})
        return {"name": label.path.name, "ts": int(label.path.stat().st_mtime), **note}

    def update_info(self, image: str, tag: str, info: Mapping[str, Any]) -> dict[str, Any]:
        """Add to what is remembered about a label."""
        with self.studies.lock:
            note = {**self.info(image, tag), **info}
            self.studies.save_label_note(image, tag, note)
        return note

    def unlabeled(self) -> list[str]:
        """Return the ids of images that no person has labelled yet."""
        return [image for image in self.studies.ids() if self._find(image, FINAL) is None]

    def _find(self, image: str, tag: str) -> Label | None:
        for suffix in SUPPORTED_SUFFIXES:
            path = self.root / tag / f"{image}{suffix}"
            if path.is_file() and is_inside(path, self.studies.root):
                return Label(image, tag, path, suffix)
        return None

    def _keep(self, label: Label) -> int:
        """Keep a label among the versions; return its number."""
        folder = self.studies.root / HIDDEN / "versions" / label.tag
        return keep_version(label.path, folder / Path(label.image).parent, label.suffix)


def check_label(study: IndexedImage, file: Path) -> tuple[npt.NDArray[Any], int]:
    """Refuse a label that is no label of this image. Of a cine, it may be one frame or all.

    Returns:
        The label in the order of the image's axes, ``XYZ`` or ``XYZT``, and how many frames the image has.

    Raises:
        VmfError: what the reader refuses; VMF250 values that are no integers, VMF253 to VMF255 another grid.
    """
    header = read_header(study.path)
    grid = np.broadcast_to(np.float32(0), header.shape[:3])
    image = Volume(grid, header.affine, header.original_affine, header.nifti, (), str(study.path))
    label = read_volume(file, kind="label")
    if label.array.ndim == 4 and label.array.shape[3] == 1:
        label = replace(label, array=label.array[..., 0])
    if label.array.ndim == 4 and label.array.shape[3] == header.num_frames:
        align_label(image, replace(label, array=label.array[..., 0]))
        return label.array, header.num_frames
    return align_label(image, label).array, header.num_frames


def check_frame(frame: Any, frames: int) -> int:
    """Return the number of a frame if the image has it.

    Raises:
        VmfError: VMF185 no whole number, VMF235 a frame that does not exist.

    Example:
        >>> check_frame(8, 8)
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF235: the frame must exist...
    """
    fix = f"Choose a frame from 0 to {frames - 1}."
    if isinstance(frame, bool) or not isinstance(frame, int):
        found = repr(frame)[:40]
        raise VmfError("VMF185", subject="frame", rule="must be a whole number", found=found, fix=fix)
    if not 0 <= frame < frames:
        raise VmfError("VMF235", subject="frame", found=f"frame {frame}", fix=fix)
    return frame


def write_frame_label(
    study: IndexedImage, old: Path | None, values: npt.NDArray[Any], frame: Any, folder: Path
) -> Path:
    """Write a label with all frames of a cine: the given frame, the other ones as they were, or else empty.

    Args:
        study: the cine.
        old: its label until now. One that does not have the frames of the cine is not used.
        values: the label of the frame, on the grid of the cine.
        frame: counted from 0.
        folder: where to write the file.

    Raises:
        VmfError: VMF185 and VMF235 about the frame, VMF501 to VMF503 if the file cannot be written.
    """
    scan = Scan.open(study.path)
    number = check_frame(frame, scan.num_frames)
    whole = np.zeros((*scan.grid_shape, scan.num_frames), np.float32)
    if old is not None:
        known = read_volume(old, kind="label").array
        if known.shape == whole.shape:
            whole[:] = known
    whole[..., number] = values
    kind = "uint8" if whole.max() <= np.iinfo(np.uint8).max else "uint16"
    target = folder / "frames.nii.gz"
    write_map(target, map_image(scan, whole.astype(kind)))
    return target
