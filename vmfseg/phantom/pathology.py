# SPDX-License-Identifier: Apache-2.0
"""Sizes and function of ventricles in health and disease: the ranges that hearts are drawn from.

Sizes are those of a reader's contours: trabeculae and papillary muscles belong to the cavity, the wall is the compact
layer. All values at end-diastole, in mm.

===================  ==================================================================================================
quantity             source
===================  ==================================================================================================
normal wall          Kawel et al., Circ Cardiovasc Imaging 5:500, 2012: mean thickness at the mid-cavity in short-axis
                     SSFP 5.3 +- 0.9 mm (women) and 6.3 +- 1.1 mm (men), largest segment 7 and 8 mm; apical values in
                     the long axis 20 % below those in the short axis
wall thickening      Ubachs et al., JCMR 11(S1):P61, 2009: 4.3 +- 1.4 (base), 4.4 +- 1.4 (middle), 3.2 +- 1.4 mm (apex)
volumes, EF          Chuang et al., JMRI 39:895, 2014 (EF 73 +- 6 and 71 +- 6 %); Kawel-Boehm et al., JCMR 17:29, 2015
                     and 22:87, 2020 (radii here give end-diastolic volumes of about 90 to 220 ml in health)
disease              definitions: dilated, end-diastolic volume above the norm and EF below 45 %; hypertrophic, wall of
                     15 mm or more somewhere; hypertensive, concentric wall above 11 mm; ranges of the groups otherwise
                     unverified
===================  ==================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

__all__ = ["GROUPS", "Group", "Patch", "draw_group", "draw_patches"]

Range = tuple[float, float]


@dataclass(frozen=True)
class Group:
    """One group of patients; pairs are the mean and the standard deviation of a normal draw cut at two deviations.

    Args:
        share: how often the group is drawn.
        radius: equivalent radius of the cavity at its widest.
        wall: mean thickness of the compact wall at the middle.
        ef: ejection fraction of the left ventricle.
        rv: width of the right ventricle from the septum to the free wall, at its widest.
        rv_ef: shortening of that width.
        trabeculae: depth of the trabecular layer of the left ventricle.
    """

    share: float
    radius: Range
    wall: Range
    ef: Range
    rv: Range = (34.0, 5.0)
    rv_ef: Range = (0.45, 0.06)
    trabeculae: Range = (3.0, 1.2)


GROUPS: dict[str, Group] = {
    "NOR": Group(0.25, (25.3, 2.4), (6.3, 1.2), (0.65, 0.06), (37.0, 5.5)),
    "SMALL": Group(0.05, (21.0, 1.5), (5.2, 0.8), (0.69, 0.06), (30.0, 4.0)),
    "HCM": Group(0.11, (24.0, 2.2), (7.6, 1.4), (0.70, 0.07), (31.0, 5.0), trabeculae=(3.6, 1.4)),
    "HHD": Group(0.10, (24.5, 2.4), (10.0, 1.7), (0.60, 0.08), (32.0, 5.0)),
    "DCM": Group(0.16, (33.5, 3.6), (6.9, 1.3), (0.28, 0.09), (38.0, 7.0), (0.30, 0.09), (4.6, 1.8)),
    "IHD": Group(0.17, (29.5, 3.4), (7.1, 1.3), (0.42, 0.11), (36.0, 5.5), (0.42, 0.08)),
    "ARV": Group(0.07, (23.5, 2.2), (5.8, 1.0), (0.56, 0.07), (48.0, 6.0), (0.28, 0.07)),
    "AHS": Group(0.03, (28.5, 1.8), (8.2, 0.9), (0.60, 0.05), (41.0, 4.0)),
    "LVNC": Group(0.06, (29.0, 3.5), (5.2, 0.9), (0.42, 0.12), trabeculae=(7.0, 1.8)),
}


@dataclass(frozen=True)
class Patch:
    """A region of the left ventricle that differs: ``thick`` times the wall, ``bulge`` mm outwards, ``slack`` weak.

    ``angle`` is measured from the middle of the septum, ``along`` from base (0) to apex (1); ``spread`` are the
    half widths of both.
    """

    thick: float
    bulge: float
    slack: float
    angle: float
    along: float
    spread: tuple[float, float] = field(default=(0.8, 0.3))


def draw_group(rng: np.random.Generator) -> tuple[str, dict[str, float]]:
    """Draw a group and its values.

    Example:
        >>> name, values = draw_group(np.random.default_rng(0))
        >>> name in GROUPS, sorted(values)
        (True, ['ef', 'radius', 'rv', 'rv_ef', 'trabeculae', 'wall'])
    """
    names = list(GROUPS)
    name = str(rng.choice(names, p=[GROUPS[n].share for n in names]))
    group = GROUPS[name]
    values = {}
    for key in ("radius", "wall", "ef", "rv", "rv_ef", "trabeculae"):
        mean, sd = getattr(group, key)
        values[key] = float(mean + sd * np.clip(rng.standard_normal(), -2, 2))
    return name, values


def draw_patches(rng: np.random.Generator, group: str) -> tuple[Patch, ...]:
    """Draw the regional changes of a group: septal hypertrophy, thin and akinetic infarcts, aneurysms."""
    uniform = rng.uniform
    if group == "HCM":
        if rng.random() < 0.2:  # apical form
            return (Patch(uniform(1.6, 2.6), 0.0, 0.0, uniform(-3, 3), uniform(0.8, 1.0), (3.0, uniform(0.2, 0.3))),)
        septal = Patch(uniform(1.6, 2.7), 0.0, 0.0, uniform(-0.6, 0.9), uniform(0.15, 0.6), (uniform(0.7, 1.2), 0.35))
        return (septal,)
    if group == "IHD":
        angle, spread = uniform(-np.pi, np.pi), (uniform(0.5, 1.1), uniform(0.2, 0.45))
        bulge = uniform(3, 9) if rng.random() < 0.3 else 0.0
        return (Patch(uniform(0.4, 0.8), bulge, uniform(0.6, 1.1), angle, uniform(0.35, 1.0), spread),)
    if rng.random() < 0.25:  # a mild basal septal bulge or a thin segment, as many people have
        return (Patch(uniform(0.75, 1.4), 0.0, 0.0, uniform(-0.8, 0.8), uniform(0.0, 0.3), (0.6, 0.2)),)
    return ()
