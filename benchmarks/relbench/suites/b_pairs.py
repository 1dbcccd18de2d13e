# SPDX-License-Identifier: Apache-2.0
"""Suite B: masks that do not fit their image or their classes are found before anybody trains with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np

from benchmarks.relbench.meeting import Fault, case
from benchmarks.relbench.scans import AFFINE, edit_header, folder_of_pairs, heart, rewrite, write_scan
from benchmarks.relbench.tools.base import Job, Wanted
from benchmarks.relbench.verdict import Case

__all__ = ["VERIFY", "cases"]

MASK = "s1_gt.nii.gz"
VERIFY = Job("verify", ("scans.csv", "-o", "out/datalist.json"))


def _case(
    name: str, threat: str, damage: Callable[[Path], object], code: str = "", cause: str = "", noted: bool = False
) -> Case:
    wanted = Wanted(cause, r"s1(_gt)?\.nii\.gz", code, noted=noted) if code else None
    return case("B", name, threat, Fault(folder_of_pairs, damage, VERIFY, wanted))


def _mask(change: Callable[[np.ndarray], np.ndarray], affine: np.ndarray = AFFINE) -> Callable[[Path], object]:
    return lambda place: write_scan(place / MASK, change(heart(radius=4)), affine)


def _shifted(millimetres: float) -> np.ndarray:
    affine = AFFINE.copy()
    affine[0, 3] = millimetres
    return affine


def _same(array: np.ndarray) -> np.ndarray:
    return array


def _turned(place: Path) -> None:
    image = nib.load(place / MASK)  # type: ignore[attr-defined]
    wanted = nib.orientations.axcodes2ornt(("S", "R", "A"))
    turn = nib.orientations.ornt_transform(nib.io_orientation(image.affine), wanted)  # type: ignore[attr-defined]
    turned = image.as_reoriented(turn)
    write_scan(place / MASK, np.asarray(turned.dataobj), turned.affine)


def _swapped(place: Path) -> None:
    image, mask = (place / "s1.nii.gz").read_bytes(), (place / MASK).read_bytes()
    (place / "s1.nii.gz").write_bytes(mask)
    (place / MASK).write_bytes(image)


def cases() -> list[Case]:
    """Return the 15 cases."""
    mirror = np.diag([-1.25, 1.25, 8.0, 1.0])
    apart = r"\bapart\b|misaligned|not aligned|origin|affine|voxel size|spacing|same (place|grid)|different shape"
    return [
        _case("unknown-class", "T70", _mask(lambda h: np.where(h == 3, 7, h).astype(np.uint8)), "VMF251",
              r"\b7\b|out of bounds|unknown class"),
        _case("fractions", "T71", _mask(lambda h: h * np.float32(0.7)), "VMF250", "whole number|integer|fraction"),
        _case("empty", "T72", _mask(np.zeros_like), "VMF258", "empty", noted=True),
        _case("other-shape", "T73", _mask(lambda h: h[:-2]), "VMF253", "shape|sizes? (differ|do not|must)|must match"),
        _case("other-spacing", "T74", _mask(_same, np.diag([2.5, 1.25, 8.0, 1.0])), "VMF254", apart),
        _case("other-orientation", "T75", _turned),
        _case("mirrored", "T76", _mask(_same, mirror), "VMF255", "mirror|flip"),
        _case("200-mm-apart", "T77", _mask(_same, _shifted(200.0)), "VMF254", apart),
        _case("swapped", "T78", _swapped, "VMF256", "swap|no mask|not a (mask|label)|out of bounds"),
        _case("scaled-labels", "T79", lambda p: edit_header(p / MASK, slope=2.0), "VMF25[0-2]",
              r"scal|slope|labels must be among|out of bounds"),
        _case("identity-affine", "T74", _mask(_same, np.eye(4)), "VMF254", apart),
        _case("half-a-voxel", "T77", _mask(_same, _shifted(0.6)), "VMF254", apart, noted=True),
        _case("one-voxel", "T77", _mask(_same, _shifted(1.25)), "VMF254", apart),
        _case("noise-of-1e-6", "T77", _mask(_same, _shifted(1e-6))),
        _case("truncated-mask", "T10", lambda p: rewrite(p / MASK, lambda d: d[: len(d) // 2]), "VMF2(07|10)",
              r"ends inside|truncated|ended before|end of|EOF|expected \d+ bytes|file type"),
    ]  # fmt: skip
