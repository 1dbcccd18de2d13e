# SPDX-License-Identifier: Apache-2.0
"""Kernel stage: initialize the kernels with the means of a vMF mixture fitted to the encoder's features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vmfseg.engines.stages.runner import say
from vmfseg.handlers import load_tensors, save_tensors
from vmfseg.networks import VMFMixture
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
    bare: Any = getattr(network, "module", network)
    encoder = bare.encoder
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
    without a seed). ``enabled=False`` leaves the kernels as they were initialized.

    Args:
        networks: whose kernels are set; a single one or a list, which get the same kernels.
        loader: batches with ``image``, without augmentation.
        device: where.
        per_image: feature vectors of each image.
        max_vectors: at most so many vectors in all.
        seed: of positions and mixture.
        enabled: fit at all.
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
        enabled: bool = True,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        self.networks = [networks] if isinstance(networks, torch.nn.Module) else list(networks)
        self.loader, self.device, self.per_image, self.max_vectors = (
            loader,
            torch.device(device),
            per_image,
            max_vectors,
        )
        self.seed, self.enabled = seed, enabled
        self.fingerprint = {
            "per_image": per_image,
            "max_vectors": max_vectors,
            "seed": seed,
            "enabled": enabled,
            **(fingerprint or {}),
        }

    def run(self, folder: Path, resume: bool) -> Sequence[str]:
        """Fit and write ``kernels.pt``. The stage takes seconds, so there is nothing to resume."""
        kernels = self._kernels()[0]
        result: dict[str, Any] = {"means": kernels.weight.detach().cpu().clone()}
        if self.enabled:
            vectors = sample_features(self.networks[0], self.loader, self.device, self.per_image, seed=self.seed)
            if len(vectors) > self.max_vectors:
                order = torch.randperm(len(vectors), generator=torch_rng(self.seed, "feature-subset"))
                vectors = vectors[order[: self.max_vectors]]
            mixture = VMFMixture(kernels.num_kernels, float(kernels.kappa), seed=self.seed).fit(vectors)
            result = {
                "means": mixture.means,
                "weights": mixture.weights,
                "log_likelihood": mixture.log_likelihoods[-1],
                "vectors": len(vectors),
            }
            say(
                f"kernels: {kernels.num_kernels} from {len(vectors)} feature vectors, "
                f"log-likelihood {mixture.log_likelihoods[0]:.3f} -> {mixture.log_likelihoods[-1]:.3f} "
                f"in {len(mixture.log_likelihoods)} iterations"
            )
        save_tensors(folder / "kernels.pt", result)
        self._set(result["means"])
        return ["kernels.pt"]

    def load(self, folder: Path) -> None:
        """Take up ``kernels.pt``."""
        self._set(load_tensors(folder / "kernels.pt")["means"])

    def _kernels(self) -> list[Any]:
        return [getattr(network, "module", network).kernels for network in self.networks]

    def _set(self, means: torch.Tensor) -> None:
        if not self.enabled:  # every network keeps its own
            return
        for kernels in self._kernels():
            kernels.set_kernels(means)
