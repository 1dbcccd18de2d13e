# SPDX-License-Identifier: Apache-2.0
"""What the phantom's bodies are made of: relaxation times, proton density and chemical shift of every tissue.

Times in ms at 1.5 T and 3 T; proton density relative to free water. These are the values of
:func:`vmfseg.phantom.make_phantom`, kept as they are so that a seed gives the same files for ever;
:mod:`vmfseg.phantom.relaxation` has newer ones with their spread. "Unverified" marks what no source at hand confirms.

=====================================  ================================================================================
tissue                                 source of T1, T2, T2*
=====================================  ================================================================================
arterial and venous blood              T1: Stanisz et al., MRM 54:507, 2005 (1441 and 1932). T2 at 1.5 T 254 and 181:
                                       tissue database of IT'IS. T2 at 3 T and T2*: unverified
myocardium, papillaries, trabeculae    T1, T2: Stanisz et al., 2005. T2* at 3 T: Roy et al., JCMR 19:72, 2017 (24 +- 5);
                                       at 1.5 T: Singh et al., Indian J Radiol Imaging 34:54, 2024 (median 33)
liver, spleen, muscle, marrow, fat     3 T: de Bazelaire et al., Radiology 230:652, 2004. 1.5 T: spleen and marrow by
                                       the same authors, the others and T2* unverified
lung                                   T2*: Yu et al., MRM 66:248, 2011. T1: unverified
cord gray and white matter (3 T)       T1, T2: Smith et al., MRM 60:213, 2008. White matter at 1.5 T: Stanisz et al.,
                                       2005 (spinal cord). T2*: unverified
cerebrospinal fluid                    unverified (free water)
cortical bone, cartilage, pericardium  cartilage: Stanisz et al., 2005; the others unverified
proton densities                       of the order of water contents (Woodard and White, Br J Radiol 59:1209, 1986);
                                       single values unverified
=====================================  ================================================================================

Two simplifications are deliberate. Lung keeps its T2* also in the T2 column, because spins diffuse through the field
of the alveolar walls and a balanced sequence cannot refocus them. Gas and bone ends shorten T2* around them; that is
left to the T2* of the tissues themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAT_SHIFT_PPM", "PROTON_MHZ_PER_TESLA", "TISSUES", "Tissue", "tissue_names"]

#: Chemical shift of the methylene peak of fat against water.
FAT_SHIFT_PPM = -3.5
#: Proton Larmor frequency.
PROTON_MHZ_PER_TESLA = 42.577


@dataclass(frozen=True)
class Tissue:
    """One tissue.

    Args:
        code: its voxel value in the ``factors`` files.
        pd: proton density relative to free water.
        low: (T1, T2, T2*) in ms at 1.5 T.
        high: (T1, T2, T2*) in ms at 3 T.
        shift_ppm: chemical shift against water.
    """

    code: int
    pd: float
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    shift_ppm: float = 0.0

    def times(self, tesla: float) -> tuple[float, float, float]:
        """Return (T1, T2, T2*) in ms at ``tesla`` (1.5 or 3).

        Example:
            >>> TISSUES["lv_myocardium"].times(1.5)
            (1030.0, 40.0, 33.0)
        """
        if tesla not in (1.5, 3.0):
            raise ValueError(f"tesla must be 1.5 or 3.0, got {tesla}. The tissue table has no other field strength.")
        return self.low if tesla == 1.5 else self.high

    def shift_hz(self, tesla: float) -> float:
        """Return the chemical shift in Hz at ``tesla``."""
        return self.shift_ppm * PROTON_MHZ_PER_TESLA * tesla


_ARTERIAL = (0.86, (1441.0, 254.0, 160.0), (1932.0, 150.0, 46.0))
_VENOUS = (0.86, (1441.0, 181.0, 90.0), (1932.0, 75.0, 21.0))
_HEART = (0.79, (1030.0, 40.0, 33.0), (1471.0, 47.0, 24.0))
_FAT = (0.90, (343.0, 58.0, 45.0), (382.0, 68.0, 35.0), FAT_SHIFT_PPM)
_FIBROUS = (0.60, (1000.0, 12.0, 5.0), (1100.0, 12.0, 4.0))
_CORD_WHITE = (0.70, (745.0, 74.0, 48.0), (876.0, 73.0, 39.8))

#: Every tissue by name. Code 0 is kept for "not recorded" (frames of the cine other than ED and ES).
TISSUES: dict[str, Tissue] = {
    "air": Tissue(1, 0.0, (1000.0, 1.0, 1.0), (1000.0, 1.0, 1.0)),
    "lung": Tissue(2, 0.20, (1171.0, 2.1, 2.1), (1374.0, 0.74, 0.74)),
    "lv_blood": Tissue(3, *_ARTERIAL),
    "lv_myocardium": Tissue(4, *_HEART),
    "papillary": Tissue(5, *_HEART),
    "lv_trabeculae": Tissue(6, *_HEART),
    "rv_blood": Tissue(7, *_VENOUS),
    "rv_trabeculae": Tissue(8, *_HEART),
    "rv_wall": Tissue(9, *_HEART),
    "left_atrium_blood": Tissue(10, *_ARTERIAL),
    "right_atrium_blood": Tissue(11, *_VENOUS),
    "atrial_wall": Tissue(12, *_HEART),
    "aorta": Tissue(13, *_ARTERIAL),
    "vessel": Tissue(14, *_VENOUS),
    "subcutaneous_fat": Tissue(15, *_FAT),
    "epicardial_fat": Tissue(16, *_FAT),
    "visceral_fat": Tissue(17, *_FAT),
    "pericardium": Tissue(18, *_FIBROUS),
    "muscle": Tissue(19, 0.79, (856.0, 27.0, 25.0), (898.0, 29.0, 23.0)),
    "cortical_bone": Tissue(20, 0.15, (220.0, 0.5, 0.5), (140.0, 0.4, 0.4)),
    "marrow": Tissue(21, 0.60, (549.0, 49.0, 12.0), (586.0, 49.0, 7.0)),
    "cartilage": Tissue(22, 0.72, (1024.0, 30.0, 25.0), (1168.0, 27.0, 20.0)),
    "liver": Tissue(23, 0.72, (586.0, 46.0, 30.0), (809.0, 34.0, 20.0)),
    "spleen": Tissue(24, 0.79, (1057.0, 79.0, 55.0), (1328.0, 61.0, 40.0)),
    "stomach": Tissue(25, 0.80, (900.0, 90.0, 20.0), (1000.0, 80.0, 12.0)),
    "csf": Tissue(26, 1.0, (4100.0, 2000.0, 400.0), (4300.0, 2000.0, 200.0)),
    "white_matter": Tissue(27, *_CORD_WHITE),
    "gray_matter": Tissue(28, 0.82, (850.0, 78.0, 50.0), (972.0, 76.0, 41.3)),
    "nerve_root": Tissue(29, *_CORD_WHITE),
    "ligament": Tissue(30, *_FIBROUS),
}


def tissue_names() -> dict[int, str]:
    """Return the names by code, as written to ``factors/tissues.json``.

    Example:
        >>> tissue_names()[5]
        'papillary'
    """
    return {0: "unrecorded", **{tissue.code: name for name, tissue in TISSUES.items()}}
