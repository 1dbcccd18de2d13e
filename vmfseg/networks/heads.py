# SPDX-License-Identifier: Apache-2.0
"""Heads on the kernel activations: masks, by a learnt head or by an assignment of kernels, and presence."""

from typing import Sequence  # noqa: UP035 - TorchScript

import torch
from monai.networks.layers.factories import Conv, Norm, Pool
from torch import nn
from torch.nn import functional as F

from vmfseg.utils.checks import check_channels

from .blocks import UpsamplingDecoder, eager, initialize_weights

__all__ = ["AssignmentHead", "KernelPresenceHead", "PresenceHead", "SegmentationHead"]


class SegmentationHead(nn.Module):
    r"""Task network :math:`T_\theta`: from activations to one logit for each class, :math:`\hat Y = T_\theta(Z_{vMF})`.

    A double convolution, a transposed convolution for every halving of the encoder, a double convolution, a 1 × 1
    convolution (Liu et al. 2023, section IV-B): 134 980 parameters for 12 kernels and 4 classes. The paper applies a
    sigmoid to every channel, background included; we return logits and leave that to the loss and the reader.

    With ``log_activations`` it reads :math:`\log Z_{vMF}` (floored at :math:`10^{-6}`). Where one kernel takes all,
    :math:`a_j \to 1`, the derivative of an activation by its cosines is :math:`\kappa a_j (1 - a_j) \to 0` and the
    encoder no longer hears the head; that of the logarithm of a losing one is :math:`\kappa (1 - a_j) \to \kappa`.
    The maps that are shown, recomposed and measured are the activations in either case.

    Shape: ``BJhw[d]`` -> ``BNHW[D]``.

    Args:
        spatial_dims: 2 or 3.
        in_channels: ``J``.
        out_channels: ``N``, background first.
        hidden_channels: width of the head.
        stride: image size over feature size.
        log_activations: read the logarithm of the activations.

    Example:
        >>> SegmentationHead(in_channels=12, out_channels=4, hidden_channels=8)(torch.rand(1, 12, 6, 6)).shape
        torch.Size([1, 4, 12, 12])
    """

    def __init__(
        self,
        spatial_dims: int = 2,
        in_channels: int = 12,
        out_channels: int = 4,
        hidden_channels: int = 64,
        stride: int = 2,
        log_activations: bool = False,
    ) -> None:
        super().__init__()
        self.in_channels, self.log_activations = in_channels, log_activations
        self.decoder = UpsamplingDecoder(spatial_dims, in_channels, out_channels, hidden_channels, stride)
        self.apply(initialize_weights)

    def forward(self, activations: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        if not torch.jit.is_scripting():
            _check(activations, self.in_channels)
        if self.log_activations:
            activations = activations.clamp_min(1e-6).log()
        logits: torch.Tensor = self.decoder(activations)
        return logits


class AssignmentHead(nn.Module):
    r"""Masks without a learnt head: each kernel stands for one class.

    With :math:`c(j)` the class of kernel :math:`j`, :math:`s_n = \sum_{j: c(j)=n} a_j`, upsampled linearly, and the
    logits are :math:`\log s_n - \log \sum_{m \ne n} s_m`, so that a sigmoid gives :math:`s_n` back. This is how the
    un- and weakly supervised settings segment: the assignment is chosen on source slices (:meth:`assign`), never on the
    target. Every kernel starts as background.

    Shape: ``BJhw[d]`` -> ``BNHW[D]``.

    Args:
        in_channels: ``J``.
        out_channels: ``N``, background first.
        stride: image size over feature size.

    Example:
        >>> head = AssignmentHead(in_channels=3, out_channels=2)
        >>> head.assign([0, 1, 1])
        >>> head(torch.tensor([0.2, 0.5, 0.3]).view(1, 3, 1, 1)).sigmoid().flatten(2)[..., 0]
        tensor([[0.2000, 0.8000]])
    """

    matrix: torch.Tensor

    def __init__(self, in_channels: int = 12, out_channels: int = 4, stride: int = 2) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.stride = in_channels, out_channels, stride
        self.register_buffer("matrix", torch.zeros(out_channels, in_channels))
        self.assign([0] * in_channels)

    @torch.jit.unused
    def assign(self, classes: Sequence[int]) -> None:
        """Set the class of every kernel."""
        if len(classes) != self.in_channels or not all(0 <= c < self.out_channels for c in classes):
            raise ValueError(
                f"classes must be {self.in_channels} numbers from 0 to {self.out_channels - 1}, got {list(classes)}. "
                "Give every kernel one class; 0 is background."
            )
        self.matrix.copy_(F.one_hot(torch.tensor(list(classes)), self.out_channels).t())

    def forward(self, activations: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        if not torch.jit.is_scripting():
            _check(activations, self.in_channels)
        # the rest is summed and not taken as 1 - s, which would lose all digits where s is near 1
        weight = torch.cat([self.matrix, 1 - self.matrix]).to(activations.dtype)
        if activations.dim() == 4:
            sums, mode = F.conv2d(activations, weight[:, :, None, None]), "bilinear"
        else:
            sums, mode = F.conv3d(activations, weight[:, :, None, None, None]), "trilinear"
        sums = F.interpolate(sums, scale_factor=float(self.stride), mode=mode, align_corners=False)
        own, rest = sums.clamp_min(1e-6).log().chunk(2, dim=1)
        logits: torch.Tensor = own - rest
        return logits


class PresenceHead(nn.Module):
    r"""Weak classifier :math:`T_{\theta_C}`: which structures are in the image, :math:`\hat c`.

    Layers of convolution (kernel 4, stride 2, padding 1) · batch norm · leaky ReLU 0.2 with doubling width, then two
    linear layers to 16 and to ``out_channels``, no activation at the end: the paper compares it with the label by L1.
    It sits on the activations in the weakly supervised setting (5 layers, one output "heart") and on the predicted
    masks in vMFWeak (6 layers, one output for each class): see :meth:`on_activations` and :meth:`on_masks`. Before the
    linear layers the map is averaged to 4 × 4, which changes nothing at the paper's sizes (144 and 288) and makes the
    head work at any other.

    Shape: ``BiHW[D]`` -> ``BK``.

    Args:
        spatial_dims: 2 or 3.
        in_channels: channels in.
        out_channels: ``K``, how many structures.
        num_layers: halvings.
        base_channels: width of the first layer; doubles at each of the next.

    Example:
        >>> PresenceHead.on_activations(num_kernels=12)(torch.rand(2, 12, 64, 64)).shape
        torch.Size([2, 1])
        >>> PresenceHead.on_masks(num_classes=4, base_channels=4)(torch.rand(2, 3, 96, 96)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        spatial_dims: int = 2,
        in_channels: int = 12,
        out_channels: int = 1,
        num_layers: int = 5,
        base_channels: int = 16,
    ) -> None:
        super().__init__()
        if num_layers < 1 or base_channels < 1 or out_channels < 1:
            raise ValueError(
                "num_layers, base_channels and out_channels must be at least 1, "
                f"got {num_layers}, {base_channels}, {out_channels}. The paper has 5 layers of width 16, one output."
            )
        conv, norm = Conv[Conv.CONV, spatial_dims], Norm[Norm.BATCH, spatial_dims]
        self.in_channels = in_channels
        layers: list[nn.Module] = []
        width = in_channels
        for k in range(num_layers):
            out = base_channels * 2**k
            layers += [conv(width, out, kernel_size=4, stride=2, padding=1), norm(out), nn.LeakyReLU(0.2, inplace=True)]
            width = out
        self.smallest = 2**num_layers
        self.layers = nn.Sequential(*layers)
        self.pool = Pool[Pool.ADAPTIVEAVG, spatial_dims](4)
        self.linear = nn.Sequential(nn.Linear(width * 4**spatial_dims, 16), nn.Linear(16, out_channels))
        self.apply(initialize_weights)

    @classmethod
    def on_activations(cls, num_kernels: int = 12, out_channels: int = 1, **kwargs: int) -> "PresenceHead":
        """Return the head of the weakly supervised setting: 5 layers of width 16 to 256 on the activations."""
        return cls(
            in_channels=num_kernels, out_channels=out_channels, **{"num_layers": 5, "base_channels": 16, **kwargs}
        )

    @classmethod
    def on_masks(cls, num_classes: int = 4, **kwargs: int) -> "PresenceHead":
        """Return the head of vMFWeak: 6 layers of width 32 to 1024 on the foreground masks, one output for each."""
        channels = num_classes - 1
        return cls(in_channels=channels, out_channels=channels, **{"num_layers": 6, "base_channels": 32, **kwargs})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one value for each structure."""
        if not torch.jit.is_scripting():
            _check(x, self.in_channels, self.smallest)
        presence: torch.Tensor = self.linear(torch.flatten(self.pool(self.layers(x)), 1))
        return presence


class KernelPresenceHead(nn.Module):
    r"""Multiple-instance classifier on kernels: does this tile of the image show the structure?

    A kernel belongs to the structure to a degree :math:`w_j = \sigma(\omega_j)`, the map of the structure is
    :math:`s_p = \sum_j w_j a_{jp} \in [0, 1]`, and the logit of a tile :math:`T` is
    :math:`\alpha (\bar s_T - \beta)` with :math:`\bar s_T` the mean of the largest tenth of :math:`s` in the tile. A
    tile without the structure must have no position with a large :math:`s`, one with it needs some: so the kernels, and
    not a classifier behind them, have to tell where it is. The strided classifier of the paper (:class:`PresenceHead`)
    localizes nothing. Tiles are a *stronger* weak label than the paper's, which is one tile, the whole image.

    Shape: ``BJhw`` -> ``BKHW`` with ``H = h * stride / tile``; ``tile = 0`` -> ``BK``.

    Args:
        num_kernels: ``J``.
        out_channels: ``K``, how many structures.
        tile: side of a tile in pixels of the image; 0 for the whole image.
        stride: image size over feature size.

    Example:
        >>> KernelPresenceHead(num_kernels=3, tile=8)(torch.rand(2, 3, 16, 24).softmax(1)).shape
        torch.Size([2, 1, 2, 3])
    """

    def __init__(self, num_kernels: int = 12, out_channels: int = 1, tile: int = 16, stride: int = 1) -> None:
        super().__init__()
        if tile < 0 or tile % stride:
            raise ValueError(f"tile must be a multiple of the stride {stride}, or 0 for the image, got {tile}.")
        self.num_kernels, self.side = num_kernels, tile // stride
        self.degree = nn.Parameter(torch.full((out_channels, num_kernels), -1.0))
        self.scale, self.offset = nn.Parameter(torch.tensor(8.0)), nn.Parameter(torch.tensor(0.4))

    def maps(self, activations: torch.Tensor) -> torch.Tensor:
        """Return the map of each structure, ``BKhw``, from 0 to 1."""
        if not torch.jit.is_scripting():
            _check(activations, self.num_kernels)
        return F.conv2d(activations, torch.sigmoid(self.degree)[:, :, None, None].to(activations.dtype))

    def forward(self, activations: torch.Tensor) -> torch.Tensor:
        """Return one logit for each structure and tile."""
        maps = self.maps(activations)
        batch, structures, height, width = maps.shape
        if self.side == 0:
            tiles = maps.flatten(2)
            return self.scale * (tiles.topk(max(1, tiles.shape[2] // 10), dim=2)[0].mean(dim=2) - self.offset)
        rows, columns = height // self.side, width // self.side
        kept = maps[:, :, : rows * self.side, : columns * self.side]
        tiles = kept.reshape(batch, structures, rows, self.side, columns, self.side).transpose(3, 4).flatten(4)
        return self.scale * (tiles.topk(max(1, tiles.shape[4] // 10), dim=4)[0].mean(dim=4) - self.offset)


@torch.jit.unused
def _check(x: torch.Tensor, channels: int, smallest: int = 1) -> None:
    if eager():
        check_channels("input", x, channels)
        if min(x.shape[2:]) < smallest:
            raise ValueError(
                f"input size must be at least {smallest}, got {tuple(x.shape[2:])}. Use larger images or fewer layers."
            )
