# SPDX-License-Identifier: Apache-2.0
"""The feature extractor of the paper: a U-Net cut before its last up-stage, and an adapter for any other backbone."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from vmfseg.utils.checks import check_channels, check_divisible

from .blocks import DoubleConv, eager, initialize_weights, max_pool
from .mix_style import MixStyle

__all__ = ["BackboneEncoder", "UpBlock", "VMFEncoder", "append_position"]


class UpBlock(nn.Module):
    r"""Double the size (linear, aligned corners), concatenate [skip, up], double convolution of half the width.

    Shape: ``x`` ``B i hw[d]`` and ``skip`` ``B s HW[D]`` -> ``B o HW[D]``.
    """

    def __init__(
        self, spatial_dims: int, in_channels: int, skip_channels: int, out_channels: int, last_activation: str = "relu"
    ) -> None:
        super().__init__()
        total = in_channels + skip_channels
        self.mode = "bilinear" if spatial_dims == 2 else "trilinear"
        self.conv = DoubleConv(spatial_dims, total, total // 2, out_channels, last_activation=last_activation)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        """Return the merged maps at the skip's resolution."""
        up = F.interpolate(x, scale_factor=2.0, mode=self.mode, align_corners=True)
        merged: torch.Tensor = self.conv(torch.cat([skip, up], dim=1))
        return merged


def append_position(features: torch.Tensor, weight: float) -> torch.Tensor:
    r"""Append the position of each feature, so that kernels know where they are as well as what they see.

    :math:`z'_p = [\, z_p / \lVert z_p \rVert, \; \lambda\, u_p \,]` with :math:`u_p \in [-1, 1]^d` the place in the
    image, rows first: for :math:`\lambda = 1` appearance and position count alike at the rim. Scans are planned with
    the organ near the middle, and blood of the ventricles looks like blood of the great vessels.

    Shape: ``BFhw[d]`` -> ``B(F + dims)hw[d]``.

    Args:
        features: any.
        weight: :math:`\lambda`.

    Example:
        >>> append_position(torch.tensor([3.0, 4.0]).view(1, 2, 1, 1).expand(1, 2, 1, 3), 0.5)[0, :, 0, 2]
        tensor([0.6000, 0.8000, 0.0000, 0.5000])
    """
    sizes = features.shape[2:]
    places: list[torch.Tensor] = []
    for k, size in enumerate(sizes):
        line = torch.linspace(-1.0, 1.0, size, device=features.device) if size > 1 else torch.zeros(1).to(features)
        shape = [1] * (len(sizes) + 2)
        shape[k + 2] = size
        places.append(line.to(features.dtype).reshape(shape).expand([features.shape[0], 1] + list(sizes)))  # noqa: RUF005
    return torch.cat([F.normalize(features, dim=1), weight * torch.cat(places, dim=1)], dim=1)


