# SPDX-License-Identifier: Apache-2.0
r"""Steady-state signals of the two sequences: balanced SSFP (hearts) and spoiled gradient echo (cords).

Both return complex transverse magnetization, because neighboring tissues add as vectors inside a voxel: fat and water
of a balanced sequence point in opposite directions and cancel at their border, which real scans show as a dark line.
Conventions: precession by :math:`\Delta f` Hz multiplies the transverse magnetization by :math:`e^{2\pi i \Delta f t}`,
pulses turn about x, and the result is turned by 90° so that on-resonant spins are real and positive. The tests compare
both functions with a Bloch simulation, pulse by pulse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vmfseg.phantom.tissues import TISSUES

__all__ = ["bssfp_signal", "bssfp_table", "inflow_fraction", "spoiled_gre_signal", "spoiled_gre_table"]

#: A number, or an array that is broadcast against the off-resonances.
Times = float | NDArray[np.float64]


def bssfp_signal(
    t1: Times, t2: Times, pd: Times, *, tr: float, te: float, flip: float, off_resonance: ArrayLike = 0.0
) -> NDArray[np.complex128]:
    r"""Balanced steady-state free precession with alternating pulses.

    With :math:`E_i = e^{-T_R/T_i}`, flip angle :math:`\alpha` and the precession per repetition seen by the alternating
    pulses, :math:`\theta = 2\pi \Delta f\, T_R + \pi`, let

    .. math:: g = \frac{E_2(\cos\theta - E_2)}{1 - E_2\cos\theta}, \qquad
              m = \frac{\rho\,(1-E_1)\sin\alpha}{1 - E_1\cos\alpha - g(\cos\alpha - E_1)} .

    Just after a pulse the magnetization is
    :math:`m\,\bigl(1 + i\,E_2\sin\theta/(1-E_2\cos\theta)\bigr)`, and at :math:`T_E` it is that times
    :math:`e^{2\pi i\Delta f T_E} e^{-T_E/T_2}` (the solution of Freeman and Hill, J Magn Res 4:366, 1971, with the
    sign of the phase as above). The signal vanishes near :math:`\Delta f = \pm 1/(2T_R)`: the dark bands.

    Args:
        t1: longitudinal relaxation time in ms.
        t2: transverse relaxation time in ms.
        pd: proton density :math:`\rho`.
        tr: repetition time in ms.
        te: echo time in ms.
        flip: flip angle in degrees.
        off_resonance: :math:`\Delta f` in Hz, scalar or array.

    Returns:
        Complex signal with the shape of ``off_resonance``.

    Example:
        >>> blood = bssfp_signal(1441, 254, 0.86, tr=3.2, te=1.6, flip=60)
        >>> muscle = bssfp_signal(1030, 40, 0.79, tr=3.2, te=1.6, flip=60)
        >>> bool(abs(blood) > 2.5 * abs(muscle))
        True
    """
    hertz = np.asarray(off_resonance, dtype=np.float64)
    alpha, theta = np.deg2rad(flip), 2e-3 * np.pi * hertz * tr + np.pi
    e1, e2 = np.exp(-tr / t1), np.exp(-tr / t2)
    free = 1.0 - e2 * np.cos(theta)
    g = e2 * (np.cos(theta) - e2) / free
    m = pd * (1.0 - e1) * np.sin(alpha) / (1.0 - e1 * np.cos(alpha) - g * (np.cos(alpha) - e1))
    after_pulse = m * (1.0 + 1j * e2 * np.sin(theta) / free)
    result: NDArray[np.complex128] = after_pulse * np.exp(2e-3j * np.pi * hertz * te - te / t2)
    return result


def spoiled_gre_signal(
    t1: Times,
    t2_star: Times,
    pd: Times,
    *,
    tr: float,
    te: float,
    flip: float,
    off_resonance: ArrayLike = 0.0,
    inflow: Times = 0.0,
) -> NDArray[np.complex128]:
    r"""Spoiled gradient echo (Ernst) with wash-in of unsaturated spins.

    If a fraction :math:`f` of the spins is replaced by fresh ones in every repetition, the longitudinal magnetization
    before a pulse obeys :math:`z = (1-f)\,(1 - E_1 + E_1 z\cos\alpha) + f\rho`, so that

    .. math:: s = \rho\,\sin\alpha\,\frac{(1-f)(1-E_1) + f}{1 - (1-f)E_1\cos\alpha}\;
              e^{-T_E/T_2^*} e^{2\pi i\Delta f T_E}.

    With :math:`f = 0` this is the equation of Ernst; with :math:`f = 1` the spins are never saturated.

    Args:
        t1: longitudinal relaxation time in ms.
        t2_star: effective transverse relaxation time in ms.
        pd: proton density :math:`\rho`.
        tr: repetition time in ms.
        te: echo time in ms.
        flip: flip angle in degrees.
        off_resonance: :math:`\Delta f` in Hz, scalar or array.
        inflow: the fraction :math:`f` in [0, 1], see :func:`inflow_fraction`.

    Example:
        >>> float(abs(spoiled_gre_signal(1000, 50, 1.0, tr=500, te=0, flip=90)).round(4))  # 1 - exp(-1/2)
        0.3935
    """
    alpha, e1 = np.deg2rad(flip), np.exp(-tr / t1)
    z = ((1.0 - inflow) * (1.0 - e1) + inflow) / (1.0 - (1.0 - inflow) * e1 * np.cos(alpha))
    hertz = np.asarray(off_resonance, dtype=np.float64)
    result: NDArray[np.complex128] = pd * np.sin(alpha) * z * np.exp(-te / t2_star) * np.exp(2e-3j * np.pi * hertz * te)
    return result


def inflow_fraction(speed: float, tr: float, thickness: float) -> float:
    """Return the share of spins renewed per repetition by flow of ``speed`` mm/s through a slab of ``thickness`` mm.

    Example:
        >>> inflow_fraction(10.0, tr=539.0, thickness=5.0), inflow_fraction(10.0, tr=23.0, thickness=50.0)
        (1.0, 0.0046)
    """
    return min(1.0, speed * tr / 1000.0 / thickness)


def bssfp_table(
    hertz: NDArray[np.float64], *, tesla: float, tr: float, te: float, flip: float
) -> NDArray[np.complex64]:
    """Tabulate :func:`bssfp_signal` for every tissue code (rows) over the off-resonances ``hertz`` (columns)."""
    table = np.zeros((max(t.code for t in TISSUES.values()) + 1, hertz.size), np.complex64)
    for tissue in TISSUES.values():
        t1, t2, _ = tissue.times(tesla)
        shifted = hertz + tissue.shift_hz(tesla)
        table[tissue.code] = bssfp_signal(t1, t2, tissue.pd, tr=tr, te=te, flip=flip, off_resonance=shifted)
    return table


def spoiled_gre_table(
    hertz: NDArray[np.float64],
    *,
    tesla: float,
    tr: float,
    echoes: Sequence[float],
    flip: float,
    inflow: dict[str, float],
    fat_suppression: float = 0.0,
) -> NDArray[np.complex64]:
    """Tabulate :func:`spoiled_gre_signal` for every echo, tissue code and off-resonance, shape (echoes, codes, Hz).

    Args:
        hertz: off-resonances in Hz.
        tesla: field strength.
        tr: repetition time in ms.
        echoes: echo times in ms.
        flip: flip angle in degrees.
        inflow: fraction of renewed spins by tissue name (blood, cerebrospinal fluid).
        fat_suppression: fraction of the fat signal that the preparation removes.
    """
    codes = max(t.code for t in TISSUES.values()) + 1
    table = np.zeros((len(echoes), codes, hertz.size), np.complex64)
    for name, tissue in TISSUES.items():
        t1, _, t2_star = tissue.times(tesla)
        kept = 1.0 - fat_suppression if tissue.shift_ppm else 1.0
        common: dict[str, Any] = {"tr": tr, "flip": flip, "inflow": inflow.get(name, 0.0)}
        for row, te in enumerate(echoes):
            shifted = hertz + tissue.shift_hz(tesla)
            signal = spoiled_gre_signal(t1, t2_star, tissue.pd, te=te, off_resonance=shifted, **common)
            table[row, tissue.code] = kept * signal
    return table
