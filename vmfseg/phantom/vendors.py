# SPDX-License-Identifier: Apache-2.0
"""The scanners: one protocol per heart center and per cord site. Fixed before any training, never tuned to a result.

**Hearts** (balanced SSFP cine, 1.5 T). Vendors and centers are those of the M&Ms release (Campello et al., IEEE TMI
40:3543, 2021). Spacing and thickness per center were meant after its table and TR, TE and flip angle after published
cine protocols (Kramer et al., JCMR 22:17, 2020; Petersen et al., JCMR 18:8, 2016; Radau et al., Midas J, 2009), but the
single numbers are unverified.

======  ==================  =====  =====  =====  ==========  ==========  =========  ====================================
vendor  scanner             TR     TE     flip   recon mm    acquired    slice mm   receive and reconstruction
======  ==================  =====  =====  =====  ==========  ==========  =========  ====================================
A/1     Siemens Avanto      2.9    1.25   70     1.32        1.45x2.0    8 + 1.2    12 elements, normalized, Hamming
B/2     Philips Achieva     3.2    1.6    60     1.20        1.8x2.0     8 + 1.9    5 elements, CLEAR, no filter (Gibbs)
B/3     Philips Achieva     3.4    1.7    60     1.45        1.9x2.2     8 + 1.9    5 elements, CLEAR, no filter (Gibbs)
C/4     GE Signa Excite     3.8    1.6    45     1.36        1.8x2.4     8 + 2.0    8 elements, least normalized, Fermi
D/5     Canon Orian         4.4    2.2    55     0.85        1.5x2.0     8 + 2.0    16 elements, part normalized, Tukey
======  ==================  =====  =====  =====  ==========  ==========  =========  ====================================

**Cords** (spoiled gradient echo, 3 T) follow the description of the 2016 challenge's data: Prados et al., NeuroImage
152:312, 2017, and the challenge's page, which confirms TR, TE, flip angle and in-plane resolution of sites 1 and 2 (and
says 7.5 mm for the slices of site 2); sites 3 and 4 are unverified. Site 1: 3-D FFE, fat suppressed, three slices of
50 mm width. Site 2: 2-D, three echoes averaged. Site 3: 3-D multi-echo, 0.5 mm interpolated to 0.25 mm. Site 4:
multi-echo FFE, 0.65 mm interpolated to 0.29 mm.

======  ===============  ====  =================  =====  ========  =========  ========
site    scanner          TR    TE                 flip   recon mm  acquired   slice mm
======  ===============  ====  =================  =====  ========  =========  ========
1       Philips Achieva  23    5                  7      0.50      0.5        5
2       Siemens Trio     539   5.41 12.56 19.16   35     0.50      0.5        5
3       Siemens Skyra    44    19                 11     0.25      0.5        2.5
4       Philips Achieva  700   7.2 16.1 25        28     0.29      0.65       5
======  ===============  ====  =================  =====  ========  =========  ========

Signal-to-noise ratios, coil radii and shim residuals are typical of the hardware rather than published for these
centers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CORD_SITES", "HEART_CENTERS", "CordProtocol", "HeartProtocol", "Receiver"]

Window = Literal["none", "hamming", "tukey", "fermi"]


@dataclass(frozen=True)
class Receiver:
    """Everything between the spins and the stored integers.

    Args:
        front: receive elements of the front array.
        back: receive elements of the back array.
        radius: radius of an element in mm; small loops see little of the depth.
        normalized: 0 keeps the coils' shading, 1 removes it (and amplifies noise far from the coils).
        snr: signal-to-noise ratio of the bright fluid (blood, cerebrospinal fluid) at the isocenter.
        window: filter on k-space.
        scale: stored value of that fluid before normal variation between patients.
        shim: residual off-resonance in Hz over the organ.
        flips: stored axes that run against the canonical (right, down, apex/up).
        transposed: whether columns and rows are swapped in the file.
        zero_frame_time: whether the header's fourth spacing is 0, as in parts of the real release.
    """

    front: int
    back: int
    radius: float
    normalized: float
    snr: float
    window: Window
    scale: float
    shim: float
    flips: tuple[bool, bool, bool] = (False, False, False)
    transposed: bool = False
    zero_frame_time: bool = False


@dataclass(frozen=True)
class HeartProtocol:
    """A cine protocol. Lengths in mm, times in ms, angles in degrees; pairs are (columns, rows) of the picture."""

    vendor: str
    vendor_name: str
    center: int
    tesla: float
    tr: float
    te: float
    flip: float
    spacing: float
    acquired: tuple[float, float]
    fov: tuple[float, float]
    thickness: float
    gap: float
    obliquity: float
    ed_late: float
    receiver: Receiver


@dataclass(frozen=True)
class CordProtocol:
    """An axial T2*-weighted protocol. Lengths in mm, times in ms, angles in degrees."""

    site: int
    scanner: str
    tesla: float
    tr: float
    echoes: tuple[float, ...]
    flip: float
    spacing: float
    acquired: tuple[float, float]
    fov: tuple[float, float]
    thickness: float
    slab: float
    slices: int
    fat_suppression: float
    receiver: Receiver


#: The five heart centers in the order (vendor, center) of the release.
HEART_CENTERS: tuple[HeartProtocol, ...] = (
    HeartProtocol(
        "A", "Siemens", 1, 1.5, 2.9, 1.25, 70, 1.32, (2.0, 1.45), (285.0, 338.0), 8.0, 1.2, 45.0, 0.15,
        Receiver(6, 6, 65.0, 0.7, 34.0, "hamming", 260.0, 35.0),
    ),
    HeartProtocol(
        "B", "Philips", 2, 1.5, 3.2, 1.6, 60, 1.20, (2.0, 1.8), (307.0, 346.0), 8.0, 1.9, 38.0, 0.8,
        Receiver(3, 2, 90.0, 0.95, 30.0, "none", 900.0, 45.0, flips=(False, True, True)),
    ),
    HeartProtocol(
        "B", "Philips", 3, 1.5, 3.4, 1.7, 60, 1.45, (2.2, 1.9), (325.0, 371.0), 8.0, 1.9, 50.0, 0.8,
        Receiver(3, 2, 90.0, 0.95, 27.0, "none", 700.0, 45.0, flips=(True, True, False)),
    ),
    HeartProtocol(
        "C", "GE", 4, 1.5, 3.8, 1.6, 45, 1.36, (2.4, 1.8), (305.0, 348.0), 8.0, 2.0, 55.0, 0.1,
        Receiver(4, 4, 75.0, 0.4, 19.0, "fermi", 1500.0, 55.0, transposed=True, zero_frame_time=True),
    ),
    HeartProtocol(
        "D", "Canon", 5, 1.5, 4.4, 2.2, 55, 0.85, (2.0, 1.5), (272.0, 340.0), 8.0, 2.0, 41.0, 0.45,
        Receiver(8, 8, 60.0, 0.6, 24.0, "tukey", 4200.0, 30.0, flips=(False, False, True)),
    ),
)  # fmt: skip

#: The four cord sites of the 2016 challenge.
CORD_SITES: tuple[CordProtocol, ...] = (
    CordProtocol(
        1, "Philips Achieva", 3.0, 23.0, (5.0,), 7, 0.50, (0.5, 0.5), (50.0, 50.0), 5.0, 50.0, 3, 0.9,
        Receiver(4, 6, 60.0, 0.9, 42.0, "none", 900.0, 8.0),
    ),
    CordProtocol(
        2, "Siemens Trio", 3.0, 539.0, (5.41, 12.56, 19.16), 35, 0.50, (0.5, 0.5), (160.0, 160.0), 5.0, 5.0, 10, 0.0,
        Receiver(2, 4, 55.0, 0.2, 50.0, "tukey", 330.0, 15.0, flips=(False, True, False)),
    ),
    CordProtocol(
        3, "Siemens Skyra", 3.0, 44.0, (19.0,), 11, 0.25, (0.5, 0.5), (162.0, 192.0), 2.5, 50.0, 12, 0.0,
        Receiver(4, 6, 50.0, 0.5, 32.0, "hamming", 240.0, 12.0, flips=(False, True, False)),
    ),
    CordProtocol(
        4, "Philips Achieva", 3.0, 700.0, (7.2, 16.1, 25.0), 28, 0.29, (0.65, 0.65), (160.0, 160.0), 5.0, 5.0, 8, 0.0,
        Receiver(4, 6, 60.0, 0.9, 55.0, "none", 1300.0, 10.0, flips=(True, False, False)),
    ),
)  # fmt: skip
