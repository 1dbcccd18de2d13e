# SPDX-License-Identifier: Apache-2.0
"""Kernel stage: initialize the kernels with the means of a vMF mixture fitted to the encoder's features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vmfseg.engines.stages.runner import say
from vmfseg.handlers.checkpoint import load_tensors, save_tensors
from vmfseg.networks import VMFMixture
from vmfseg.networks.parts import bare_network
from vmfseg.utils.seeds import torch_rng

__all__ = ["KernelStage", "sample_features"]


def sample_features(
    network: torch.nn.Module, loader: Any, device: torch.device, per_image: int = 500, border: int = 3, seed: int = 0
) -> torch.Tensor:
    """Return feature vectors at random positions of every image, ``nF``.

    The encoder is in eval mode; a border of the feature map, where zero padding shows, and zero vectors are left out.

    Args:
        network: with an ``encoder``.
        loader: batches with ``image``.
        device: where the network is.
        per_image: positions of each image.
        border: feature pixels to leave out at each side.
        seed: of the positions.
    """
    encoder: Any = bare_network(network).encoder
    encoder.eval()
    vectors: list[torch.Tensor] = []
    generator = torch_rng(seed, "feature-positions")
    with torch.no_grad():
        for batch in loader:
            features = encoder(batch["image"].to(device)).cpu()
            inner = [slice(border, -border) if size > 4 * border else slice(None) for size in features.shape[2:]]
            features = features[(slice(None), slice(None), *inner)].flatten(2).transpose(1, 2)
            for image in features:
                vectors.append(image[torch.randperm(len(image), generator=generator)[:per_image]])
    stacked = torch.cat(vectors)
    return stacked[stacked.norm(dim=1) > 0]


class KernelStage:
    """Fit a :class:`VMFMixture` to features of source images and put its means into the kernels.

    The paper does not mention this step, every path of the reference code takes it (there on augmented images and
    without a seed).

    Args:
        networks: whose kernels are set; a single one or a list, which get the same kernels.
        loader: batches with ``image``, without augmentation.
        device: where.
        per_image: feature vectors of each image.
        max_vectors: at most so many vectors in all.
        seed: of positions and mixture.
        fingerprint: what else decides the result.
    """

    name = "kernels"

    def __init__(
        self,
        networks: torch.nn.Module | Sequence[torch.nn.Module],
        loader: Any,
        device: str | torch.device = "cpu",
        per_image: int = 500,
        max_vectors: int = 200_000,
        seed: int = 0,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        self.networks = [networks] if isinstance(networks, torch.nn.Module) else list(networks)
        self.loader, self.device, self.seed = loader, torch.device(device), seed
        self.per_image, self.max_vectors = per_image, max_vectors
        own = {"per_image": per_image, "max_vectors": max_vectors, "seed": seed}
        self.fingerprint = {**own, **(fingerprint or {})}

    def run(self, folder: Path, resume: bool) -> Sequence[str]:
        """Fit and write ``kernels.pt``. The stage takes seconds, so there is nothing to resume."""
        kernels = self._kernels()[0]
        vectors = sample_features(self.networks[0], self.loader, self.device, self.per_image, seed=self.seed)
        if len(vectors) > self.max_vectors:
            order = torch.randperm(len(vectors), generator=torch_rng(self.seed, "feature-subset"))
            vectors = vectors[order[: self.max_vectors]]
        mixture = VMFMixture(kernels.num_kernels, float(kernels.kappa), seed=self.seed).fit(vectors)
        found = mixture.log_likelihoods
        result = {"means": mixture.means, "weights": mixture.weights, "log_likelihood": found[-1]}
        save_tensors(folder / "kernels.pt", {**result, "vectors": len(vectors)})
        say(
            f"kernels: {kernels.num_kernels} from {len(vectors)} feature vectors, "
            f"log-likelihood {found[0]:.3f} -> {found[-1]:.3f} in {len(found)} iterations"
        )
        self._set(mixture.means)
        return ["kernels.pt"]

    def load(self, folder: Path) -> None:
        """Take up ``kernels.pt``."""
        self._set(load_tensors(folder / "kernels.pt")["means"])

    def _kernels(self) -> list[Any]:
        return [bare_network(network).kernels for network in self.networks]

    def _set(self, means: torch.Tensor) -> None:
        for kernels in self._kernels():
            kernels.set_kernels(means)
