# SPDX-License-Identifier: Apache-2.0
"""Scanner protocols drawn from ranges: cine of hearts, and the complex signal of every tissue.

=======================  ==============================================================================================
quantity                 range and source
=======================  ==============================================================================================
field                    0.55, 1.5 and 3 T
balanced SSFP            slices of 6 to 8 mm: Kramer et al., JCMR 22:17, 2020; wider here. At 1.5 T TR 3.1 to 3.3 ms, TE
                         1.6 ms, flip 60 degrees, 1.7 to 1.9 mm in plane, at 1 T 4.1 to 4.4, 2.0 to 2.2, 55 to 60, 1.9
                         to 2.0: doi 10.1186/s12968-015-0144-y (JCMR 2015), table 1; ranges around them here. At 3 T the
                         flip angle is lower and the shim worse: unverified
spoiled gradient echo    TR 4 to 9 ms, TE 2 to 4.5 ms, flip 12 to 25 degrees: cine before balanced SSFP; unverified
gadolinium               relaxation rates of blood and muscle after contrast: unverified; cine is often run after it
noise, coils, shim       typical of the hardware; unverified
=======================  ==============================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmfseg.phantom.acquisition import frequency_axis
from vmfseg.phantom.relaxation import CODES, COUNT, draw_relaxation, fat_shift
from vmfseg.phantom.scanner import Reconstruction
from vmfseg.phantom.signal import bssfp_signal, spoiled_gre_signal

__all__ = ["CineProtocol", "cine_table", "draw_cine_protocol", "draw_reconstruction"]

#: Share of the contrast agent's concentration in blood that a tissue takes up.
_UPTAKE = {
    "lv_blood": 1.0, "rv_blood": 1.0, "left_atrium_blood": 1.0, "right_atrium_blood": 1.0, "aorta": 1.0, "vessel": 1.0,
    "lv_myocardium": 0.45, "papillary": 0.45, "lv_trabeculae": 0.45, "rv_trabeculae": 0.45, "rv_wall": 0.45,
    "atrial_wall": 0.45, "liver": 0.5, "spleen": 0.6, "muscle": 0.25, "gland": 0.4, "marrow": 0.2,
}  # fmt: skip
_BLOOD = ("lv_blood", "rv_blood", "left_atrium_blood", "right_atrium_blood", "aorta", "vessel")


@dataclass(frozen=True)
class CineProtocol:
    """A cine protocol. Lengths in mm, times in ms, angles in degrees, frequencies in Hz.

    Args:
        tesla: field strength.
        balanced: balanced SSFP, else spoiled gradient echo.
        tr: repetition time.
        te: echo time.
        flip: flip angle.
        thickness: of a slice.
        step: from slice to slice.
        shim: residual off-resonance over the heart.
        offset: off-resonance of the heart itself.
        contrast: added relaxation rate of blood in 1/ms after gadolinium.
        inflow: share of spins that blood renews in every repetition.
        recon: what happens to k-space.
    """

    tesla: float
    balanced: bool
    tr: float
    te: float
    flip: float
    thickness: float
    step: float
    shim: float
    offset: float
    contrast: float
    inflow: float
    recon: Reconstruction

    @property
    def name(self) -> str:
        """Field and sequence in short."""
        return f"{self.tesla:g}T-{'bssfp' if self.balanced else 'gre'}"


def draw_cine_protocol(rng: np.random.Generator) -> CineProtocol:
    """Draw field, sequence, resolution, noise and reconstruction of a short-axis cine."""
    uniform = rng.uniform
    tesla = float(rng.choice([0.55, 1.5, 3.0], p=[0.06, 0.66, 0.28]))
    balanced = bool(rng.random() < 0.88)
    tr = uniform(2.6, 4.6 if tesla < 3 else 3.8)
    te, flip = tr * uniform(0.42, 0.52), uniform(40, 80) if tesla < 3 else uniform(30, 60)
    if not balanced:
        tr, te, flip = uniform(4.0, 9.0), uniform(2.0, 4.2), uniform(12, 25)
    thickness = float(rng.choice([5.0, 6.0, 7.0, 8.0, 10.0], p=[0.06, 0.2, 0.12, 0.47, 0.15]))
    gap = float(rng.choice([0.0, 2.0, 4.0], p=[0.45, 0.45, 0.10]))
    shim = uniform(8, 45) * (tesla / 1.5) ** 0.9
    return CineProtocol(
        tesla=tesla,
        balanced=balanced,
        tr=float(tr),
        te=float(te),
        flip=float(flip),
        thickness=thickness,
        step=max(thickness + gap, 8.0),
        shim=float(shim),
        offset=float(rng.normal(0, 12 * tesla / 1.5)),
        contrast=float(uniform(1.0, 2.6)) * 1e-3 if rng.random() < 0.25 else 0.0,
        inflow=float(uniform(0.05, 0.6)),
        recon=draw_reconstruction(rng, (1.1, 2.2), (0.7, 1.7)),
    )


def draw_reconstruction(
    rng: np.random.Generator,
    resolution: tuple[float, float],
    spacing: tuple[float, float],
    snr: tuple[float, float] = (14.0, 90.0),
) -> Reconstruction:
    """Draw resolution, interpolation, filter, noise, shading, ghosts and storage of a picture."""
    uniform = rng.uniform
    fine = uniform(*resolution)
    coarse = fine * uniform(1.0, 1.35)
    acquired = (fine, coarse) if rng.random() < 0.5 else (coarse, fine)
    step = float(np.clip(fine / rng.choice([1.0, uniform(1.0, 2.0)]), *spacing))
    normalized = 0.0 if rng.random() < 0.35 else float(uniform(0, 1))
    return Reconstruction(
        acquired=(float(acquired[0]), float(acquired[1])),
        spacing=min(step, fine),
        window=str(rng.choice(["none", "hamming", "tukey", "fermi"])),  # type: ignore[arg-type]
        snr=float(np.exp(uniform(*np.log(snr)))),
        normalized=normalized,
        ghost=(float(uniform(0.01, 0.12)), float(uniform(0.1, 0.5))) if rng.random() < 0.25 else (0.0, 0.0),
        smooth=float(uniform(0.3, 0.8)) if rng.random() < 0.15 else 0.0,
        sharpen=float(uniform(0.2, 1.0)) if rng.random() < 0.2 else 0.0,
        clip=float(rng.choice([0.0, uniform(0, 0.02)])) if rng.random() < 0.3 else -1.0,
        gamma=float(np.exp(rng.normal(0, 0.15))) if rng.random() < 0.3 else 1.0,
    )


def cine_table(protocol: CineProtocol, rng: np.random.Generator, freedom: float = 0.08) -> NDArray[np.complex64]:
    """Return the signal of every tissue code over :func:`vmfseg.phantom.acquisition.frequency_axis`.

    Shape: (COUNT, frequencies).

    Args:
        protocol: sequence and field.
        rng: draws the person's relaxation times.
        freedom: standard deviation of a log-normal factor on every tissue's signal, for what the equations leave out
            (magnetization transfer, the slice profile, approach to the steady state).
    """
    t1, t2, t2_star, density = draw_relaxation(rng, protocol.tesla)
    if protocol.contrast > 0:
        uptake = np.zeros(COUNT)
        uptake[[CODES[name] for name in _UPTAKE]] = list(_UPTAKE.values())
        t1 = 1 / (1 / t1 + uptake * protocol.contrast)
        t2 = 1 / (1 / t2 + 1.2 * uptake * protocol.contrast)
    hertz = frequency_axis()[None, :] + fat_shift(protocol.tesla)[:, None]
    common: dict[str, Any] = {"tr": protocol.tr, "te": protocol.te, "flip": protocol.flip, "off_resonance": hertz}
    if protocol.balanced:
        signal = bssfp_signal(t1[:, None], t2[:, None], density[:, None], **common)
    else:
        renewed = np.zeros(COUNT)
        renewed[[CODES[name] for name in _BLOOD]] = protocol.inflow
        signal = spoiled_gre_signal(t1[:, None], t2_star[:, None], density[:, None], inflow=renewed[:, None], **common)
    factor = np.exp(freedom * rng.standard_normal(COUNT))
    for shared in (("lv_blood", "left_atrium_blood", "aorta"), ("lv_myocardium", "papillary", "lv_trabeculae")):
        factor[[CODES[name] for name in shared]] = factor[CODES[shared[0]]]
    factor[[CODES["rv_trabeculae"], CODES["rv_wall"]]] = factor[CODES["lv_myocardium"]]
    return np.asarray(signal * factor[:, None], dtype=np.complex64)
