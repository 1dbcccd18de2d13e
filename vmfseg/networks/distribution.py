# SPDX-License-Identifier: Apache-2.0
r"""The von Mises-Fisher distribution on the unit sphere of :math:`R^F`: its normalizer and its samples.

.. math:: p(z \mid \mu, \kappa) = C_F(\kappa) \exp(\kappa \mu^\top z), \qquad
          C_F(\kappa) = \frac{\kappa^{F/2-1}}{(2\pi)^{F/2} I_{F/2-1}(\kappa)}

with :math:`I_\nu` the modified Bessel function of the first kind. The paper writes :math:`1 / C(\sigma)` for the
constant (Eq. 5) and drops it, since it cancels in activations; log-likelihoods that mean something need it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import special

from vmfseg.utils.checks import check_positive

__all__ = ["log_bessel_i", "log_vmf_normalizer", "sample_vmf"]


def log_bessel_i(order: float, x: float) -> float:
    r"""Return :math:`\log I_\nu(x)` for :math:`x > 0`, also where :math:`I_\nu` under- or overflows.

    SciPy's scaled function where it is representable, else the power series
    :math:`I_\nu(x) = (x/2)^\nu \sum_k (x^2/4)^k / (k!\,\Gamma(\nu+k+1))` summed in logarithms.

    Example:
        >>> round(log_bessel_i(0.5, 1.0), 6)  # I_{1/2}(x) = sqrt(2 / (pi x)) sinh(x)
        -0.064352
    """
    scaled = float(special.ive(order, x))
    if scaled > 1e-290 and math.isfinite(scaled):
        return math.log(scaled) + x
    k = np.arange(max(500, int(4 * x)), dtype=np.float64)
    terms = 2 * k * math.log(x / 2) - special.gammaln(k + 1) - special.gammaln(order + k + 1)
    return order * math.log(x / 2) + float(special.logsumexp(terms))


def log_vmf_normalizer(kappa: float, dim: int) -> float:
    r"""Return :math:`\log C_F(\kappa)` for dimension ``dim`` :math:`= F \ge 2`.

    Example:
        >>> round(log_vmf_normalizer(1.0, 3), 6)  # C_3(k) = k / (4 pi sinh k)
        -2.692464
    """
    check_positive("kappa", kappa)
    if dim < 2:
        raise ValueError(f"dim must be at least 2, got {dim}. A sphere needs two dimensions.")
    order = dim / 2 - 1
    return order * math.log(kappa) - dim / 2 * math.log(2 * math.pi) - log_bessel_i(order, kappa)


def sample_vmf(mean: torch.Tensor, kappa: float, count: int, generator: torch.Generator) -> torch.Tensor:
    r"""Draw unit vectors by Wood's rejection scheme (1994): first the cosine with the mean, then a direction around it.

    Shape: ``mean`` ``F`` -> ``count F``.

    Args:
        mean: unit direction.
        kappa: concentration.
        count: how many.
        generator: source of randomness.
    """
    check_positive("kappa", kappa)
    dim = mean.shape[0]
    m = dim - 1
    b = m / (2 * kappa + math.sqrt(4 * kappa**2 + m**2))
    x0 = (1 - b) / (1 + b)
    c = kappa * x0 + m * math.log(1 - x0**2)
    rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
    cosines = np.empty(0)
    while len(cosines) < count:
        z = rng.beta(m / 2, m / 2, size=2 * count)
        w = (1 - (1 + b) * z) / (1 - (1 - b) * z)
        accept = kappa * w + m * np.log(1 - x0 * w) - c >= np.log(rng.uniform(size=2 * count))
        cosines = np.concatenate([cosines, w[accept]])
    cosine = torch.from_numpy(cosines[:count]).unsqueeze(1)
    unit = mean.double() / mean.double().norm()
    around = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    around = around - (around @ unit).unsqueeze(1) * unit
    around = around / around.norm(dim=1, keepdim=True)
    drawn: torch.Tensor = cosine * unit + (1 - cosine**2).clamp_min(0).sqrt() * around
    return drawn.to(mean.dtype)
