# SPDX-License-Identifier: Apache-2.0
r"""The network that nnU-Net trained, as a plain definition with the transforms round it.

nnU-Net's 2-D network (``PlainConvUNet``: two convolutions a stage, each with instance norm and leaky ReLU, strided
convolutions down, transposed ones up) is MONAI's ``DynUNet``, weight for weight. Two things differ in form only: the
biases of convolutions before an instance norm, which takes them out again, are left out; and nnU-Net reads a NIfTI file
in the order (z, y, x), so its kernels are transposed for our slices. Where nnU-Net averages over mirrored images,
:class:`MirrorAverage` does.

Preprocessing is nnU-Net's: cut away zeros, subtract the mean of the volume and divide by its deviation, resample the
slices to the planned spacing, pad with zeros to the planned patch. Three things differ: slices are resampled linearly
(there: cubic splines) on a grid that starts at the first pixel, and slices larger than the patch are seen as a whole
(there: in overlapping windows).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

from vmfseg.model import Model
from vmfseg.model.definitions import build_network
from vmfseg.utils import VmfError

__all__ = ["MirrorAverage", "network_definition", "network_state", "planned_model"]


class MirrorAverage(nn.Module):
    r"""Mean of the logits over mirrored images, mirrored back: :math:`\frac1{|G|} \sum_g g^{-1} f(g x)`.

    Shape: ``BCHW`` -> logits ``BNHW``.

    Args:
        network: :math:`f`.
        axes: spatial axes that are mirrored, alone and together; 0 for ``H``, 1 for ``W``.

    Example:
        >>> network = MirrorAverage(nn.Conv2d(1, 2, 3, padding=1))
        >>> x = torch.rand(1, 1, 8, 8)
        >>> torch.allclose(network(x.flip(2)), network(x).flip(2), atol=1e-6)
        True
    """

    def __init__(self, network: nn.Module, axes: Sequence[int] = (0, 1)) -> None:
        super().__init__()
        if not axes or not set(axes) <= {0, 1}:
            raise ValueError(f"axes must be 0, 1 or both, got {list(axes)}. Images have two spatial axes.")
        self.network = network
        choices = product(*((False, True) for _ in axes))
        self.flips = [[2 + a for a, chosen in zip(axes, some, strict=True) if chosen] for some in choices][1:]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of the logits."""
        logits = self.network(x)
        for dims in self.flips:
            logits = logits + self.network(x.flip(dims)).flip(dims)
        mean: torch.Tensor = logits / (1 + len(self.flips))
        return mean


def network_definition(architecture: Mapping[str, Any], channels: int, classes: int) -> dict[str, Any]:
    """Return the definition of a ``DynUNet`` for the ``architecture`` of a plan, axes of the slices swapped.

    Args:
        architecture: of a configuration in ``nnUNetPlans.json``.
        channels: of the images.
        classes: background included.

    Raises:
        VmfError: VMF361 for a network that is no plain U-Net with two convolutions a stage and instance norm.
    """
    name = str(architecture.get("network_class_name", "")).rsplit(".", 1)[-1]
    made = dict(architecture.get("arch_kwargs", {}))
    stages = int(made.get("n_stages", 0))
    found = {
        "network": (name, "PlainConvUNet"),
        "convolutions a stage": (made.get("n_conv_per_stage"), [2] * stages),
        "convolutions a stage up": (made.get("n_conv_per_stage_decoder"), [2] * (stages - 1)),
        "norm": (str(made.get("norm_op")).rsplit(".", 1)[-1], "InstanceNorm2d"),
        "activation": (str(made.get("nonlin")).rsplit(".", 1)[-1], "LeakyReLU"),
    }
    for what, (got, wanted) in found.items():
        if got != wanted:
            raise VmfError(
                "VMF361",
                subject="nnUNetPlans.json",
                rule="nnU-Net's network must be a plain 2-D U-Net to be used outside the package",
                found=f"{what} {got}",
                fix="use nnU-Net's default planner",
            )
    strides = [list(map(int, reversed(step))) for step in made["strides"]]
    return {
        "_target_": "monai.networks.nets.DynUNet",
        "spatial_dims": 2,
        "in_channels": channels,
        "out_channels": classes,
        "kernel_size": [list(map(int, reversed(size))) for size in made["kernel_sizes"]],
        "strides": strides,
        "upsample_kernel_size": strides[1:],
        "filters": [int(width) for width in made["features_per_stage"]],
        "norm_name": ["instance", {"affine": True}],
        "act_name": ["leakyrelu", {"inplace": True, "negative_slope": 0.01}],
        "deep_supervision": False,
        "trans_bias": True,
    }


