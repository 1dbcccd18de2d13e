# SPDX-License-Identifier: Apache-2.0
"""SCGM data set: the spinal cord grey matter segmentation challenge 2016 (Prados et al., NeuroImage 2017).

Flat files ``site{1..4}-sc{01..20}-image.nii.gz``; of subjects 1 to 10 also ``-mask-r{1..4}.nii.gz``, one mask a rater
with 1 grey matter (GM) and 2 white matter (WM). Sites: 1 London, 2 Montreal, 3 Zurich, 4 Vanderbilt; each is a domain.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from vmfseg.data.datalist import Datalist, Row, add_checksums
from vmfseg.data.findings import Finding
from vmfseg.utils import VmfError

__all__ = ["SCGMDataset"]

_FILE = re.compile(
    r"(?P<subject>site(?P<site>\d+)-sc\d+)-(?P<kind>image|mask-r(?P<rater>\d+))\.nii(\.gz)?$", re.IGNORECASE
)


class SCGMDataset:
    """The SCGM challenge data as a :class:`~vmfseg.data.Datalist`.

    The label of a row is the list of its raters' masks; they are fused when they are loaded (strict majority, or STAPLE
    by ``LoadVolumed(fusion="staple")``), so nothing is written. Subjects 11 to 20 have no masks
    and are unlabelled. Sites differ in pixel size (0.25 to 0.5 mm) and some images are only about 100 pixels wide:
    slices are resampled to :attr:`pixdim` and padded to :attr:`roi` by the transforms.

    Args:
        root: the folder with the files, or one that contains it. Nothing in it is written or moved.
        checksums: compute the SHA-256 of every file.

    Raises:
        VmfError: VMF285 if there is no scan, VMF284 if a scan is found twice.

    Example:
        >>> SCGMDataset("no/such/folder").datalist()
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF285: the SCGM folder must hold siteN-scMM-image.nii.gz files
        ...
    """

    name: ClassVar[str] = "scgm"
    labels: ClassVar[dict[int, str]] = {0: "background", 1: "GM", 2: "WM"}
    #: In-plane spacing in mm and size in pixels of the network's slices.
    pixdim: ClassVar[tuple[float, float]] = (0.5, 0.5)
    roi: ClassVar[tuple[int, int]] = (144, 144)
    #: Raters of the published data; fewer are tolerated with a finding.
    num_raters: ClassVar[int] = 4

    def __init__(self, root: str | os.PathLike[str], *, checksums: bool = True) -> None:
        self.root = Path(root)
        self.checksums = checksums
        self.findings: list[Finding] = []

    def datalist(self) -> Datalist:
        """Return one row per scan, sorted by site and subject."""
        self.findings = []
        images: dict[str, Path] = {}
        sites: dict[str, str] = {}
        masks: dict[str, dict[int, Path]] = defaultdict(dict)
        for path in sorted(self.root.rglob("site*.nii*")) if self.root.is_dir() else []:
            match = _FILE.match(path.name)
            if match is None:
                continue
            subject = match["subject"].lower()
            sites[subject] = f"site{int(match['site'])}"
            known = images.setdefault(subject, path) if match["rater"] is None else None
            if match["rater"] is not None:
                known = masks[subject].setdefault(int(match["rater"]), path)
            if known != path:
                raise VmfError(
                    "VMF284",
                    subject=str(path),
                    rule="a file must be there once",
                    found=f"also {known}",
                    fix="remove one of the copies",
                )
        if not images:
            raise VmfError(
                "VMF285",
                subject=str(self.root),
                rule="the SCGM folder must hold siteN-scMM-image.nii.gz files",
                found="none",
                fix="unpack the download, or give the folder that holds the files",
            )
        for subject in sorted(set(masks) - set(images)):
            self._note(subject, "masks without an image; left out", str(next(iter(masks[subject].values()))))
        rows = [self._row(subject, sites[subject], images[subject], masks[subject]) for subject in sorted(images)]
        result = Datalist(self.name, self.root, self.labels, tuple(rows))
        return add_checksums(result) if self.checksums else result

    def _row(self, subject: str, site: str, image: Path, masks: Mapping[int, Path]) -> Row:
        if masks and len(masks) < self.num_raters:
            self._note(subject, f"{len(masks)} of {self.num_raters} raters; more than half of them decide", str(image))
        label = [masks[rater].relative_to(self.root).as_posix() for rater in sorted(masks)]
        return Row(
            image=image.relative_to(self.root).as_posix(), label=label or None, domain=site, group=site, subject=subject
        )

    def _note(self, subject: str, message: str, file: str) -> None:
        self.findings.append(Finding("warning", "VMF285", subject, message, file))
