# SPDX-License-Identifier: Apache-2.0
"""M&Ms data set (Campello et al., IEEE TMI 2021) in its official folder tree.

=======  ========  ========  ==================================================================
domain   vendor    centres   labelled subjects in the full release (training, validation, test)
=======  ========  ========  ==================================================================
A        Siemens   1         95
B        Philips   2, 3      74 + 51
C        GE        4         50, and 25 in ``Training/Unlabeled``
D        Canon     5         50
=======  ========  ========  ==================================================================

Labels are 1 left ventricle (LV), 2 myocardium (MYO), 3 right ventricle (RV); ACDC counts the other way round.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from vmfseg.data.csv_table import find_columns, integer, normalize, read_table
from vmfseg.data.datalist import Datalist, Row, add_checksums
from vmfseg.data.findings import Finding
from vmfseg.data.reader import read_header
from vmfseg.utils import VmfError

__all__ = ["MNMsDataset"]

_COLUMNS = {
    "code": ("externalcode", "code", "subjectcode", "subject"),
    "vendor": ("vendor", "vendorname"),
    "centre": ("centre", "center"),
    "ED": ("ed", "edframe"),
    "ES": ("es", "esframe"),
}
_FILE = re.compile(r"(?P<code>.+)_sa\.nii(\.gz)?$", re.IGNORECASE)


@dataclass(frozen=True)
class _Record:
    domain: str
    centre: str
    phases: Mapping[str, int]


class MNMsDataset:
    """The M&Ms challenge data as a :class:`~vmfseg.data.Datalist`.

    Reads the information CSV by column name (every published variant of its header), takes ED and ES from it (counted
    from 0; ED is often not 0) and makes one labelled row for each. The folder may be ``OpenDataset`` or one that
    contains it, and may be incomplete: what is missing is noted in :attr:`findings`.

    Args:
        root: the downloaded folder. Nothing in it is written or moved.
        all_frames: add every other frame of every cine as an unlabelled row.
        unlabeled_subjects: add the 25 GE subjects of ``Training/Unlabeled`` (their masks are not used: they are empty).
        checksums: compute the SHA-256 of every file.

    Raises:
        VmfError: VMF285 no usable CSV or no scans, VMF286 ED or ES outside the cine, VMF284 a subject found twice.

    Example:
        >>> MNMsDataset("no/such/folder").datalist()
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF285: the M&Ms folder does not exist
        ...
    """

    name: ClassVar[str] = "mnms"
    labels: ClassVar[dict[int, str]] = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}
    #: In-plane spacing in mm and size in pixels of the network's slices.
    pixdim: ClassVar[tuple[float, float]] = (1.2, 1.2)
    roi: ClassVar[tuple[int, int]] = (288, 288)
    vendors: ClassVar[dict[str, str]] = {"A": "Siemens", "B": "Philips", "C": "GE", "D": "Canon"}

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        all_frames: bool = False,
        unlabeled_subjects: bool = False,
        checksums: bool = True,
    ) -> None:
        self.root = Path(root)
        self.all_frames = all_frames
        self.unlabeled_subjects = unlabeled_subjects
        self.checksums = checksums
        self.findings: list[Finding] = []

    def datalist(self) -> Datalist:
        """Return the rows of all subjects, sorted by domain, centre and subject."""
        self.findings = []
        if not self.root.is_dir():
            raise _refuse(str(self.root), "the M&Ms folder does not exist", "nothing", "check the path")
        table, records = self._records()
        scans = self._scans()
        if not scans:
            raise _refuse(
                str(self.root),
                "the M&Ms folder must hold <CODE>/<CODE>_sa.nii.gz files",
                "none",
                "unpack the download, or give the folder that holds Training, Validation and Testing",
            )
        rows: list[Row] = []
        for code, image in sorted(scans.items(), key=lambda item: self._order(records.get(item[0]), item[0])):
            record = records.get(code)
            if record is None:
                self._note("VMF285", code, f"not in {table.name}; left out", str(image))
            else:
                rows += self._rows(code, record, image)
        left_out = {path.name.rpartition("_sa")[0] for path in self.root.rglob("*_sa.nii*") if self._is_unlabeled(path)}
        absent = sorted(set(records) - set(scans) - left_out)
        if absent:
            some = ", ".join(absent[:3])
            text = f"{len(absent)} of {len(records)} subjects of {table.name} have no scan here ({some}, ...)"
            self._note("VMF285", self.name, text, str(table))
        if not rows:
            raise _refuse(str(self.root), "no scan is listed in the CSV", f"{len(scans)} scans", f"check {table.name}")
        result = Datalist(self.name, self.root, self.labels, tuple(rows))
        return add_checksums(result) if self.checksums else result

    @staticmethod
    def _order(record: _Record | None, code: str) -> tuple[str, str, str]:
        return (record.domain, record.centre, code) if record else ("", "", code)

    def _records(self) -> tuple[Path, dict[str, _Record]]:
        """Find the information CSV and read it."""
        folders = [self.root, self.root / "OpenDataset", *sorted(p for p in self.root.iterdir() if p.is_dir())]
        tables = dict.fromkeys(path for folder in folders for path in sorted(folder.glob("*.csv")))
        usable = [path for path in tables if {"ed", "es"} <= {normalize(name) for name in read_table(path)[0]}]
        if not usable:
            raise _refuse(
                str(self.root),
                "the M&Ms folder must hold the information CSV",
                f"{len(tables)} CSV files, none with columns ED and ES",
                "add 211230_M&Ms_Dataset_information_diagnosis_opendataset.csv of the download",
            )
        table = max(usable, key=lambda path: path.name)  # the names start with the date of the release
        if len(usable) > 1:
            self._note("VMF285", self.name, f"{len(usable)} information CSVs; {table.name} is used", str(table))
        header, lines = read_table(table)
        columns = find_columns(table, header, _COLUMNS, list(_COLUMNS))
        records: dict[str, _Record] = {}
        for line in lines:
            cells = {name: line[position] for name, position in columns.items()}
            if cells["code"] in records:
                raise VmfError(
                    "VMF284",
                    subject=str(table),
                    rule="a subject must be listed once",
                    found=f"{cells['code']} twice",
                    fix="remove one line",
                )
            records[cells["code"]] = self._record(str(table), cells)
        return table, records

    def _record(self, table: str, cells: Mapping[str, str]) -> _Record:
        names = {vendor.lower(): letter for letter, vendor in self.vendors.items()}
        vendor = names.get(cells["vendor"].lower().split(" ")[0], cells["vendor"].upper())
        if vendor not in self.vendors:
            raise _refuse(
                f"{table}, {cells['code']}",
                "the vendor must be one of A, B, C, D",
                cells["vendor"] or "nothing",
                "correct the table",
            )
        centre = integer(cells["centre"])
        frames = {phase: integer(cells[phase]) for phase in ("ED", "ES")}
        phases = {phase: frame for phase, frame in frames.items() if frame is not None}
        return _Record(vendor, cells["centre"] if centre is None else str(centre), phases)

    def _scans(self) -> dict[str, Path]:
        scans: dict[str, Path] = {}
        for path in sorted(self.root.rglob("*_sa.nii*")):
            match = _FILE.match(path.name)
            if match is None or (self._is_unlabeled(path) and not self.unlabeled_subjects):
                continue
            code = match["code"]
            if code in scans:
                raise VmfError(
                    "VMF284",
                    subject=str(path),
                    rule="a subject must have one short-axis scan",
                    found=f"also {scans[code]}",
                    fix="remove one of the copies",
                )
            scans[code] = path
        return scans

    def _is_unlabeled(self, path: Path) -> bool:
        return any(part.lower() in ("unlabeled", "unlabelled") for part in path.relative_to(self.root).parts)

    def _rows(self, code: str, record: _Record, image: Path) -> list[Row]:
        ending = _FILE.match(image.name)
        suffix = image.name[len(f"{code}_sa") :] if ending else ".nii.gz"
        mask = next(
            (p for p in (image.with_name(f"{code}_sa_gt{s}") for s in (suffix, ".nii.gz", ".nii")) if p.is_file()), None
        )
        if self._is_unlabeled(image):
            mask = None
        elif mask is None:
            self._note("VMF285", code, "no mask (_sa_gt); its frames are unlabelled", str(image))
        count = read_header(image).num_frames
        for phase, frame in record.phases.items():
            if not 0 <= frame < count:
                raise VmfError(
                    "VMF286",
                    subject=str(image),
                    rule=f"the {phase} frame of the CSV must be in the cine",
                    found=f"frame {frame} of {count} (counted from 0)",
                )
        if len(record.phases) < 2:
            self._note("VMF286", code, "ED or ES is missing in the CSV", str(image))
        label = None if mask is None else self._relative(mask)
        known = {frame: phase for phase, frame in record.phases.items()}
        frames = sorted(range(count) if self.all_frames else known, key=lambda k: (k not in known, k))
        return [
            Row(
                image=self._relative(image),
                label=label if frame in known else None,
                domain=record.domain,
                group=f"{record.domain}/{record.centre}",
                subject=code,
                frame=frame,
                phase=known.get(frame),
            )
            for frame in frames
        ]

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _note(self, code: str, subject: str, message: str, file: str) -> None:
        self.findings.append(Finding("warning", code, subject, message, file))


def _refuse(subject: str, rule: str, found: str, fix: str) -> VmfError:
    return VmfError("VMF285", subject=subject, rule=rule, found=found, fix=fix)