def network_state(weights: Mapping[str, torch.Tensor], stages: int) -> dict[str, torch.Tensor]:
    """Return the weights of nnU-Net's network by the names of ``DynUNet``, kernels transposed."""
    pairs: dict[str, str] = {}

    def block(theirs: str, ours: str) -> None:
        for k in (0, 1):
            pairs[f"{theirs}.convs.{k}.conv.weight"] = f"{ours}.conv{k + 1}.conv.weight"
            for part in ("weight", "bias"):
                pairs[f"{theirs}.convs.{k}.norm.{part}"] = f"{ours}.norm{k + 1}.{part}"

    downs = ["input_block", *(f"downsamples.{k}" for k in range(stages - 2)), "bottleneck"]
    for stage, ours in enumerate(downs):
        block(f"encoder.stages.{stage}.0", ours)
    for k in range(stages - 1):
        block(f"decoder.stages.{k}", f"upsamples.{k}.conv_block")
        for part in ("weight", "bias"):
            pairs[f"decoder.transpconvs.{k}.{part}"] = f"upsamples.{k}.transp_conv.conv.{part}"
    for part in ("weight", "bias"):
        pairs[f"decoder.seg_layers.{stages - 2}.{part}"] = f"output_block.conv.conv.{part}"
    state = {ours: weights[theirs].float() for theirs, ours in pairs.items()}
    return {name: t.transpose(2, 3).contiguous() if t.ndim == 4 else t for name, t in state.items()}


def planned_model(
    plans: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
    labels: Mapping[int, str],
    mirror: bool = True,
    **about: Any,
) -> tuple[Model, dict[str, torch.Tensor]]:
    """Return the model of a trained 2-D nnU-Net, and its weights.

    Args:
        plans: ``nnUNetPlans.json``.
        weights: of nnU-Net's network.
        labels: class names by value.
        mirror: average over mirrored images.
        about: further attributes of :class:`vmfseg.model.Model`.

    Raises:
        VmfError: VMF361 for a network or slices that are not as here.
    """
    plan = plans["configurations"]["2d"]
    if list(plans["transpose_forward"]) != [0, 1, 2]:
        raise VmfError(
            "VMF361",
            subject="nnUNetPlans.json",
            rule="nnU-Net must slice volumes as vmfseg does, across the axis of the largest spacing",
            found=f"axes in the order {plans['transpose_forward']}",
            fix="check the headers of the data",
        )
    channels = len(plan["normalization_schemes"])
    definition = network_definition(plan["architecture"], channels, len(labels))
    stages = len(definition["filters"])
    state = network_state(weights, stages)
    if mirror:
        definition = {"_target_": "vmfseg.methods.nnunet_network.MirrorAverage", "network": definition}
        state = {f"network.{name}": tensor for name, tensor in state.items()}
    network = build_network(definition, "network").to_empty(device="cpu")
    wrong = network.load_state_dict(state, strict=False)
    # DynUNet names its blocks a second time, in the order of its recursion
    missing = [name for name in wrong.missing_keys if "skip_layers." not in name]
    if missing or wrong.unexpected_keys:
        raise ValueError(f"weights must be those of the plan, got others: {[*missing, *wrong.unexpected_keys][:3]}.")
    height, width = (int(size) for size in reversed(plan["patch_size"]))
    strides = np.array(definition.get("network", definition)["strides"])
    both = {"keys": ["image", "label"], "allow_missing_keys": True}
    preprocessing: list[dict[str, Any]] = [
        {"_target_": "vmfseg.transforms.ToSliceStackd", **both},
        {"_target_": "CropForegroundd", **both, "source_key": "image", "allow_smaller": True},
        {
            "_target_": "NormalizeIntensityd", "keys": "image", "channel_wise": True,
            "nonzero": bool(plan["use_mask_for_norm"][0]),
        },
        {
            "_target_": "vmfseg.transforms.InPlaneSpacingd", **both, "mode": ["bilinear", "nearest"],
            "pixdim": [float(size) for size in reversed(plan["spacing"])],
        },
        {"_target_": "SpatialPadd", **both, "spatial_size": [height, width, -1]},
        {"_target_": "DivisiblePadd", **both, "k": [*strides.prod(axis=0).tolist(), 1]},
    ]  # fmt: skip
    postprocessing = [
        {"_target_": "Activationsd", "keys": "pred", "softmax": True},
        {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
    ]
    model = Model(definition, preprocessing, postprocessing, dict(labels), channels, (height, width), **about)
    return model, dict(network.state_dict())
