# SPDX-License-Identifier: Apache-2.0
"""Intensity changes of whole batches, one strength a sample: gamma, contrast, coil bias, Fourier style, blur.

Plain functions of a batch and per-sample parameters, without randomness: :class:`vmfseg.transforms.BatchAugment` draws
the parameters. They stand for what differs between scanners while the anatomy stays. Images are expected in [0, 1].

Shape, everywhere: images ``(B, C, H, W)``, parameters ``(B,)`` unless stated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
import torch.nn.functional as F

__all__ = [
    "BIAS_TERMS",
    "adjust_contrast",
    "adjust_gamma",
    "apply_bias_field",
    "blur",
    "mix_amplitude",
    "scale_amplitude",
]

#: Number of coefficients of a bias field: products of Legendre polynomials of total degree 1 to 3.
BIAS_TERMS = 9


def adjust_gamma(images: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    r"""Return :math:`x^\gamma`; negative values are clipped first.

    Example:
        >>> adjust_gamma(torch.full((1, 1, 1, 1), 0.5), torch.tensor([2.0])).item()
        0.25
    """
    return images.clamp_min(0.0).pow(_per_sample(gamma))


def adjust_contrast(images: torch.Tensor, contrast: torch.Tensor, brightness: torch.Tensor) -> torch.Tensor:
    r"""Return :math:`c\,(x - \bar x) + \bar x + b` with the mean :math:`\bar x` of each sample.

    Example:
        >>> adjust_contrast(torch.tensor([[[[0.0, 1.0]]]]), torch.tensor([0.5]), torch.tensor([0.1])).flatten().tolist()
        [0.3499999940395355, 0.8500000238418579]
    """
    # summed in double: the order of a float32 sum, and so its last bit, depends on the size of the batch
    mean = images.mean(dim=(-2, -1), keepdim=True, dtype=torch.float64).to(images.dtype)
    return (images - mean) * _per_sample(contrast) + mean + _per_sample(brightness)


def apply_bias_field(images: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    r"""Multiply by the smooth field :math:`\exp \sum_k c_k P_k(u, v)` of a receive coil.

    :math:`P_k` are the products of Legendre polynomials in the two in-plane coordinates, of total degree 1 to 3.

    Args:
        images: the batch.
        coefficients: ``(B, 9)``.

    Example:
        >>> torch.equal(apply_bias_field(torch.ones(1, 1, 4, 4), torch.zeros(1, BIAS_TERMS)), torch.ones(1, 1, 4, 4))
        True
    """
    basis = _legendre(images.shape[-2], images.shape[-1]).to(images.device)
    field = (coefficients.to(images.device)[:, :, None, None] * basis).sum(dim=1, keepdim=True).exp()
    return images * field


def scale_amplitude(images: torch.Tensor, log_factors: torch.Tensor) -> torch.Tensor:
    r"""Scale the low-frequency Fourier amplitudes by :math:`\exp(f)` and keep every phase: the style, not the shape.

    The zero frequency (the mean) stays. The image stays real because the factor of a frequency is also that of its
    mirror.

    Args:
        images: the batch.
        log_factors: ``(B, 2k + 1, k + 1)`` for the frequencies ``-k ... k`` along H and ``0 ... k`` along W.

    Example:
        >>> x = torch.rand(1, 1, 16, 16)
        >>> torch.allclose(scale_amplitude(x, torch.zeros(1, 5, 3)), x, atol=1e-6)
        True
    """
    factors = log_factors.to(images.device, torch.float32).clone()
    half = factors.shape[2] - 1
    mirror = factors[:, :, 0].flip(1)
    factors[:, :half, 0] = mirror[:, :half]
    factors[:, half, 0] = 0.0
    with _one_thread():
        spectrum = torch.fft.rfft2(images)
    rows = torch.arange(-half, half + 1, device=images.device) % images.shape[-2]
    spectrum[:, :, rows, : half + 1] *= factors.exp()[:, None]
    with _one_thread():
        out: torch.Tensor = torch.fft.irfft2(spectrum, s=images.shape[-2:])
    return out


def mix_amplitude(images: torch.Tensor, partner: torch.Tensor, weight: torch.Tensor, half: int) -> torch.Tensor:
    r"""Blend the low-frequency amplitudes with those of another sample: :math:`|X| \leftarrow (1-w)|X| + w|X_p|`.

    Phases stay, so the anatomy does. Amplitude mixing for domain generalization: Xu et al., CVPR 2021,
    https://arxiv.org/abs/2105.11120.

    Args:
        images: the batch.
        partner: ``(B,)`` indices into the batch.
        weight: ``(B,)``, 0 keeps the sample's own style.
        half: frequencies ``-half ... half`` are blended.

    Example:
        >>> x = torch.rand(2, 1, 16, 16)
        >>> torch.allclose(mix_amplitude(x, torch.tensor([1, 0]), torch.zeros(2), 2), x, atol=1e-6)
        True
    """
    with _one_thread():
        spectrum = torch.fft.rfft2(images)
    rows = torch.arange(-half, half + 1, device=images.device) % images.shape[-2]
    low = spectrum[:, :, rows, : half + 1]
    amplitude = low.abs()
    blended = torch.lerp(amplitude, amplitude[partner], _per_sample(weight.to(images.device)))
    spectrum[:, :, rows, : half + 1] = torch.polar(blended, low.angle())
    with _one_thread():
        out: torch.Tensor = torch.fft.irfft2(spectrum, s=images.shape[-2:])
    return out


def blur(images: torch.Tensor, sigma: torch.Tensor, kernel_size: int = 5) -> torch.Tensor:
    """Gaussian blur with one width for each sample: sampled and normalized kernel, mirrored borders, two passes.

    Sums of shifted copies, one sample after the other so that they stay in the processor's cache: faster than a grouped
    convolution on a CPU, and the same bits whatever else is in the batch.

    Args:
        images: the batch; each side must exceed ``kernel_size // 2``.
        sigma: standard deviation in pixels.
        kernel_size: odd number of taps.

    Example:
        >>> blur(torch.ones(1, 1, 8, 8), torch.tensor([1.0])).allclose(torch.ones(1, 1, 8, 8))
        True
    """
    half = kernel_size // 2
    taps = torch.arange(-half, half + 1, dtype=torch.float32)
    weights = torch.exp(-0.5 * (taps / sigma.cpu()[:, None]) ** 2)
    weights = weights / weights.sum(dim=1, keepdim=True)
    height, width = images.shape[-2:]
    out = torch.empty_like(images)
    planes = images.flatten(0, 1).split(1)
    kernels = [kernel for kernel in weights.tolist() for _ in range(images.shape[1])]
    for plane, target, kernel in zip(planes, out.flatten(0, 1), kernels, strict=True):
        padded = F.pad(plane[None], (half,) * 4, mode="reflect")[0, 0]
        rows = padded[:height] * kernel[0]
        for k in range(1, kernel_size):
            rows.add_(padded[k : k + height], alpha=kernel[k])
        torch.mul(rows[:, :width], kernel[0], out=target)
        for k in range(1, kernel_size):
            target.add_(rows[:, k : k + width], alpha=kernel[k])
    return out


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep the bits of a Fourier transform the same for any number of threads: some libraries split it among them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _per_sample(values: torch.Tensor) -> torch.Tensor:
    return values[:, None, None, None]


@lru_cache(maxsize=8)
def _legendre(height: int, width: int) -> torch.Tensor:
    def polynomials(size: int) -> list[torch.Tensor]:
        x = torch.linspace(-1.0, 1.0, size)
        return [torch.ones(size), x, (3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2]

    rows, columns = polynomials(height), polynomials(width)
    pairs = [(i, j) for i in range(4) for j in range(4) if 1 <= i + j <= 3]
    return torch.stack([rows[i][:, None] * columns[j][None, :] for i, j in pairs])
