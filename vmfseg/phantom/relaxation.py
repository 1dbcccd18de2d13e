# SPDX-License-Identifier: Apache-2.0
r"""Relaxation times of the tissues from 0.55 to 3 T, with their sources and their spread between people.

:data:`RELAXATION` holds (T1, T2, T2*) in ms at 1.5 and 3 T and the proton density relative to water. At 0.55 T
T1 is 32 % shorter, T2 26 % longer and T2* 40 % longer than at 1.5 T (Campbell-Washburn et al., Radiology 293:384, 2019,
means over tissues); between the fields the logarithms are interpolated over :math:`\log B_0`. Every person's times
and densities differ by a log-normal factor.

================  =====================================================================================================
tissue            source (a value without one is unverified: proton densities, and every T2* that is not named)
================  =====================================================================================================
myocardium        T1 996 +- 31 (1.5 T), 1184 +- 38 (3 T): Granitz et al., Wien Klin Wochenschr 131:143, 2019; medians
                  1014, 1165: Alam et al., JCMR 17:102, 2015. T2 52 and 46: Hanson et al., Radiology 297:344, 2020
                  (meta-analysis). T2* at 3 T 24 +- 5: Roy et al., JCMR 19:72, 2017; at 1.5 T median 33: Singh et al.,
                  Indian J Radiol Imaging 34:54, 2024. In vitro 1030, 40 and 1471, 47: Stanisz et al., MRM 54:507, 2005
arterial blood    T1 at 1.5 T 1441, T2 290, at 3 T 1932, 275: Stanisz 2005; T1 at 3 T 1664: Lu et al., MRM 52:679, 2004;
                  T2 254 (1.5 T), 147 (3 T): tissue database of IT'IS. T2* at 1.5 T 199 +- 8 in vivo: Li et al., MRM
                  39:685, 1998 (here 150; at the echo times of cine that changes the signal by 1 %); at 3 T unverified
venous blood      T1 at 3 T 1584: Lu 2004; T2 181 (1.5 T), 66 (3 T): IT'IS; 62 +- 6 at 3 T in the jugular vein, whose
                  blood has less oxygen than the heart's: Qin et al., MRM 65:471, 2011. T2* at 1.5 T 108 +- 6 in vivo:
                  Li 1998 (here 90); at 3 T unverified
lung              T2* 2.11 +- 0.27 and 0.74 +- 0.1: Yu et al., MRM 66:248, 2011 (0.9 to 1.1 at 1.5 T: Stock et al., Magn
                  Reson Imaging 17:997, 1999); also used as T2, as diffusion is not refocused. T1 unverified
liver, spleen,    at 3 T 809, 34; 1328, 61; 898, 29; 586, 49; 382, 68 (liver, spleen, muscle, marrow, fat): de
muscle, marrow,   Bazelaire et al., Radiology 230:652, 2004. At 1.5 T spleen 1057, 79, marrow 549, 49, liver 576, 46:
fat               the same, as tabulated by IT'IS; muscle and fat at 1.5 T unverified
cartilage         1024, 30 and 1168, 27: Stanisz 2005
cortical bone     200, 0.5 and 302, 0.25: tissue database of IT'IS
white matter      at 3 T 876 +- 27, 73 +- 6; gray matter 973 +- 33, 76 +- 3 (cervical cord): Smith et al., MRM 60:213,
of the cord       2008. Cord at 1.5 T 745, 74: Stanisz 2005; T2* and the rest at 1.5 T unverified
fluids            T1 about 4.3 s, T2 about 2 s: free water; effusion, bowel, glands unverified
================  =====================================================================================================
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vmfseg.phantom.tissues import FAT_SHIFT_PPM, PROTON_MHZ_PER_TESLA, TISSUES

__all__ = ["CODES", "COUNT", "RELAXATION", "draw_relaxation", "fat_shift"]

#: Codes of all tissues; the last three are not in the files of :func:`vmfseg.phantom.make_phantom`.
CODES: dict[str, np.uint8] = {name: np.uint8(tissue.code) for name, tissue in TISSUES.items()} | {
    "effusion": np.uint8(31),
    "gland": np.uint8(32),
    "bowel": np.uint8(33),
}
COUNT = 34

_MUSCLE = (0.79, (996.0, 52.0, 34.0), (1184.0, 46.0, 24.0))
_ARTERIAL = (0.86, (1480.0, 254.0, 150.0), (1700.0, 150.0, 50.0))
_VENOUS = (0.86, (1460.0, 190.0, 90.0), (1640.0, 85.0, 28.0))
_FAT = (0.90, (343.0, 58.0, 45.0), (382.0, 68.0, 35.0))
_FIBROUS = (0.55, (1000.0, 12.0, 5.0), (1100.0, 12.0, 4.0))
_WHITE = (0.70, (745.0, 74.0, 48.0), (876.0, 73.0, 39.8))

#: Proton density, (T1, T2, T2*) at 1.5 T and at 3 T, by tissue.
RELAXATION: dict[str, tuple[float, tuple[float, float, float], tuple[float, float, float]]] = {
    "air": (0.0, (1000.0, 1.0, 1.0), (1000.0, 1.0, 1.0)),
    "lung": (0.20, (1171.0, 2.11, 2.11), (1374.0, 0.74, 0.74)),
    **dict.fromkeys(("lv_blood", "left_atrium_blood", "aorta"), _ARTERIAL),
    **dict.fromkeys(("rv_blood", "right_atrium_blood", "vessel"), _VENOUS),
    **dict.fromkeys(
        ("lv_myocardium", "papillary", "lv_trabeculae", "rv_trabeculae", "rv_wall", "atrial_wall"), _MUSCLE
    ),
    **dict.fromkeys(("subcutaneous_fat", "epicardial_fat", "visceral_fat"), _FAT),
    **dict.fromkeys(("pericardium", "ligament"), _FIBROUS),
    "muscle": (0.79, (856.0, 32.0, 27.0), (898.0, 29.0, 23.0)),
    "cortical_bone": (0.15, (200.0, 0.5, 0.5), (302.0, 0.25, 0.25)),
    "marrow": (0.60, (549.0, 49.0, 12.0), (586.0, 49.0, 7.0)),
    "cartilage": (0.72, (1024.0, 30.0, 25.0), (1168.0, 27.0, 20.0)),
    "liver": (0.72, (576.0, 46.0, 30.0), (809.0, 34.0, 20.0)),
    "spleen": (0.79, (1057.0, 79.0, 55.0), (1328.0, 61.0, 40.0)),
    "stomach": (0.80, (900.0, 90.0, 20.0), (1000.0, 80.0, 12.0)),
    "csf": (1.0, (4200.0, 2000.0, 400.0), (4300.0, 2000.0, 200.0)),
    "white_matter": _WHITE,
    "gray_matter": (0.82, (850.0, 78.0, 50.0), (973.0, 76.0, 41.3)),
    "nerve_root": _WHITE,
    "effusion": (0.95, (3000.0, 700.0, 200.0), (3200.0, 600.0, 120.0)),
    "gland": (0.80, (1000.0, 55.0, 35.0), (1250.0, 50.0, 25.0)),
    "bowel": (0.75, (900.0, 60.0, 12.0), (1000.0, 50.0, 7.0)),
}
_LOW_FIELD = (0.68, 1.26, 1.40)
_FATTY = ("subcutaneous_fat", "epicardial_fat", "visceral_fat")


def draw_relaxation(rng: np.random.Generator, tesla: float, spread: float = 0.08) -> NDArray[np.float64]:
    """Return a person's T1, T2, T2* (ms) and proton density at ``tesla``, shape (4, COUNT), by tissue code.

    Tissues of one kind (all arterial blood, all heart muscle, all fat) share their deviation from the table.

    Args:
        rng: source of randomness.
        tesla: field strength, 0.3 to 3.
        spread: standard deviation of the logarithms.

    Example:
        >>> table = draw_relaxation(np.random.default_rng(0), 1.5, spread=0.0)
        >>> table[:2, CODES["lv_myocardium"]].tolist()
        [996.0, 52.0]
    """
    if not 0.3 <= tesla <= 3.0:
        raise ValueError(f"tesla must be from 0.3 to 3.0, got {tesla}. The table has no other field strength.")
    table = np.ones((4, COUNT))
    table[3] = 0.0
    fields = np.log([0.55, 1.5, 3.0])
    drawn: dict[object, NDArray[np.float64]] = {}
    for name, (density, low, high) in RELAXATION.items():
        factor = drawn.setdefault((density, low), np.exp(spread * rng.standard_normal(4)))
        for row in range(3):
            known = np.log([low[row] * _LOW_FIELD[row], low[row], high[row]])
            table[row, CODES[name]] = np.exp(np.interp(np.log(tesla), fields, known)) * factor[row]
        table[3, CODES[name]] = density * min(float(factor[3]), 1.2)
    table[2] = np.minimum(table[2], table[1])
    return np.round(table, 9)


def fat_shift(tesla: float) -> NDArray[np.float64]:
    """Return the chemical shift in Hz by tissue code: that of fat, or 0."""
    shift = np.zeros(COUNT)
    shift[[CODES[name] for name in _FATTY]] = FAT_SHIFT_PPM * PROTON_MHZ_PER_TESLA * tesla
    return shift
