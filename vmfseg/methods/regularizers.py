# SPDX-License-Identifier: Apache-2.0
"""Penalties on representations: Kullback-Leibler divergence to a Gaussian, low rank, independence."""

from __future__ import annotations

import torch

from vmfseg.utils.checks import check_choice

__all__ = ["check_rank", "gaussian_kl", "hsic", "low_rank"]


def gaussian_kl(mean: torch.Tensor, log_variance: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
    r"""Return the KL divergence of diagonal Gaussians to the standard one.

    .. math:: KL(\mathcal N(\mu, \sigma^2) \,\|\, \mathcal N(0, 1)) = \tfrac12 (\mu^2 + \sigma^2 - \log \sigma^2 - 1)

    Args:
        mean: ``BS...``.
        log_variance: same shape, :math:`\log \sigma^2`.
        reduction: ``"sum"`` over ``S...`` and mean over the batch, or ``"mean"`` over all elements.

    Example:
        >>> gaussian_kl(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2))
        tensor(0.5000)
    """
    check_choice("reduction", reduction, ("sum", "mean"))
    divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1)
    return divergence.mean() if reduction == "mean" else divergence.flatten(1).sum(dim=1).mean()


def low_rank(
    features: torch.Tensor, rank: int, pixels: int = 2000, generator: torch.Generator | None = None, noise: float = 1e-6
) -> torch.Tensor:
    r"""Return the first singular value beyond a rank, of the features of randomly chosen pixels.

    With :math:`M` the matrix of at most ``pixels`` feature vectors, drawn from all images together without
    replacement, :math:`\sigma_{K+1}(M)` is 0 exactly if the vectors lie in a subspace of :math:`K` dimensions.

    Args:
        features: ``BFHW``.
        rank: :math:`K`; must be below ``F``.
        pixels: how many.
        generator: for the choice of the pixels and the noise, on the CPU; ``None`` takes a fixed one.
        noise: standard deviation of what is added to the matrix: gradients of gradients need distinct singular values.

    Example:
        >>> float(low_rank(torch.ones(1, 3, 4, 4), rank=1)) < 1e-4
        True
    """
    if not 1 <= rank < features.shape[1]:
        raise ValueError(
            f"rank must be between 1 and {features.shape[1] - 1}, the number of features less one, got {rank}. "
            "Use more features than classes."
        )
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    rows = features.movedim(1, -1).flatten(0, -2)
    chosen = torch.randperm(len(rows), generator=generator)[:pixels]
    matrix = rows[chosen.to(rows.device)]
    matrix = matrix.float() if matrix.dtype in (torch.float16, torch.bfloat16) else matrix
    if noise:
        matrix = matrix + noise * torch.randn(matrix.shape, generator=generator).to(matrix)
    if min(matrix.shape) <= rank:
        raise ValueError(f"features must have more than {rank} pixels, got {len(rows)}. Use larger images.")
    values: torch.Tensor = torch.linalg.svdvals(matrix)
    return values[rank]


def check_rank(name: str, channels: int, classes: int) -> None:
    """Refuse features of so few channels that a rank of the number of classes says nothing."""
    if channels <= classes:
        raise ValueError(
            f"{name} must be more than the {classes} classes, got {channels}. "
            "The rank is kept at the number of classes; the paper has 8."
        )


def hsic(x: torch.Tensor, y: torch.Tensor, bandwidth: float = 5.0) -> torch.Tensor:
    r"""Return the Hilbert-Schmidt independence criterion of two sets of vectors.

    .. math:: \frac{\operatorname{tr}(K H L H)}{m - 1}, \quad K_{ij} = e^{-\lVert x_i - x_j \rVert^2 / 2 s^2},
              \quad H = I - \tfrac1m \mathbf 1 \mathbf 1^\top

    with :math:`L` the same of :math:`y`; 0 for a single pair.

    Args:
        x: ``BS``.
        y: ``BT``.
        bandwidth: :math:`s`.

    Example:
        >>> x = torch.arange(4.0).view(4, 1)
        >>> bool(hsic(x, x) > hsic(x, torch.zeros(4, 1)))
        True
    """
    count = len(x)
    if count < 2:
        return (x.sum() + y.sum()) * 0.0
    # centering one matrix is enough: tr(KHLH) = sum of K times HLH
    of_x, of_y = (torch.exp(-_squares(z) / (2 * bandwidth**2)) for z in (x, y))
    of_y = of_y - of_y.mean(dim=0, keepdim=True)
    of_y = of_y - of_y.mean(dim=1, keepdim=True)
    return (of_x * of_y).sum() / (count - 1)


def _squares(z: torch.Tensor) -> torch.Tensor:
    return (z[:, None] - z[None]).square().sum(dim=-1)
