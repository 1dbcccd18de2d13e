# SPDX-License-Identifier: Apache-2.0
"""Von Mises-Fisher mixture fitted to feature vectors by expectation-maximization, to initialize the kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from vmfseg.utils.checks import check_finite, check_positive
from vmfseg.utils.seeds import torch_rng

from .distribution import log_vmf_normalizer, sample_vmf

__all__ = ["VMFMixture"]

#: How far a start is followed before it is compared with the others.
_TRIAL_ITERATIONS, _TRIAL_TOLERANCE = 30, 1e-3


class VMFMixture:
    r"""Mixture of ``J`` vMF distributions with one fixed concentration, fitted by EM.

    .. math:: p(x) = \sum_{j=1}^{J} \pi_j \, C_F(\kappa) \, e^{\kappa \mu_j^\top x}, \qquad \lVert x \rVert = 1

    E step: :math:`r_{nj} \propto \pi_j e^{\kappa \mu_j^\top x_n}`. M step: :math:`\pi_j = \frac1n \sum_n r_{nj}`,
    :math:`\mu_j = \sum_n r_{nj} x_n / \lVert \sum_n r_{nj} x_n \rVert`. The means start from k-means++ with cosine
    distance: the first vector uniformly, each next one with probability proportional to the squared distance to the
    nearest so far. A component that lost all its vectors is re-seeded where the mixture explains least, or, where that
    would cost likelihood, splits the heaviest one, or, where that would too, stays; so the log-likelihood never
    decreases.

    The reference code keeps a matrix of all pairwise distances (9.3 GiB); here seeding keeps one distance a vector and
    both steps run over batches, so memory grows with n·J only. Everything is seeded: same data, same seed, same bytes.

    Args:
        num_kernels: ``J``.
        kappa: concentration, 30 in the paper.
        max_iterations: of EM.
        tolerance: stop when the mean log-likelihood gains less.
        seed: of the starting means and of :meth:`sample`.
        batch_size: vectors at once in a step; changes memory, not the result.
        seeding_vectors: at most so many randomly chosen vectors take part in the seeding.
        num_starts: seedings that are tried, each with a short EM on those vectors; the likeliest goes on. One start
            alone ends in about every second case with two kernels in one cluster when clusters are as wide as those of
            the paper's kappa; ``1`` is what the reference does.

    Attributes:
        means: ``JF``, unit directions, after :meth:`fit`.
        weights: ``J``, the :math:`\pi_j`.
        log_likelihoods: mean log-likelihood of the data before each M step.

    Example:
        >>> x = torch.cat([torch.tensor([[1.0, 0, 0]]).repeat(50, 1), torch.tensor([[0, 2.0, 0]]).repeat(50, 1)])
        >>> mixture = VMFMixture(num_kernels=2).fit(x)
        >>> sorted(mixture.means.abs().round().tolist()), mixture.weights.tolist()
        ([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], [0.5, 0.5])
    """

    means: torch.Tensor
    weights: torch.Tensor

    def __init__(
        self,
        num_kernels: int = 12,
        kappa: float = 30.0,
        max_iterations: int = 150,
        tolerance: float = 5e-5,
        seed: int = 0,
        batch_size: int = 32768,
        seeding_vectors: int = 50_000,
        num_starts: int = 8,
    ) -> None:
        check_positive("kappa", kappa, "Larger values give tighter clusters.")
        for name, value in (
            ("num_kernels", num_kernels),
            ("max_iterations", max_iterations),
            ("batch_size", batch_size),
            ("seeding_vectors", seeding_vectors),
            ("num_starts", num_starts),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}. The default is a good start.")
        self.num_kernels, self.kappa, self.seed = num_kernels, float(kappa), seed
        self.max_iterations, self.tolerance = max_iterations, tolerance
        self.batch_size, self.seeding_vectors, self.num_starts = batch_size, seeding_vectors, num_starts
        self.log_likelihoods: list[float] = []

    def fit(self, x: torch.Tensor) -> VMFMixture:
        """Fit the mixture to vectors ``x`` (``nF``, any length but zero) and return it.

        Raises:
            ValueError: not a matrix, fewer vectors than kernels, NaN or infinite values, vectors of norm zero.
        """
        x = self._directions(x)
        if x.shape[0] < self.num_kernels:
            raise ValueError(
                f"num_kernels must not exceed the number of vectors, got {self.num_kernels} kernels for {x.shape[0]} "
                "vectors. Use fewer kernels or sample more positions."
            )
        generator = torch_rng(self.seed, "vmf-mixture")
        means, weights = self._start(x, generator)
        means, weights, self.log_likelihoods = self._maximize(x, means, weights, self.max_iterations, self.tolerance)
        self.means, self.weights = means.to(x.dtype), weights.to(x.dtype)
        return self

    def predict_proba(self, x: torch.Tensor) -> torch.Tensor:
        """Return the responsibility of each component for each vector, ``nJ``."""
        fitted = self._fitted()
        parts = [self._joint(batch, *fitted).softmax(dim=1) for batch in self._batches(self._of_same_width(x))]
        return torch.cat(parts).to(self.means.dtype)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Return the most responsible component of each vector, ``n``."""
        return self.predict_proba(x).argmax(dim=1)

    def log_likelihood(self, x: torch.Tensor) -> float:
        """Return the mean log-likelihood of vectors ``x``, normalizer included: comparable over kappa and ``J``."""
        fitted = self._fitted()
        return self._expectation(self._of_same_width(x), *fitted)[2]

    def sample(self, count: int, seed: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw unit vectors from the mixture.

        Args:
            count: how many.
            seed: of the draw; the mixture's own by default.

        Returns:
            The vectors ``count F`` and the component of each, ``count``.
        """
        means, weights = self._fitted()
        generator = torch_rng(self.seed if seed is None else seed, "vmf-sample")
        component = torch.multinomial(weights, count, replacement=True, generator=generator)
        vectors = torch.empty(count, means.shape[1], dtype=self.means.dtype)
        for j in range(self.num_kernels):
            chosen = component == j
            vectors[chosen] = sample_vmf(self.means[j], self.kappa, int(chosen.sum()), generator)
        return vectors, component

    def _fitted(self) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.log_likelihoods:
            raise ValueError("VMFMixture must be fitted before use. Call fit(x) first.")
        return self.means.double(), self.weights.double()

    def _of_same_width(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim != 2 or x.shape[1] != self.means.shape[1]:
            raise ValueError(
                f"x must have shape (n, {self.means.shape[1]}) as in fit, got {tuple(x.shape)}. Use the same encoder."
            )
        return self._directions(x)

    def _directions(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim != 2 or x.shape[1] < 2:
            raise ValueError(
                f"x must have shape (n, F) with F of at least 2, got {tuple(x.shape)}. "
                "Flatten the positions of feature maps to rows."
            )
        x = x.detach().cpu()
        x = x if x.dtype == torch.float64 else x.float()
        check_finite("x", x, "Check the images and the encoder's weights.")
        largest = torch.linalg.vector_norm(x, math.inf, dim=1, keepdim=True)
        zeros = int((largest == 0).sum())
        if zeros:
            raise ValueError(f"x must have no vector of norm zero, got {zeros} of {len(x)}. Leave those positions out.")
        unit: torch.Tensor = x / largest  # first, since squares of very long or short vectors are not representable
        return unit.div_(torch.linalg.vector_norm(unit, dim=1, keepdim=True))

    def _batches(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for batch in x.split(self.batch_size):
            yield batch.double()

    def _start(self, x: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the best of several starts, each improved a little on a part of the vectors."""
        if len(x) > self.seeding_vectors:
            x = x[torch.randperm(len(x), generator=generator)[: self.seeding_vectors]]
        even = torch.full((self.num_kernels,), 1 / self.num_kernels, dtype=torch.float64)
        if self.num_starts == 1:
            return self._seed_means(x, generator), even
        trials = (
            self._maximize(x, self._seed_means(x, generator), even, _TRIAL_ITERATIONS, _TRIAL_TOLERANCE)
            for _ in range(self.num_starts)
        )
        means, weights, _ = max(trials, key=lambda trial: trial[2][-1])
        return means, weights

    def _maximize(
        self, x: torch.Tensor, means: torch.Tensor, weights: torch.Tensor, iterations: int, tolerance: float
    ) -> tuple[torch.Tensor, torch.Tensor, list[float]]:
        """Run EM and return means, weights and the mean log-likelihood before each M step."""
        history: list[float] = []
        for _ in range(iterations):
            mass, sums, likelihood = self._expectation(x, means, weights)
            history.append(likelihood)
            if len(history) > 1 and likelihood - history[-2] < tolerance:
                break
            norms = sums.norm(dim=1, keepdim=True)
            means = torch.where(norms > 1e-12, sums / norms.clamp_min(1e-12), means)
            weights = mass / mass.sum()
            for j in torch.nonzero(mass < 0.5).flatten().tolist():
                means, weights = self._reseed(x, means, weights, j)
        return means, weights, history

    def _seed_means(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        chosen = [int(torch.randint(len(x), (1,), generator=generator))]
        distance = (1 - x @ x[chosen[0]]).clamp_min(0)
        while len(chosen) < self.num_kernels:
            odds = distance.double().square()
            if float(odds.sum()) <= 0:  # fewer distinct directions than kernels
                odds = torch.ones_like(odds)
            chosen.append(int(torch.multinomial(odds, 1, generator=generator)))
            distance = torch.minimum(distance, (1 - x @ x[chosen[-1]]).clamp_min(0))
        return x[chosen].double()

    def _joint(self, batch: torch.Tensor, means: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        constant = log_vmf_normalizer(self.kappa, means.shape[1])
        return self.kappa * (batch @ means.t()) + weights.clamp_min(1e-300).log() + constant

    def _expectation(
        self, x: torch.Tensor, means: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Return the mass of each component (``J``), the weighted sums of vectors (``JF``), the mean log-likelihood."""
        mass, sums = torch.zeros_like(weights), torch.zeros_like(means)
        total = 0.0
        for batch in self._batches(x):
            joint = self._joint(batch, means, weights)
            evidence = joint.logsumexp(dim=1, keepdim=True)
            responsibility = (joint - evidence).exp()
            mass += responsibility.sum(dim=0)
            sums += responsibility.t() @ batch
            total += float(evidence.sum())
        return mass, sums, total / len(x)

    def _reseed(
        self, x: torch.Tensor, means: torch.Tensor, weights: torch.Tensor, j: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give an empty component work without losing likelihood."""
        before = self._expectation(x, means, weights)[2]
        worst, lowest = x[0], math.inf
        for batch in self._batches(x):
            evidence = self._joint(batch, means, weights).logsumexp(dim=1)
            if float(evidence.min()) < lowest:
                lowest, worst = float(evidence.min()), batch[evidence.argmin()]
        moved, share = means.clone(), weights.clone()
        moved[j] = worst
        share[j] = max(1.0 / len(x), float(weights[j]))
        share = share / share.sum()
        if self._expectation(x, moved, share)[2] >= before:
            return moved, share
        heaviest = int(weights.argmax())
        moved, share = means.clone(), weights.clone()
        moved[j] = means[heaviest]
        share[j] = share[heaviest] = (weights[heaviest] + weights[j]) / 2
        after = self._expectation(x, moved, share)[2]
        return (moved, share) if after >= before - 1e-12 * abs(before) else (means, weights)
