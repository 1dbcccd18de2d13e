# SPDX-License-Identifier: Apache-2.0
"""The decomposing layer: every feature direction is explained by a few learnable kernels."""

import math
from typing import TYPE_CHECKING, Optional

import torch
from torch import nn
from torch.nn import functional as F

from vmfseg.utils.checks import check_channels, check_finite, check_positive

from .blocks import eager
from .distribution import log_vmf_normalizer

if TYPE_CHECKING:
    from .mixture import VMFMixture

__all__ = ["VMFKernels"]


class VMFKernels(nn.Module):
    r"""Explain every feature direction by ``J`` learnable von Mises-Fisher (vMF) kernels.

    With :math:`z_p = f_p / \lVert f_p \rVert_2`, unit kernel means :math:`\mu_j` and a concentration :math:`\kappa`
    shared by all kernels (the paper's :math:`\sigma`; the normalizer :math:`C(\sigma)` of Eq. 5 cancels), kernel
    :math:`j` explains position :math:`p` with weight

    .. math:: a_{jp} = \frac{\exp(\kappa \, \mu_j^\top z_p)}{\sum_{k=1}^{J} \exp(\kappa \, \mu_k^\top z_p)} .

    This is Eq. 5 normalized over the kernels as in Eq. 9, for both heads. The reference code adds a hard gate:
    entries with :math:`\mu_j^\top z_p \le` ``threshold`` are zero; positions without any entry are zero altogether.

    Only directions matter: rescaling the features or a kernel changes nothing. A zero feature has cosine 0 with every
    kernel. The layer computes in float32 (or float64) whatever comes in, since :math:`e^{30}` overflows float16.

    Shape: features ``BFHW[D]`` -> weights ``BJHW[D]``, summing to one over ``J``.

    Args:
        feature_channels: ``F``.
        num_kernels: ``J``.
        kappa: concentration; larger values give sharper assignments.
        threshold: the gate of the reference code (``0.0`` there), ``None`` for the paper's form.

    Raises:
        ValueError: wrong arguments, features of another width, NaN or infinite features, a kernel of norm zero.

    Example:
        >>> kernels = VMFKernels(feature_channels=8, num_kernels=3)
        >>> weights = kernels(torch.randn(2, 8, 5, 5))
        >>> weights.shape, bool(torch.allclose(weights.sum(1), torch.ones(2, 5, 5)))
        (torch.Size([2, 3, 5, 5]), True)
    """

    kappa: torch.Tensor

    def __init__(
        self,
        feature_channels: int = 64,
        num_kernels: int = 12,
        kappa: float = 30.0,
        threshold: Optional[float] = None,  # noqa: UP045 - TorchScript
    ) -> None:
        super().__init__()
        check_positive("kappa", kappa, "Larger values give sharper assignments.")
        if feature_channels < 2 or num_kernels < 1:
            raise ValueError(
                f"feature_channels must be at least 2, num_kernels at least 1, got {feature_channels}, {num_kernels}."
            )
        if threshold is not None and not -1 <= threshold < 1:
            raise ValueError(f"threshold must be a cosine in [-1, 1) or None, got {threshold}. The reference uses 0.0.")
        self.feature_channels, self.num_kernels, self.threshold = feature_channels, num_kernels, threshold
        self.weight = nn.Parameter(F.normalize(torch.randn(num_kernels, feature_channels), dim=1))
        self.register_buffer("kappa", torch.tensor(float(kappa)))

    @classmethod
    def from_mixture(cls, mixture: "VMFMixture", threshold: Optional[float] = None) -> "VMFKernels":  # noqa: UP045
        """Return kernels at the means of a fitted mixture, with its concentration."""
        if not mixture.log_likelihoods:
            raise ValueError("mixture must be fitted, got one that is not. Call mixture.fit(features) first.")
        means = mixture.means
        kernels = cls(means.shape[1], means.shape[0], mixture.kappa, threshold)
        kernels.set_kernels(means)
        return kernels

    @torch.jit.unused
    def set_kernels(self, means: torch.Tensor) -> None:
        """Overwrite the kernels by the directions ``means`` (``JF``)."""
        if means.shape != self.weight.shape:
            raise ValueError(
                f"means must have shape {tuple(self.weight.shape)} (J, F), got {tuple(means.shape)}. "
                "Fit the mixture with the same num_kernels on features of the same encoder."
            )
        check_finite("means", means, "Fit the mixture again.")
        if bool((means.norm(dim=1) == 0).any()):
            raise ValueError("means must be directions, got a vector of norm zero. Fit the mixture again.")
        with torch.no_grad():
            self.weight.copy_(F.normalize(means.to(self.weight), dim=1))

    def unit_kernels(self) -> torch.Tensor:
        """Return the kernels at unit norm, ``JF``."""
        weight: torch.Tensor = self.weight
        if weight.dtype == torch.float16 or weight.dtype == torch.bfloat16:
            weight = weight.float()
        return F.normalize(weight, dim=1)

    def cosine(self, features: torch.Tensor) -> torch.Tensor:
        """Return the cosine of every feature with every kernel, ``BJHW[D]``, at least in float32.

        The kernels are applied to the raw features and the result is divided by their norm: ``J`` channels are cheaper
        to divide than ``F``.
        """
        z = features
        if z.dtype == torch.float16 or z.dtype == torch.bfloat16:
            z = z.float()
        kernels = self.unit_kernels().to(z.dtype)
        norm2 = (z * z).sum(dim=1, keepdim=True)
        if not torch.jit.is_scripting():
            z, norm2 = self._check(z, norm2)
        if z.dim() == 4:
            projected = F.conv2d(z, kernels[:, :, None, None])
        else:
            projected = F.conv3d(z, kernels[:, :, None, None, None])
        # a zero feature is divided by 1: by a tiny number its cosine would be 0 all the same, but not its gradient
        return projected * torch.where(norm2 > 1e-30, norm2, torch.ones_like(norm2)).rsqrt()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the weight of every kernel at every position."""
        if torch.jit.is_scripting():
            return self._weights(features)
        device = features.device.type
        if torch.is_autocast_enabled(device):  # never in half precision, see the class
            with torch.autocast(device, enabled=False):
                return self._weights(features)
        return self._weights(features)

    def _weights(self, features: torch.Tensor) -> torch.Tensor:
        cosine = self.cosine(features)
        weights = torch.softmax(self.kappa.to(cosine.dtype) * cosine, dim=1)  # never exp() alone
        threshold = self.threshold
        if threshold is not None:
            weights = weights * (cosine > threshold).to(weights.dtype)
            weights = weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-12)
        return weights.to(features.dtype)

    @torch.jit.unused
    def log_likelihood(self, features: torch.Tensor) -> torch.Tensor:
        r"""Return :math:`\log \frac1J \sum_j C_F(\kappa) e^{\kappa \mu_j^\top z_p}` of every position, ``B1HW[D]``.

        The model's own measure of how well its kernels explain an image; see :mod:`vmfseg.networks.distribution`.
        """
        constant = log_vmf_normalizer(float(self.kappa), self.feature_channels) - math.log(self.num_kernels)
        with torch.autocast(features.device.type, enabled=False):
            return torch.logsumexp(float(self.kappa) * self.cosine(features), dim=1, keepdim=True) + constant

    @torch.jit.unused
    def _check(self, z: torch.Tensor, norm2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Refuse what would become NaN: look at norms, which is cheap, and at values where a norm is not finite."""
        if not eager():
            return z, norm2
        check_channels("features", z, self.feature_channels)
        if not bool(torch.isfinite(norm2).all()):
            check_finite("features", z, "Check the images for NaN and lower the learning rate.")
            z = z / z.abs().amax(dim=1, keepdim=True).clamp_min(1e-30)  # finite, but too large to square
            norm2 = (z * z).sum(dim=1, keepdim=True)
        norms = self.weight.detach().norm(dim=1)
        if not bool((torch.isfinite(norms) & (norms > 0)).all()):
            worst = int(torch.nonzero(~(torch.isfinite(norms) & (norms > 0)))[0])
            raise ValueError(
                f"kernels must have a finite norm above zero, got {float(norms[worst])} for kernel {worst}. "
                "Re-initialize it, for instance with VMFKernels.set_kernels(VMFMixture(...).fit(features).means)."
            )
        return z, norm2

    @torch.jit.unused
    def extra_repr(self) -> str:
        """Return what ``print`` shows."""
        return (
            f"F={self.feature_channels}, J={self.num_kernels}, kappa={float(self.kappa):g}, threshold={self.threshold}"
        )
