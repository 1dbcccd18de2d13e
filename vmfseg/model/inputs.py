# SPDX-License-Identifier: Apache-2.0
"""Find the images that files, folders and patterns stand for, and name the files of their labels."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmfseg.data.discover import open_datalist
from vmfseg.data.experiment import prepare_experiment
from vmfseg.data.reader import SUPPORTED_SUFFIXES, image_stem, read_header
from vmfseg.model.scan import label_path
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath

__all__ = ["Job", "find_images", "find_rows", "holds_dicom", "plan_jobs", "rows_of_file"]

#: What lies beside images and is none: masks and factors of M&Ms, SCGM and the phantom, and what this package writes.
_NO_IMAGE = re.compile(r"(_gt|_label|[_-]factors|-mask-r\d+|_seg|_probabilities|_activations)$", re.IGNORECASE)
_DICOM = (".dcm", ".ima")
_OF_LABELS = ("label", "annotated", "slices", "label_map")  # entries of a row that concern its label


@dataclass(frozen=True)
class Job:
    """One image and where its labels go.

    Attributes:
        image: a file, or a folder that holds a DICOM series; a tuple of these for several channels.
        output: the label map; what else is written lies beside it, see :meth:`beside`.
    """

    image: Path | tuple[Path, ...]
    output: Path

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files, one a channel."""
        return self.image if isinstance(self.image, tuple) else (self.image,)

    @property
    def name(self) -> str:
        """The image as it is written on the command line."""
        return ";".join(str(path) for path in self.sources)

    def beside(self, what: str, suffix: str = "") -> Path:
        """Return the file for ``what`` that belongs to the output.

        Example:
            >>> Job(Path("a.nii"), Path("out/a_seg.nii.gz")).beside("quality", ".json").as_posix()
            'out/a_quality.json'
        """
        return self.output.with_name(f"{image_stem(self.output).removesuffix('_seg')}_{what}{suffix}")

    def files(self, probabilities: bool = False, activations: bool = False, overlay: bool = False) -> list[Path]:
        """Return all files that the job writes."""
        wanted = [self.output, self.beside("quality", ".json")]
        wanted += [self.beside("probabilities", ".nii.gz")] if probabilities else []
        wanted += [self.beside("activations", ".nii.gz")] if activations else []
        return wanted + ([self.beside("overlay", ".png")] if overlay else [])


def find_images(given: StrPath) -> list[tuple[Path, Path]]:
    """Return the images that a file, a folder or a glob pattern stands for, each with the folder it was looked up in.

    A folder stands for the images in it and below; masks and hidden files are left out. A folder without such files
    that holds DICOM files is one series, and so is each such folder below.

    Raises:
        VmfError: VMF295 if there is none.
    """
    text = os.path.expanduser(os.fspath(given))
    if glob.has_magic(text) and not os.path.lexists(text):
        found = sorted(Path(name) for name in glob.glob(text, recursive=True))
        images = [pair for path in found if not _hidden(path.name) for pair in _expand(path, chosen=False)]
    else:
        images = _expand(Path(text) if Path(text).name else Path(text).resolve(), chosen=True)
    if not images:
        raise VmfError(
            "VMF295",
            subject=str(given),
            rule="there must be an image",
            found="none" if glob.has_magic(text) or os.path.isdir(text) else "no such file or folder",
            fix=f"give {', '.join(SUPPORTED_SUFFIXES)} files, a folder of them, or a folder with a DICOM series",
        )
    return images


def plan_jobs(inputs: Sequence[StrPath], output: StrPath) -> list[Job]:
    """Return one job for each image.

    Args:
        inputs: files, folders, glob patterns, datalists (JSON or CSV), and files joined by ``;``, the channels of one
            image.
        output: a folder; subfolders of the inputs are kept in it. For a single image it may be a ``.nii`` or
            ``.nii.gz`` file.

    Raises:
        VmfError: VMF295 no image, VMF172 two images with one output or one file for several images, VMF173 an output
            that is an input.
    """
    images = list(dict.fromkeys(pair for given in inputs for pair in _find(given)))
    target = Path(output).expanduser()
    if target.name.lower().endswith((".nii", ".nii.gz")) and not target.is_dir():
        if len(images) != 1:
            raise VmfError(
                "VMF172",
                subject=str(output),
                rule="several images need a folder as output",
                found=f"{len(images)} images and one file",
                fix="give a folder",
            )
        jobs = [Job(images[0][0], target)]
    else:
        jobs = [Job(i, label_path(i[0] if isinstance(i, tuple) else i, target, root=root)) for i, root in images]
    _check_jobs(jobs)
    return jobs


