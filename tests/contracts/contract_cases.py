# SPDX-License-Identifier: Apache-2.0
"""What every exported network and loss must hold to, as tables. A new export without a row here fails the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vmfseg.losses import (
    ActivationConsistencyLoss,
    CrossPseudoLoss,
    MaskedCrossEntropyLoss,
    MaskedDiceLoss,
    PresenceLoss,
    VMFClusteringLoss,
    VMFLoss,
)
from vmfseg.networks import (
    AssignmentHead,
    BackboneEncoder,
    PresenceHead,
    ReconstructionUNet,
    SegmentationHead,
    VMFComposer,
    VMFEncoder,
    VMFKernels,
    VMFNet,
    VMFParts,
)
from vmfseg.transforms.copy_paste import Pasted

# Exports that are no modules, and the file that tests them.
OTHER_NETWORK_EXPORTS = {
    "VMFMixture": "tests/networks/test_networks_mixture.py",
    "VMFParts": "tests/networks/test_networks_vmf_net.py",
    "network_parts": "tests/networks/test_networks_parts.py",
}


@dataclass(frozen=True)
class Case:
    """One way to build an export, and what to feed it."""

    id: str
    build: Callable[[int], nn.Module]
    inputs: Callable[[int], tuple[Any, ...]]
    dims: tuple[int, ...] = (2, 3)
    kwargs: dict[str, Any] = field(default_factory=dict)


def image(side: int = 16, channels: int = 1) -> Callable[[int], tuple[torch.Tensor]]:
    return lambda dims: (torch.rand(2, channels, *[side] * dims),)


def small_net(**kwargs: Any) -> Callable[[int], nn.Module]:
    return lambda dims: VMFNet(
        **{"spatial_dims": dims, "channels": (4, 6, 8), "num_kernels": 3, "hidden_channels": 4, **kwargs}
    )


def assigned_net(dims: int) -> nn.Module:
    net = small_net(head="assignment")(dims)
    net.head.assign([0, 1, 3])
    return net


def assigned_head(dims: int) -> nn.Module:
    head = AssignmentHead(in_channels=3, out_channels=2)
    head.assign([0, 1, 1])
    return head


def backbone(dims: int) -> nn.Module:
    conv = nn.Conv2d if dims == 2 else nn.Conv3d
    return BackboneEncoder(conv(1, 5, kernel_size=2, stride=2), spatial_dims=dims, probe_size=8)


PARTS = {"return_parts": True}

NETWORKS: dict[str, list[Case]] = {
    "AssignmentHead": [Case("assigned", assigned_head, image(8, 3))],
    "BackboneEncoder": [Case("strided-conv", backbone, image())],
    "PresenceHead": [
        Case("layers", lambda d: PresenceHead(d, 3, 2, num_layers=2, base_channels=4), image(16, 3)),
        Case(
            "on-activations",
            lambda d: PresenceHead.on_activations(3, spatial_dims=d, base_channels=2, num_layers=3),
            image(16, 3),
        ),
        Case(
            "on-masks", lambda d: PresenceHead.on_masks(4, spatial_dims=d, base_channels=2, num_layers=3), image(16, 3)
        ),
    ],
    "ReconstructionUNet": [
        Case("level-1", lambda d: ReconstructionUNet(VMFEncoder(d, channels=(4, 6, 8))), image()),
        Case("level-0", lambda d: ReconstructionUNet(VMFEncoder(d, channels=(4, 6, 8), level=0)), image()),
        Case("bottleneck", lambda d: ReconstructionUNet(VMFEncoder(d, channels=(4, 6, 8), level=2)), image()),
    ],
    "SegmentationHead": [
        Case("stride-2", lambda d: SegmentationHead(d, 3, 4, hidden_channels=4), image(8, 3)),
        Case("stride-1", lambda d: SegmentationHead(d, 3, 4, hidden_channels=4, stride=1), image(8, 3)),
        Case("stride-4", lambda d: SegmentationHead(d, 3, 4, hidden_channels=4, stride=4), image(4, 3)),
        Case("log", lambda d: SegmentationHead(d, 3, 4, hidden_channels=4, log_activations=True), image(8, 3)),
    ],
    "VMFComposer": [
        Case(
            "paper",
            lambda d: VMFComposer(d, feature_channels=5, hidden_channels=4),
            lambda d: (torch.rand(2, 3, *[8] * d), torch.randn(3, 5)),
        ),
        Case(
            "linear",
            lambda d: VMFComposer(d, feature_channels=5, hidden_channels=4, linear=True),
            lambda d: (torch.rand(2, 3, *[8] * d), torch.randn(3, 5)),
        ),
    ],
    "VMFEncoder": [
        Case("level-1", lambda d: VMFEncoder(d, channels=(4, 6, 8)), image()),
        Case("signed", lambda d: VMFEncoder(d, channels=(4, 6, 8), last_activation="none"), image()),
        Case("level-0-two-channels", lambda d: VMFEncoder(d, 2, (4, 6, 8), level=0), image(16, 2)),
        Case("bottleneck", lambda d: VMFEncoder(d, channels=(4, 6), level=1, last_activation="none"), image()),
    ],
    "VMFKernels": [
        Case("paper", lambda d: VMFKernels(5, 3), lambda d: (torch.randn(2, 5, *[6] * d),)),
        Case("gated", lambda d: VMFKernels(5, 3, threshold=0.0), lambda d: (torch.randn(2, 5, *[6] * d),)),
    ],
    "VMFNet": [
        Case("paper", small_net(), image(), kwargs=PARTS),
        Case(
            "reference-code",
            small_net(threshold=0.0, linear_decoder=True, raw_kernels=True),
            image(),
            kwargs=PARTS,
        ),
        Case("signed", small_net(last_activation="none"), image(), kwargs=PARTS),
        Case("log-activations", small_net(log_activations=True), image(), kwargs=PARTS),
        Case("full-resolution", small_net(level=0), image(), kwargs=PARTS),
        Case("presence-on-masks", small_net(presence="masks", presence_channels=1), image(64), (2,), PARTS),
        Case("presence-on-activations", small_net(presence="activations", presence_channels=1), image(64), (2,), PARTS),
        Case("assignment", assigned_net, image(), kwargs=PARTS),
        Case("two-image-channels", small_net(in_channels=2, out_channels=3), image(16, 2), kwargs=PARTS),
        Case("other-encoder", lambda d: small_net(encoder=backbone(d))(d), image(), kwargs=PARTS),
    ],
}


@dataclass(frozen=True)
class LossCase:
    """One way to build a loss; ``inputs`` gives the arguments and the positions of those that are differentiable."""

    id: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int, torch.dtype], tuple[list[Any], tuple[int, ...]]]


def logits(dims: int, dtype: torch.dtype, channels: int = 4) -> torch.Tensor:
    return torch.randn(2, channels, *[4] * dims, dtype=torch.float64).to(dtype)


def labelled(classes: int = 4) -> Callable[[int, torch.dtype], tuple[list[Any], tuple[int, ...]]]:
    return lambda d, dtype: ([logits(d, dtype), torch.randint(classes, (2, 1, *[4] * d))], (0,))


def partly_annotated(dims: int, dtype: torch.dtype) -> tuple[list[Any], tuple[int, ...]]:
    annotated = torch.tensor([[True, True, False, False], [True, True, True, True]])
    label = torch.randint(4, (2, 1, *[4] * dims))
    label[0] %= 2
    return [logits(dims, dtype), label, annotated], (0,)


def clustering(dims: int, dtype: torch.dtype) -> tuple[list[Any], tuple[int, ...]]:
    return [logits(dims, dtype, 5), torch.randn(3, 5, dtype=torch.float64).to(dtype)], (1,)


def two_logits(dims: int, dtype: torch.dtype) -> tuple[list[Any], tuple[int, ...]]:
    return [logits(dims, dtype), logits(dims, dtype)], (0,)


def presences(dims: int, dtype: torch.dtype) -> tuple[list[Any], tuple[int, ...]]:
    return [torch.randn(2, 3, dtype=torch.float64).to(dtype), torch.randint(2, (2, 3))], (0,)


class TwoViews(ActivationConsistencyLoss):
    """The loss of two views as a function of their logits: on the simplex, the mean needs no gradient."""

    def forward(self, first: Any, second: Any) -> torch.Tensor:
        return super().forward([first.softmax(dim=1), second.softmax(dim=1)])


class AllTerms(nn.Module):
    """``VMFLoss`` with every term, as a function of tensors, so that gradcheck can call it."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = VMFLoss({term: 0.5 + k for k, term in enumerate(VMFLoss.TERMS)})

    def forward(
        self,
        scores: Any,
        features: Any,
        kernels: Any,
        reconstruction: Any,
        presence: Any,
        image: Any,
        label: Any,
        truth: Any,
        partner: Any,
    ) -> torch.Tensor:
        parts = VMFParts(scores, features, torch.empty(0), kernels, reconstruction, presence)
        half = (torch.arange(label.numel()).view(label.shape) % 2).to(scores.dtype)
        extra = {"pasted": Pasted(label, half, 1 - half), "views": [partner.softmax(1), scores.softmax(1)]}
        terms = self.loss(parts, {"image": image, "label": label, "presence": truth, "partner": partner, **extra})
        assert set(terms) == set(VMFLoss.TERMS)
        return torch.stack([term.double() for term in terms.values()]).sum()


