# SPDX-License-Identifier: Apache-2.0
"""Signal equations against a Bloch simulation, pulse by pulse, that shares no formula with them."""

import numpy as np
import pytest

from vmfseg.phantom.signal import (
    bssfp_signal,
    bssfp_table,
    inflow_fraction,
    spoiled_gre_signal,
    spoiled_gre_table,
)
from vmfseg.phantom.tissues import TISSUES, tissue_names
from vmfseg.phantom.vendors import CORD_SITES, HEART_CENTERS


def about_x(angle):
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[1, 0, 0], [0, c, -s], [0, s, c]])


def about_z(angle):
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


def relax(m, t, t1, t2):
    decay = np.array([np.exp(-t / t2), np.exp(-t / t2), np.exp(-t / t1)])
    return m * decay + np.array([0, 0, 1 - decay[2]])


def bloch_bssfp(t1, t2, tr, te, flip, hertz, pulses=6000):
    """Alternate the sign of the flip angle; read at TE and undo the sign of the pulse (the receiver follows the RF)."""
    m, alpha = np.array([0.0, 0.0, 1.0]), np.deg2rad(flip)
    for k in range(pulses):
        sign = 1 if k % 2 == 0 else -1
        m = about_x(sign * alpha) @ m
        read = relax(about_z(2e-3 * np.pi * hertz * te) @ m, te, t1, t2)
        echo = sign * (read[0] + 1j * read[1])
        rest = tr - te
        m = relax(about_z(2e-3 * np.pi * hertz * rest) @ read, rest, t1, t2)
    return echo * 1j  # a pulse about x leaves on-resonant spins along -y


@pytest.mark.parametrize("center", HEART_CENTERS, ids=lambda p: f"{p.vendor}{p.center}")
@pytest.mark.parametrize("name", ["lv_blood", "lv_myocardium", "subcutaneous_fat"])
@pytest.mark.parametrize("hertz", [0.0, 40.0, -90.0, 220.0])
def test_bssfp_equals_bloch_simulation(center, name, hertz):
    t1, t2, _ = TISSUES[name].times(center.tesla)
    wanted = bloch_bssfp(t1, t2, center.tr, center.te, center.flip, hertz)
    got = bssfp_signal(t1, t2, 1.0, tr=center.tr, te=center.te, flip=center.flip, off_resonance=hertz)
    assert abs(got - wanted) < 1e-4


def test_bssfp_on_resonance_by_hand():
    # Short TR limit: sin(a) / ((T1/T2 + 1) - cos(a) (T1/T2 - 1)), here T1/T2 = 10 and 60 degrees: 0.8660 / 6.5
    got = abs(bssfp_signal(1000, 100, 1.0, tr=1e-3, te=0.0, flip=60))
    assert got == pytest.approx(0.866025 / 6.5, rel=1e-4)


def test_bands_lie_at_half_the_inverse_repetition_time():
    hertz = np.linspace(0, 400, 4001)
    signal = abs(bssfp_signal(1441, 254, 1.0, tr=3.2, te=1.6, flip=60, off_resonance=hertz))
    assert hertz[signal.argmin()] == pytest.approx(1000 / (2 * 3.2), abs=1.0)


def test_fat_and_water_oppose_each_other():
    table = bssfp_table(np.array([0.0]), tesla=1.5, tr=3.2, te=1.6, flip=60)
    water, fat = table[TISSUES["lv_myocardium"].code, 0], table[TISSUES["epicardial_fat"].code, 0]
    assert abs(np.angle(fat / water)) > 0.75 * np.pi
    assert abs(fat) > 2 * abs(water)


def bloch_spoiled(t1, t2_star, tr, te, flip, hertz, inflow, pulses=4000):
    z, alpha = 1.0, np.deg2rad(flip)
    for _ in range(pulses):
        transverse = z * np.sin(alpha)
        z = 1 + (z * np.cos(alpha) - 1) * np.exp(-tr / t1)
        z = (1 - inflow) * z + inflow
    return transverse * np.exp(-te / t2_star) * np.exp(2e-3j * np.pi * hertz * te)


@pytest.mark.parametrize("site", CORD_SITES, ids=lambda p: f"site{p.site}")
@pytest.mark.parametrize(
    ("name", "inflow"), [("gray_matter", 0.0), ("white_matter", 0.0), ("csf", 0.0046), ("csf", 1.0)]
)
def test_spoiled_echo_equals_pulse_train(site, name, inflow):
    t1, _, t2_star = TISSUES[name].times(site.tesla)
    for te in site.echoes:
        wanted = bloch_spoiled(t1, t2_star, site.tr, te, site.flip, 17.0, inflow)
        got = spoiled_gre_signal(t1, t2_star, 1.0, tr=site.tr, te=te, flip=site.flip, off_resonance=17.0, inflow=inflow)
        assert abs(got - wanted) < 1e-6


@pytest.mark.parametrize("site", CORD_SITES, ids=lambda p: f"site{p.site}")
def test_contrast_of_cords_is_that_of_t2_star_images(site):
    inflow = {"csf": inflow_fraction(10.0, site.tr, site.slab)}
    table = spoiled_gre_table(np.array([0.0]), tesla=3.0, tr=site.tr, echoes=site.echoes, flip=site.flip, inflow=inflow)
    brightness = np.abs(table).mean(axis=0)[:, 0]
    csf, gray, white, bone = (
        brightness[TISSUES[n].code] for n in ("csf", "gray_matter", "white_matter", "cortical_bone")
    )
    assert csf > gray > 1.05 * white > 3 * bone


@pytest.mark.parametrize("center", HEART_CENTERS, ids=lambda p: f"{p.vendor}{p.center}")
def test_contrast_of_hearts_is_that_of_bright_blood_images(center):
    table = bssfp_table(np.array([0.0]), tesla=1.5, tr=center.tr, te=center.te, flip=center.flip)
    blood, muscle, lung, liver = (
        abs(table[TISSUES[n].code, 0]) for n in ("lv_blood", "lv_myocardium", "lung", "liver")
    )
    assert blood > 2 * muscle
    assert blood > liver > muscle > 5 * lung


def test_vendors_differ_in_contrast():
    ratios = []
    for center in HEART_CENTERS:
        table = np.abs(bssfp_table(np.array([0.0]), tesla=1.5, tr=center.tr, te=center.te, flip=center.flip))[:, 0]
        ratios.append(table[TISSUES["lv_blood"].code] / table[TISSUES["lv_myocardium"].code])
    assert max(ratios) / min(ratios) > 1.2


def test_tissue_codes_are_unique_and_zero_is_free():
    codes = [tissue.code for tissue in TISSUES.values()]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes
    assert tissue_names()[0] == "unrecorded"


def test_unknown_field_strength_is_refused():
    with pytest.raises(ValueError, match=r"tesla must be 1.5 or 3.0, got 7"):
        TISSUES["liver"].times(7)