def find_rows(
    dataset_dir: str | os.PathLike[str] | None = "",
    dataset: str = "mnms",
    target_domain: str = "D",
    seed: int = 0,
    phantom: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return one row for each volume, one for each frame of a cine, as MONAI's transforms take them.

    Args:
        dataset_dir: a folder (with its subfolders), one image or a glob pattern, see :func:`find_images`; empty takes
            the target domain of the phantom, or its validation subjects where it has none.
        dataset: which phantom, ``"mnms"``, ``"scgm"``, ``"hearts"`` or ``"cords"``.
        target_domain: of the phantom.
        seed: of the phantom.
        phantom: further arguments of :func:`vmfseg.phantom.make_phantom`.

    Raises:
        VmfError: VMF295 if there is no image; otherwise as the reader.
    """
    if not dataset_dir:
        found = prepare_experiment(dataset, "", target_domain, seed=seed, phantom=phantom)
        rows = found.target or found.validation
        return [{key: value for key, value in row.items() if key not in _OF_LABELS} for row in rows]
    files = [path for path, _ in find_images(dataset_dir)]
    return [row for path in files for row in rows_of_file(path)]


def rows_of_file(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the row of a 3-D file, or one row for each frame of a 4-D file; no voxel is read.

    Raises:
        VmfError: what the reader refuses.
    """
    name = os.path.abspath(os.fspath(path))
    header = read_header(name)
    if len(header.shape) == 4:
        return [{"image": name, "frame": frame} for frame in range(header.num_frames)]
    return [{"image": name}]


def _find(given: StrPath) -> list[tuple[Path | tuple[Path, ...], Path]]:
    """Return images with the folder they were looked up in; an image of several channels is a tuple."""
    text = os.path.expanduser(os.fspath(given))
    if Path(text).suffix.lower() in (".json", ".csv", ".tsv"):
        names = {value: str(value) for value in range(1, 256)}  # of classes, which do not matter here
        datalist = open_datalist(text, labels=names, checksums=False)[0]
        rows = [tuple(datalist.path(name) for name in row.images) for row in datalist.rows]
        return [(paths if len(paths) > 1 else paths[0], datalist.root) for paths in dict.fromkeys(rows)]
    if ";" in text and not os.path.lexists(text):
        parts = [find_images(part.strip())[0] for part in text.split(";")]
        return [(tuple(path for path, _ in parts), parts[0][1])]
    return list(find_images(given))


def _check_jobs(jobs: Sequence[Job]) -> None:
    owners: dict[Path, str] = {}
    inputs = {path.resolve() for job in jobs for path in job.sources}
    for job in jobs:
        place = job.output.resolve()
        if place in inputs:
            raise VmfError("VMF173", subject=str(job.output), found=f"the labels of {job.name}")
        if place in owners:
            raise VmfError(
                "VMF172",
                subject=str(job.output),
                rule="every image needs an output of its own",
                found=f"{owners[place]} and {job.name}",
                fix="give the folder above them, so that subfolders are kept, or segment them into different folders",
            )
        owners[place] = job.name


def _expand(path: Path, chosen: bool) -> list[tuple[Path, Path]]:
    if not path.is_dir():
        return [(path, path.parent)] if path.exists() and (chosen or _is_image(path)) else []
    below = sorted(file for file in path.rglob("*") if not _hidden(*file.relative_to(path).parts))
    images = [(file, path) for file in below if file.is_file() and _is_image(file)]
    series = [folder for folder in (path, *(f for f in below if f.is_dir())) if holds_dicom(folder)]
    return images + [(folder, path.parent if folder == path else path) for folder in series]


def _is_image(path: Path) -> bool:
    return path.name.lower().endswith(SUPPORTED_SUFFIXES) and not _NO_IMAGE.search(image_stem(path))


def holds_dicom(folder: Path) -> bool:
    """Tell whether a folder itself holds a file of a DICOM series."""
    for file in folder.iterdir():
        if file.is_file() and not _hidden(file.name):
            if file.suffix.lower() in _DICOM:
                return True
            with open(file, "rb") as stream:
                if stream.read(132)[128:] == b"DICM":
                    return True
    return False


def _hidden(*parts: str) -> bool:
    return any(part.startswith(".") for part in parts)
