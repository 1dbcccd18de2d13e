# SPDX-License-Identifier: Apache-2.0
"""MixStyle: blend the feature statistics of images in a batch while training."""

# no `from __future__ import annotations` here: TorchScript reads the types of forward at run time
import torch
from torch import nn

from vmfseg.utils.seeds import numpy_rng

__all__ = ["MixStyle"]


class MixStyle(nn.Module):
    r"""Give features the mean and deviation of a blend of two images; nothing while evaluating.

    .. math:: y_b = \sigma'_b \frac{x_b - \mu_b}{\sigma_b} + \mu'_b, \qquad
              \mu'_b = \lambda_b \mu_b + (1 - \lambda_b)\, \mu_{\pi(b)}, \quad \lambda_b \sim \mathrm{Beta}(a, a),

    likewise :math:`\sigma'`, with the statistics over space of each image and channel, taken as constants, and a random
    permutation :math:`\pi` of the batch (Zhou et al., ICLR 2021, arXiv:2104.02008). A batch is mixed with probability
    ``prob``. The draws are a function of the number of the batch, a buffer that is saved with the weights: a resumed
    training goes on with the same ones.

    Shape: ``BFhw[d]`` -> ``BFhw[d]``.

    Args:
        prob: probability.
        alpha: :math:`a`; 0.1 makes most blends lopsided.

    Example:
        >>> mix = MixStyle(prob=1.0)
        >>> x = torch.rand(4, 2, 8, 8)
        >>> torch.equal(mix.eval()(x), x), torch.equal(mix.train()(x), x)
        (True, False)
    """

    batches: torch.Tensor

    def __init__(self, prob: float = 0.5, alpha: float = 0.1) -> None:
        super().__init__()
        if not 0.0 <= prob <= 1.0 or not alpha > 0.0:
            raise ValueError(f"prob must be 0 to 1 and alpha positive, got {prob} and {alpha}.")
        self.prob, self.alpha = prob, alpha
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features in blended styles."""
        if torch.jit.is_scripting() or not self.training:
            return x
        return self._mixed(x)

    @torch.jit.unused
    def _mixed(self, x: torch.Tensor) -> torch.Tensor:
        draws = numpy_rng("mixstyle", int(self.batches))
        self.batches += 1
        if draws.random() >= self.prob:
            return x
        axes = list(range(2, x.ndim))
        with torch.no_grad():
            mean = x.mean(dim=axes, keepdim=True)
            deviation = (x.var(dim=axes, keepdim=True, correction=0) + 1e-6).sqrt()
            order = torch.from_numpy(draws.permutation(len(x))).to(x.device)
            share = torch.from_numpy(draws.beta(self.alpha, self.alpha, len(x))).to(x)
            share = share.view(-1, *[1] * (x.ndim - 1))
            new_mean = share * mean + (1 - share) * mean[order]
            new_deviation = share * deviation + (1 - share) * deviation[order]
        return (x - mean) / deviation * new_deviation + new_mean
