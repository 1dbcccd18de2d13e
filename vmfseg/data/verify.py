# SPDX-License-Identifier: Apache-2.0
"""Verification: open every file of a datalist once and report all findings.

On top of the reader's own rules (see :mod:`vmfseg.data.reader`):

===================  ============================================================================================
code                 finding
===================  ============================================================================================
VMF251               label values outside the classes, with voxel counts
VMF253, 254, 255     label or channel of another shape, elsewhere (a warning up to half a voxel), mirrored
VMF256               image and label swapped, or a label that is no mask
VMF243 *(warning)*   scans of a domain lie in another plane, mirrored or turned, by their headers
VMF244 *(warning)*   structures of a domain lie in another direction from each other, though the headers agree
VMF258 *(warning)*   empty mask
VMF259 *(warning)*   image and label of opposite handedness, equal after reordering
VMF260               the same voxels under two subjects
VMF261               file changed since its checksum was taken
VMF262               class that no label contains
VMF263 *(warning)*   label contains a class that is declared as not annotated
VMF264 *(warning)*   left ventricle larger at ES than at ED: are the phases swapped?
VMF265 *(warning)*   myocardium around class RV instead of LV: are the classes in ACDC's order?
VMF266 *(warning)*   an end of the stack empty beside a large area, and no end that tapers: were those slices annotated?
VMF280               annotated slices that the file does not have
===================  ============================================================================================
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.data.datalist import Datalist, Row
from vmfseg.data.findings import Finding
from vmfseg.data.geometry import voxel_sizes
from vmfseg.data.masks import align_label, read_frame, read_row_label
from vmfseg.data.orientation import Pose, class_direction, orientation_findings, slice_frame, stack_affine, stack_array
from vmfseg.data.reader import Volume, read_volume
from vmfseg.data.scan_facts import undrawn_ends
from vmfseg.transforms.annotation import slice_table
from vmfseg.transforms.annotation_text import slices_text
from vmfseg.transforms.spatial import slice_axis
from vmfseg.utils import VmfError, sha256_file

__all__ = ["verify_datalist"]

_MANY_VALUES = 64


@dataclass
class _Report:
    """What one subject contributes."""

    subject: str
    findings: list[Finding] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    classes: set[int] = field(default_factory=set)
    sizes: dict[tuple[str, str], int] = field(default_factory=dict)
    poses: dict[str, Pose] = field(default_factory=dict)

    def error(self, error: VmfError) -> None:
        self._add(Finding.from_error(error, self.subject))

    def warn(self, code: str, message: str, file: str) -> None:
        self._add(Finding("warning", code, self.subject, message, file))

    def keep(self, volume: Volume) -> None:
        for finding in volume.findings:
            self._add(replace(finding, subject=self.subject))

    def _add(self, finding: Finding) -> None:
        if finding not in self.findings:
            self.findings.append(finding)


def verify_datalist(
    datalist: Datalist, *, workers: int = 1, progress: Callable[[int, int], None] | None = None
) -> list[Finding]:
    """Check every image, label and pair of a datalist.

    Args:
        datalist: what to check.
        workers: number of threads that read files.
        progress: called with (subjects done, all subjects).

    Returns:
        findings in the order of the rows; the data is usable if none is an error.

    Raises:
        ValueError: if ``workers`` is not positive.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}. Use 1 to read one file at a time.")
    subjects: dict[str, list[Row]] = defaultdict(list)
    for row in datalist.rows:
        subjects[row.subject].append(row)
    reports = []
    with ThreadPoolExecutor(workers) as pool:
        for report in pool.map(lambda item: _check_subject(datalist, *item), subjects.items()):
            reports.append(report)
            if progress is not None:
                progress(len(reports), len(subjects))
    findings = [finding for report in reports for finding in report.findings]
    poses = [pose for report in reports for pose in report.poses.values()]
    turned = orientation_findings(poses, datalist.labels)
    return [*findings, *_duplicates(reports), *_missing_classes(datalist, reports), *turned]


def _check_subject(datalist: Datalist, subject: str, rows: list[Row]) -> _Report:
    report = _Report(subject)
    for names, group in groupby(sorted(rows, key=lambda row: row.images), key=lambda row: row.images):
        members = list(group)
        _check_sums(datalist, members, report)
        try:
            volumes = [read_volume(datalist.path(name)) for name in names]
        except VmfError as error:
            report.error(error)
            continue
        for name, volume in zip(names, volumes, strict=True):
            report.keep(volume)
            report.digests[name] = _digest(volume.array)
        for row in members:
            try:
                _check_row(datalist, row, volumes, report)
            except VmfError as error:
                report.error(error)
    _check_phases(datalist, report)
    return report


def _check_sums(datalist: Datalist, rows: list[Row], report: _Report) -> None:
    known: dict[str, str] = {}
    for row in rows:
        for names, sums in ((row.images, row.image_sha256), (row.labels, row.label_sha256)):
            digests = sums if isinstance(sums, tuple) else (sums,)
            known.update({name: s for name, s in zip(names, digests, strict=False) if isinstance(s, str)})
    for name, digest in known.items():
        path = datalist.path(name)
        if path.is_file() and sha256_file(path) != digest:
            report.error(VmfError("VMF261", subject=str(path), found="another checksum"))


