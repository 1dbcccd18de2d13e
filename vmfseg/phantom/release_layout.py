# SPDX-License-Identifier: Apache-2.0
"""The phantom on disk, in the layouts of the real releases, so that the same loaders read it.

Hearts (M&Ms)::

    211230_M&Ms_Dataset_information_diagnosis_opendataset.csv
    Training/Labeled/<CODE>/<CODE>_sa.nii.gz, <CODE>_sa_gt.nii.gz        also Training/Unlabeled, Validation, Testing
    factors/<CODE>_sa_factors.nii.gz, factors/tissues.json               the true tissue of every voxel at ED and ES

Cords (SCGM)::

    train/siteN-scMM-image.nii.gz, -levels.txt, -mask-r1..4.nii.gz       subjects 01 to 10
    test/siteN-scMM-image.nii.gz, -levels.txt                            subjects 11 to 20, no masks
    factors/siteN-scMM-factors.nii.gz, factors/tissues.json

Files are the same bytes in every run: gzip carries no time stamp.
"""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from vmfseg.phantom.cord_scan import cord_name, scan_cord
from vmfseg.phantom.heart_scan import heart_protocol, scan_heart
from vmfseg.phantom.tissues import tissue_names
from vmfseg.utils import atomic_write, derive_seed, write_json

__all__ = [
    "CSV_COLUMNS",
    "CSV_NAME",
    "heart_code",
    "heart_folder",
    "nifti_bytes",
    "write_csv",
    "write_subject",
    "write_tissues",
]

CSV_NAME = "211230_M&Ms_Dataset_information_diagnosis_opendataset.csv"
#: Columns of the official table; the first one is an unnamed running index.
CSV_COLUMNS = (
    "", "External code", "VendorName", "Vendor", "Centre", "ED", "ES", "Age", "Pathology", "Sex", "Height", "Weight",
)  # fmt: skip
_CODES = 26**3 * 10**3
_STRIDE = 7_368_787  # shares no factor with the number of codes, so that no two subjects get the same


def heart_code(index: int, seed: int) -> str:
    """Return the subject's code of six letters and digits in turn; codes of one phantom never collide.

    Example:
        >>> code = heart_code(17, 0)
        >>> len(code), code[::2].isalpha(), code[1::2].isdigit(), code == heart_code(17, 0)
        (6, True, True, True)
    """
    number = (derive_seed(seed, "heart", "code") + index * _STRIDE) % _CODES
    text = ""
    for _ in range(3):
        number, digit = divmod(number, 10)
        number, letter = divmod(number, 26)
        text += f"{chr(ord('A') + letter)}{digit}"
    return text


def heart_folder(index: int) -> str:
    """Return the folder of a subject.

    As in the release, GE and Canon have no labeled training subjects and some GE subjects are unlabeled.

    Example:
        >>> [heart_folder(index) for index in (0, 2, 6, 22)]
        ['Training/Labeled', 'Validation', 'Testing', 'Training/Unlabeled']
    """
    vendor, turn = heart_protocol(index).vendor, (index // 4) % 6
    if vendor in "AB":
        return {4: "Validation", 5: "Testing"}.get(turn, "Training/Labeled")
    if vendor == "C" and turn == 5:
        return "Training/Unlabeled"
    return "Validation" if turn == 0 else "Testing"


def nifti_bytes(array: NDArray[Any], affine: NDArray[np.float64], frame_time: float | None, level: int) -> bytes:
    """Return a gzipped NIfTI file; ``frame_time`` in seconds is the fourth spacing of a cine (0 is kept as 0)."""
    image = nib.Nifti1Image(array, affine)
    image.set_qform(affine, code=1)
    # quaternions in float32 are coarse near half a turn (0.2 mm over a slice), so the matrix follows them
    image.set_sform(image.get_qform(), code=1)
    image.header.set_xyzt_units("mm", "sec")
    image.header["descrip"] = b"vmfseg phantom"
    if frame_time is not None:
        image.header["pixdim"][4] = frame_time
    packed: bytes = gzip.compress(image.to_bytes(), compresslevel=level, mtime=0)
    return packed


def write_subject(root: Path, dataset: str, index: int, seed: int, frames: int, size: int | None) -> dict[str, Any]:
    """Make one subject, write its files under ``root`` and return its row with the size in bytes of every file."""
    row, files = _heart(index, seed, frames, size) if dataset == "mnms" else _cord(index, seed, size)
    for name, data in files.items():
        atomic_write(root / name, data)
    return {"index": index, **row, "files": {name: len(data) for name, data in files.items()}}


def _heart(index: int, seed: int, frames: int, size: int | None) -> tuple[dict[str, Any], dict[str, bytes]]:
    scan = scan_heart(index, seed, frames, size)
    code, folder = heart_code(index, seed), heart_folder(index)
    usable = folder != "Training/Unlabeled"
    label = scan.label if usable else np.zeros_like(scan.label)
    place = f"{folder}/{code}/{code}_sa"
    files = {
        f"{place}.nii.gz": nifti_bytes(scan.image, scan.affine, scan.frame_time, 1),
        f"{place}_gt.nii.gz": nifti_bytes(label, scan.affine, scan.frame_time, 6),
        f"factors/{code}_sa_factors.nii.gz": nifti_bytes(scan.factors, scan.affine, scan.frame_time, 6),
    }
    return {"External code": code, "folder": folder, **scan.row}, files


def _cord(index: int, seed: int, size: int | None) -> tuple[dict[str, Any], dict[str, bytes]]:
    scan, name = scan_cord(index, seed, size), cord_name(index)
    folder = "train" if scan.masks else "test"
    files = {
        f"{folder}/{name}-image.nii.gz": nifti_bytes(scan.image, scan.affine, None, 1),
        f"{folder}/{name}-levels.txt": "".join(f"{k} {level}\n" for k, level in enumerate(scan.levels)).encode(),
        f"factors/{name}-factors.nii.gz": nifti_bytes(scan.factors, scan.affine, None, 6),
    }
    for rater, mask in enumerate(scan.masks, start=1):
        files[f"{folder}/{name}-mask-r{rater}.nii.gz"] = nifti_bytes(mask, scan.affine, None, 6)
    return {"subject": name, "folder": folder, **scan.row}, files


def write_csv(root: Path, rows: list[dict[str, Any]]) -> None:
    """Write the table of the M&Ms release, sorted by code."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(CSV_COLUMNS)
    for number, row in enumerate(sorted(rows, key=lambda row: str(row["External code"]))):
        table.writerow([number, *(row[column] for column in CSV_COLUMNS[1:])])
    atomic_write(root / CSV_NAME, text.getvalue())


def write_tissues(root: Path) -> None:
    """Write ``factors/tissues.json``: the tissue name of every voxel value of the factors files."""
    write_json(root / "factors" / "tissues.json", {str(code): name for code, name in sorted(tissue_names().items())})