def all_terms(dims: int, dtype: torch.dtype) -> tuple[list[Any], tuple[int, ...]]:
    (features, kernels), _ = clustering(dims, dtype)
    (presence, truth), _ = presences(dims, dtype)
    label = torch.randint(4, (2, 1, *[4] * dims))
    scores, partner = logits(dims, dtype), logits(dims, dtype)
    reconstruction, picture = logits(dims, dtype, 1), logits(dims, dtype, 1)
    return [scores, features, kernels, reconstruction, presence, picture, label, truth, partner], (0, 2, 3, 4)


def both_logits(dims: int, dtype: torch.dtype) -> tuple[list[Any], tuple[int, ...]]:
    return [logits(dims, dtype), logits(dims, dtype)], (0, 1)


LOSSES: dict[str, list[LossCase]] = {
    "ActivationConsistencyLoss": [LossCase("two-views", TwoViews, both_logits)],
    "CrossPseudoLoss": [
        LossCase("threshold", CrossPseudoLoss, two_logits),
        LossCase("argmax", lambda: CrossPseudoLoss("argmax", squared_pred=False), two_logits),
    ],
    "MaskedCrossEntropyLoss": [
        LossCase("logits", MaskedCrossEntropyLoss, labelled()),
        LossCase("weighted", lambda: MaskedCrossEntropyLoss(class_weights=[0.1, 1.0, 2.0, 3.0]), labelled()),
        LossCase("probabilities", lambda: MaskedCrossEntropyLoss("probabilities"), labelled()),
        LossCase("partly-annotated", MaskedCrossEntropyLoss, partly_annotated),
    ],
    "MaskedDiceLoss": [
        LossCase("paper", MaskedDiceLoss, labelled()),
        LossCase("reference-code", lambda: MaskedDiceLoss(squared_pred=False), labelled()),
        LossCase("softmax", lambda: MaskedDiceLoss(softmax=True), labelled()),
        LossCase("partly-annotated", MaskedDiceLoss, partly_annotated),
        LossCase("only-background", MaskedDiceLoss, labelled(1)),
    ],
    "PresenceLoss": [
        LossCase("l1", PresenceLoss, presences),
        LossCase("bce", lambda: PresenceLoss("bce"), presences),
        LossCase("balanced", lambda: PresenceLoss("balanced"), presences),
    ],
    "VMFClusteringLoss": [
        LossCase("paper", VMFClusteringLoss, clustering),
        LossCase("reference-code", lambda: VMFClusteringLoss("sum", one_minus=True), clustering),
        LossCase("none", lambda: VMFClusteringLoss("none"), clustering),
    ],
    "VMFLoss": [LossCase("every-term", AllTerms, all_terms)],
}


def tensors(output: Any) -> list[torch.Tensor]:
    """Return the tensors of whatever a module returned."""
    if isinstance(output, torch.Tensor):
        return [output]
    return [value for value in output if value is not None]