def _check_row(datalist: Datalist, row: Row, volumes: list[Volume], report: _Report) -> None:
    image, *others = (_frame_of(volume, row.frame) for volume in volumes)
    for other in others:
        report.keep(align_label(image, other, what="channel"))
    pose = Pose(row.domain, row.subject, slice_frame(image.affine, image.array.shape), {})
    report.poses.setdefault(row.images[0], pose)
    if not row.is_labeled:
        return
    paths = [str(datalist.path(name)) for name in row.labels]
    if _is_mask(image.array, datalist.num_classes):
        raise _swapped(image.path, "the image looks like a mask: it has the values of classes only")
    if os.path.realpath(image.path) in {os.path.realpath(path) for path in paths}:
        raise _swapped(image.path, "image and label are the same file")
    try:
        label = read_row_label(datalist, row, image)
    except VmfError as error:
        count = _distinct(paths[0]) if error.code in ("VMF250", "VMF251") else 0
        if count > _MANY_VALUES:
            raise _swapped(paths[0], f"the label is no mask: more than {_MANY_VALUES} different values") from error
        raise
    report.keep(label)
    _check_content(datalist, row, label, report)
    if not any(finding.code == "VMF265" for finding in report.findings):  # swapped classes would look like turned ones
        sizes = voxel_sizes(stack_affine(image.affine, image.array.shape)).tolist()
        directions = class_direction(stack_array(label.array, image.affine), sizes[:2])
        report.poses[row.images[0]] = replace(pose, directions=directions)


def _check_content(datalist: Datalist, row: Row, label: Volume, report: _Report) -> None:
    counts = {value: int((label.array == value).sum()) for value in datalist.labels if value}
    present = {value for value, count in counts.items() if count}
    report.classes |= present
    where = "" if row.frame is None else f" (frame {row.frame})"
    if not present:
        report.warn("VMF258", f"the mask is empty{where}", label.path)
    extra = present - set(present if row.annotated is None else row.annotated)
    if extra:
        names = ", ".join(datalist.labels[value] for value in sorted(extra))
        report.warn("VMF263", f"declared as not annotated, but present{where}: {names}", label.path)
    _check_slices(datalist, row, label, report, where)
    index = {name.upper(): value for value, name in datalist.labels.items()}
    if row.phase in ("ED", "ES") and "LV" in index:
        report.sizes[row.images[0], row.phase] = counts[index["LV"]]
    if {"LV", "MYO", "RV"} <= set(index) and {index[name] for name in ("LV", "MYO", "RV")} <= present:
        lv, myo, rv = (np.argwhere(label.array == index[name]).mean(axis=0) for name in ("LV", "MYO", "RV"))
        scale = np.sqrt((label.affine[:3, :3] ** 2).sum(axis=0))
        if np.linalg.norm((myo - lv) * scale) > np.linalg.norm((myo - rv) * scale):
            report.warn(
                "VMF265", f"the myocardium lies around RV instead of LV{where}: check the class order", label.path
            )


def _check_slices(datalist: Datalist, row: Row, label: Volume, report: _Report, where: str) -> None:
    """Check the annotated slices of a row, or warn where it looks as if only some of them were annotated."""
    axis = _axis(label)
    slices = datalist.slices_of(row)
    if slices is not None:
        slice_table(slices_text(slices), datalist.num_classes, label.array.shape[axis])
        return
    areas = (label.array > 0).sum(axis=tuple(k for k in range(3) if k != axis))
    drawn = undrawn_ends(areas)
    if drawn is not None:
        text = f"only slices {drawn} of 0-{len(areas) - 1} are labelled{where}, and the label ends at a large area"
        report.warn("VMF266", f"{text}: if the others were not annotated, write {drawn} in a column slices", label.path)


def _check_phases(datalist: Datalist, report: _Report) -> None:
    for image, phase in list(report.sizes):
        if phase == "ES" and report.sizes[image, "ES"] > report.sizes.get((image, "ED"), np.inf):
            report.warn(
                "VMF264",
                "the left ventricle is larger at ES than at ED: are the phases swapped?",
                str(datalist.path(image)),
            )


def _duplicates(reports: list[_Report]) -> Iterator[Finding]:
    owners: dict[str, tuple[str, str]] = {}
    for report in reports:
        for name, digest in report.digests.items():
            subject, other = owners.setdefault(digest, (report.subject, name))
            if subject != report.subject:
                text = f"the same voxels as subject {subject} ({other}) - one person under two ids leaks between splits"
                yield Finding("error", "VMF260", report.subject, text, name)


def _missing_classes(datalist: Datalist, reports: list[_Report]) -> Iterator[Finding]:
    if any(finding.severity == "error" for report in reports for finding in report.findings):
        return  # labels that could not be read would make this a false alarm
    classes = set().union(*(report.classes for report in reports)) if reports else set()
    claimed = {
        value
        for row in datalist.rows
        if row.is_labeled
        for value in (datalist.labels if row.annotated is None else row.annotated)
    }
    for value in sorted(claimed - classes - {0}):
        text = f"no label contains class {value} ({datalist.labels[value]}) - check the class numbers or label_map"
        yield Finding("error", "VMF262", datalist.name, text)


def _axis(volume: Volume) -> int:
    return slice_axis(volume.affine, volume.array.shape)


def _frame_of(volume: Volume, frame: int | None) -> Volume:
    """Return one frame; the reader still holds a 4-D file in memory, and refuses a frame that is not there."""
    return read_frame(volume.path, frame) if volume.array.ndim == 4 or frame else volume


def _digest(array: npt.NDArray[np.float32]) -> str:
    """Hash of shape and voxels: a copy that was renamed, re-compressed or given another header is still the same."""
    digest = hashlib.sha256(repr(array.shape).encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _is_mask(array: npt.NDArray[Any], num_classes: int) -> bool:
    if float(array.min()) < 0 or float(array.max()) >= num_classes:
        return False
    return bool((array == np.rint(array)).all())


def _distinct(path: str) -> int:
    try:
        return len(np.unique(read_volume(path).array))
    except VmfError:
        return 0


def _swapped(path: str, found: str) -> VmfError:
    return VmfError("VMF256", subject=path, found=found)
