# SPDX-License-Identifier: Apache-2.0
"""The whole network: encoder, kernels, head, composer and presence head, of which the five settings use some or all."""

# no `from __future__ import annotations` here: TorchScript reads the types of forward at run time
from typing import Optional, Sequence, Union  # noqa: UP035 - TorchScript

import torch
from torch import nn

from vmfseg.utils.checks import check_choice
from vmfseg.utils.seeds import seeded

from .composer import VMFComposer
from .encoder import VMFEncoder
from .heads import AssignmentHead, KernelPresenceHead, PresenceHead, SegmentationHead
from .kernels import VMFKernels
from .parts import VMFParts

__all__ = ["VMFNet"]


class VMFNet(nn.Module):
    r"""Encode, decompose into vMF kernels, segment, recompose: the network of all five settings of the paper.

    .. math:: Z = F_\psi(X), \quad A = \text{softmax}_j(\kappa\,\mu_j^\top z), \quad \hat Y = \sigma(T_\theta(A)),
              \quad \hat X = R_\omega(A\mu), \quad \hat c = T_{\theta_C}(A \text{ or } \hat Y)

    (Eq. 5, 9 and 10 of Liu et al. 2023.) ``VMFNet()`` is the paper's vMFNet for M&Ms: one image channel, four classes
    with the background *first* (the reference puts it last), 12 kernels of 64 channels, kappa 30, 17 455 685 parameters
    (17 455 173 with the reference's linear decoder).

    Shape: ``BCHW[D]`` -> logits ``BNHW[D]``; with ``return_parts=True`` a :class:`VMFParts`. The decoder of the image
    and the presence head run only when parts are asked for.

    Args:
        spatial_dims: 2 or 3.
        in_channels: ``C``.
        out_channels: ``N``, background first.
        channels: widths of the encoder.
        level: feature level of the encoder, see :class:`VMFEncoder`.
        num_kernels: ``J``.
        kappa: concentration.
        threshold: gate of the reference code, see :class:`VMFKernels`.
        last_activation: ``"relu"`` or ``"none"``, see :class:`VMFEncoder`.
        hidden_channels: width of segmentation head and image decoder.
        head: ``"segmentation"`` for a learnt head, ``"assignment"`` for one class a kernel (no parameters).
        log_activations: let the segmentation head read the logarithm of the activations, see :class:`SegmentationHead`.
        reconstruct: build the composer.
        linear_decoder: no batch norm and ReLU in the composer's decoder (reference code).
        raw_kernels: recompose with the raw kernel weights (reference code) instead of unit ones.
        presence: where the presence head sits: ``"none"``, ``"activations"`` (one output: any foreground), ``"masks"``
            (one output for each foreground class) or ``"kernels"`` (:class:`KernelPresenceHead`, any foreground).
        presence_tile: side of the tiles of ``presence="kernels"`` in pixels; 0 for the whole image.
        presence_channels: base width of the presence head; ``0`` takes the paper's.
        position: weight of the position among the features, see :class:`VMFEncoder`.
        encoder: any :class:`FeatureEncoder` instead of the U-Net; ``channels``, ``level``,
            ``last_activation``, ``position`` and ``mix_style`` are then not used.
        seed: of the initial weights, independent of torch's global generator; ``None`` uses that one.
        mix_style: probability of :class:`MixStyle` in the encoder, see :class:`VMFEncoder`.

    Example:
        >>> net = VMFNet(channels=(8, 16, 16), num_kernels=4, hidden_channels=8).eval()
        >>> x = torch.rand(2, 1, 32, 32)
        >>> net(x).shape
        torch.Size([2, 4, 32, 32])
        >>> parts = net(x, return_parts=True)
        >>> parts.activations.shape, parts.reconstruction.shape, parts.presence is None
        (torch.Size([2, 4, 16, 16]), torch.Size([2, 1, 32, 32]), True)
    """

    def __init__(
        self,
        spatial_dims: int = 2,
        in_channels: int = 1,
        out_channels: int = 4,
        channels: Sequence[int] = (64, 128, 256, 512, 512),
        level: int = 1,
        num_kernels: int = 12,
        kappa: float = 30.0,
        threshold: Optional[float] = None,  # noqa: UP045 - TorchScript
        last_activation: str = "relu",
        hidden_channels: int = 64,
        head: str = "segmentation",
        log_activations: bool = False,
        reconstruct: bool = True,
        linear_decoder: bool = False,
        raw_kernels: bool = False,
        presence: str = "none",
        presence_channels: int = 0,
        presence_tile: int = 0,
        position: float = 0.0,
        encoder: Optional[nn.Module] = None,  # noqa: UP045 - TorchScript
        seed: Optional[int] = None,  # noqa: UP045 - TorchScript
        mix_style: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("head", head, ("segmentation", "assignment"))
        check_choice("presence", presence, ("none", "activations", "masks", "kernels"))
        if out_channels < 2:
            raise ValueError(
                f"out_channels must be at least 2 (background and one class), got {out_channels}. Count the background."
            )
        self.out_channels, self.raw_kernels, self.presence_on = out_channels, raw_kernels, presence
        with seeded(seed, "network"):
            if encoder is None:
                encoder = VMFEncoder(spatial_dims, in_channels, channels, level, last_activation, position, mix_style)
            width, stride = _describe(encoder)
            self.encoder = encoder
            self.kernels = VMFKernels(width, num_kernels, kappa, threshold)
            # local names carry the types: TorchScript warns of annotations on `self`
            masks: nn.Module = AssignmentHead(num_kernels, out_channels, stride)
            if head == "segmentation":
                masks = SegmentationHead(
                    spatial_dims, num_kernels, out_channels, hidden_channels, stride, log_activations
                )
            self.head = masks
            composer: Optional[VMFComposer] = None  # noqa: UP045 - TorchScript
            if reconstruct:
                composer = VMFComposer(spatial_dims, width, in_channels, hidden_channels, stride, linear_decoder)
            self.composer = composer
            presence_head: Optional[nn.Module] = None  # noqa: UP045 - TorchScript
            base = {"base_channels": presence_channels} if presence_channels else {}
            if presence == "activations":
                presence_head = PresenceHead.on_activations(num_kernels, spatial_dims=spatial_dims, **base)
            elif presence == "masks":
                presence_head = PresenceHead.on_masks(out_channels, spatial_dims=spatial_dims, **base)
            elif presence == "kernels":
                presence_head = KernelPresenceHead(num_kernels, tile=presence_tile, stride=stride)
            self.presence_head = presence_head

    def forward(self, x: torch.Tensor, return_parts: bool = False) -> Union[torch.Tensor, VMFParts]:  # noqa: UP007
        """Return the logits of ``x``, or all parts."""
        features = self.encoder(x)
        activations = self.kernels(features)
        logits: torch.Tensor = self.head(activations)
        if not return_parts:
            return logits
        unit = self.kernels.unit_kernels()
        reconstruction: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
        if self.composer is not None:
            reconstruction = self.composer(activations, self.kernels.weight if self.raw_kernels else unit)
        presence: Optional[torch.Tensor] = None  # noqa: UP045 - TorchScript
        if self.presence_head is not None:
            if self.presence_on == "masks":
                presence = self.presence_head(torch.sigmoid(logits[:, 1:]))
            else:
                presence = self.presence_head(activations)
        return VMFParts(logits, features, activations, unit, reconstruction, presence)


def _describe(encoder: nn.Module) -> tuple[int, int]:
    width, stride = getattr(encoder, "feature_channels", None), getattr(encoder, "stride", None)
    if not isinstance(width, int) or not isinstance(stride, int):
        raise ValueError(
            f"encoder must have integer attributes feature_channels and stride, got {type(encoder).__name__} without. "
            "Wrap it: BackboneEncoder(encoder)."
        )
    return width, stride