class VMFEncoder(nn.Module):
    r"""Feature extractor :math:`F_\psi`: a U-Net without its last up-stage and output layer.

    With widths :math:`c_0, \dots, c_n` the way down is :math:`x_0 = DC(X)`, :math:`x_k = DC(\text{pool}(x_{k-1}))`; the
    way up is :math:`y_k = DC([x_k, \text{up}(y_{k+1})])` from :math:`y_n = x_n` to the feature level :math:`l`, and the
    features are :math:`Z = y_l`. The paper's is ``channels=(64, 128, 256, 512, 512)``, ``level=1``: 64 features at half
    the image size, 17 155 200 parameters (Liu et al. 2023, section IV-B). We leave out the last up-stage that the
    reference code computes and never uses.

    Shape: ``BCHW[D]`` -> ``BFhw[d]`` with ``h = H / 2**level``.

    Args:
        spatial_dims: 2 or 3.
        in_channels: ``C``.
        channels: width of each resolution from the finest to the bottleneck.
        level: how often the features are halved against the image; ``len(channels) - 1`` takes the bottleneck.
        last_activation: ``"relu"`` (paper: features lie in one orthant) or ``"none"`` (signed features, which let the
            kernels spread over the whole sphere and train faster).
        position: weight of the position, see :func:`append_position`; 0 leaves it out.
        mix_style: probability of :class:`MixStyle` after the two finest blocks of the way down, in training; 0 leaves
            it out.

    Raises:
        ValueError: wrong arguments; an input with other channels, or whose size is not divisible by the halvings.

    Example:
        >>> encoder = VMFEncoder(channels=(8, 16, 16))
        >>> encoder(torch.zeros(1, 1, 16, 24)).shape, encoder.feature_channels, encoder.stride
        (torch.Size([1, 8, 8, 12]), 8, 2)
        >>> encoder(torch.zeros(1, 1, 18, 24))
        Traceback (most recent call last):
        ValueError: image size (18, 24) must be divisible by 4 because VMFEncoder halves it 2 times; pad to (20, 24).
    """

    def __init__(
        self,
        spatial_dims: int = 2,
        in_channels: int = 1,
        channels: Sequence[int] = (64, 128, 256, 512, 512),
        level: int = 1,
        last_activation: str = "relu",
        position: float = 0.0,
        mix_style: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0.0 <= position < float("inf"):
            raise ValueError(f"position must be a weight of at least 0, got {position}. 0 leaves the position out.")
        if spatial_dims not in (2, 3):
            raise ValueError(f"spatial_dims must be 2 or 3, got {spatial_dims}. Images have HW or HWD.")
        if len(channels) < 2 or any(c < 1 for c in channels):
            raise ValueError(f"channels must be at least two positive widths, got {tuple(channels)}. The paper has 5.")
        if not 0 <= level < len(channels):
            raise ValueError(
                f"level must be between 0 and {len(channels) - 1} for {len(channels)} resolutions, got {level}. "
                "1 is the paper's (half the image size)."
            )
        deepest = len(channels) - 1
        self.spatial_dims, self.in_channels, self.level = spatial_dims, in_channels, level
        self.channels = tuple(int(c) for c in channels)
        self.last_activation = last_activation
        self.divisor = 2**deepest
        self.stride = 2**level
        self.pool = max_pool(spatial_dims)

        def activation(block_level: int) -> str:
            return last_activation if block_level == level else "relu"

        self.downs = nn.ModuleList()
        width = in_channels
        for k, c in enumerate(self.channels):
            ends_here = activation(k) if level == deepest else "relu"
            block = DoubleConv(spatial_dims, width, c, c, last_activation=ends_here)
            if mix_style and k < 2:
                block.append(MixStyle(mix_style))
            self.downs.append(block)
            width = c
        self.ups = nn.ModuleList()
        for k in range(deepest - 1, level - 1, -1):
            out = self.channels[max(k - 1, 0)]
            self.ups.append(UpBlock(spatial_dims, width, self.channels[k], out, activation(k)))
            width = out
        self.position = float(position)
        self.map_channels = width
        self.feature_channels = width + (spatial_dims if position else 0)
        self.apply(initialize_weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features of the images ``x``."""
        features = self.pyramid(x)[0]
        if self.position > 0.0:
            return append_position(features, self.position)
        return features

    def pyramid(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the features without position, then the finer maps of the way down, coarse to fine (for decoders)."""
        if not torch.jit.is_scripting():
            self._check(x)
        skips: list[torch.Tensor] = []
        for k, down in enumerate(self.downs):
            x = down(x if k == 0 else self.pool(x))
            skips.append(x)
        skips.pop()
        for up in self.ups:
            x = up(x, skips.pop())
        skips.reverse()
        return [x] + skips  # noqa: RUF005 - TorchScript

    @torch.jit.unused
    def _check(self, x: torch.Tensor) -> None:
        if not eager():
            return
        check_channels("image", x, self.in_channels, self.spatial_dims)
        reason = f"VMFEncoder halves it {len(self.channels) - 1} times"
        check_divisible("image", x.shape[2:], self.divisor, reason)


class BackboneEncoder(nn.Module):
    """Make any MONAI backbone an encoder: the paper notes that a ResNet, or any layer of it, would do.

    Feature width and stride are read off one pass of a blank image.

    Shape: ``BCHW[D]`` -> ``BFhw[d]``.

    Args:
        backbone: a module from images to a feature map, or to a list of feature maps.
        level: which map of the list to take (0 = first).
        in_channels: channels of the blank image.
        spatial_dims: 2 or 3.
        probe_size: side of the blank image.

    Example:
        >>> from monai.networks.nets import UNet
        >>> unet = UNet(spatial_dims=2, in_channels=1, out_channels=16, channels=(8, 16), strides=(2,))
        >>> encoder = BackboneEncoder(unet)
        >>> encoder.feature_channels, encoder.stride
        (16, 1)
    """

    def __init__(
        self, backbone: nn.Module, level: int = 0, in_channels: int = 1, spatial_dims: int = 2, probe_size: int = 64
    ) -> None:
        super().__init__()
        self.backbone, self.level = backbone, level
        self.in_channels, self.spatial_dims = in_channels, spatial_dims
        was_training = backbone.training
        backbone.eval()
        with torch.no_grad():
            features = self(torch.zeros(1, in_channels, *[probe_size] * spatial_dims))
        backbone.train(was_training)
        strides = {probe_size / max(side, 1) for side in features.shape[2:]}
        if features.ndim != spatial_dims + 2 or len(strides) != 1 or not min(strides).is_integer():
            raise ValueError(
                f"backbone must return features B F with {spatial_dims} spatial axes that divide the image, got shape "
                f"{tuple(features.shape)} for an image of side {probe_size}. Choose another level or backbone."
            )
        self.feature_channels, self.stride = int(features.shape[1]), int(min(strides))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the chosen feature map of ``x``."""
        out = self.backbone(x)
        if isinstance(out, torch.Tensor):
            return out
        if not 0 <= self.level < len(out):
            raise ValueError(
                f"level must be below {len(out)}, the number of maps of the backbone, got {self.level}. Choose one."
            )
        features: torch.Tensor = out[self.level]
        return features
