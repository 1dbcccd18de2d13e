# SPDX-License-Identifier: Apache-2.0
"""nnU-Net's network outside its package: the same logits, its plan as transforms, mirrored averages."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from vmfseg.methods.nnunet_network import MirrorAverage, network_definition, network_state, planned_model
from vmfseg.model.definitions import build
from vmfseg.utils import VmfError

LABELS = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}
PYTHON = os.environ.get("VMFSEG_NNUNET_PYTHON") or (sys.executable if importlib.util.find_spec("nnunetv2") else None)
#: As nnU-Net 2.8 writes it, with a slice that is longer than wide.
ARCHITECTURE: dict[str, Any] = {
    "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
    "arch_kwargs": {
        "n_stages": 4, "features_per_stage": [4, 8, 16, 16], "conv_op": "torch.nn.modules.conv.Conv2d",
        "kernel_sizes": [[3, 3]] * 4, "strides": [[1, 1], [2, 2], [2, 2], [2, 1]], "n_conv_per_stage": [2] * 4,
        "n_conv_per_stage_decoder": [2] * 3, "conv_bias": True,
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm2d",
        "norm_op_kwargs": {"eps": 1e-05, "affine": True}, "dropout_op": None, "dropout_op_kwargs": None,
        "nonlin": "torch.nn.LeakyReLU", "nonlin_kwargs": {"inplace": True},
    },
}  # fmt: skip
PLANS: dict[str, Any] = {
    "transpose_forward": [0, 1, 2],
    "configurations": {
        "2d": {
            "architecture": ARCHITECTURE, "patch_size": [32, 24], "spacing": [1.5, 1.25],
            "normalization_schemes": ["ZScoreNormalization"], "use_mask_for_norm": [False],
        }
    },
}  # fmt: skip
#: Runs where the package is: random weights and norms, random slices in nnU-Net's order, its own logits.
PROGRAM = """
import sys, torch
from dynamic_network_architectures.architectures.unet import PlainConvUNet
torch.manual_seed(0)
net = PlainConvUNet(
    1, 4, [4, 8, 16, 16], torch.nn.Conv2d, [[3, 3]] * 4, [[1, 1], [2, 2], [2, 2], [2, 1]], [2] * 4, 4, [2] * 3, True,
    torch.nn.InstanceNorm2d, {"eps": 1e-5, "affine": True}, None, None, torch.nn.LeakyReLU, {"inplace": True}, False,
).eval()
for p in net.parameters():
    torch.nn.init.normal_(p, 0.1, 0.3)
x = torch.randn(2, 1, 32, 24)
with torch.no_grad():
    y = net(x)
torch.save({"weights": net.state_dict(), "x": x, "y": y}, sys.argv[1])
"""


@pytest.mark.skipif(PYTHON is None, reason="nnunetv2 is not installed")
def test_logits_are_those_of_its_own_network(tmp_path):
    subprocess.run([PYTHON, "-c", PROGRAM, str(tmp_path / "out.pt")], check=True, capture_output=True)
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    model, state = planned_model(PLANS, found["weights"], LABELS, mirror=False)
    network = build(model.network, "network").eval()
    network.load_state_dict(state)
    with torch.no_grad():
        ours = network(found["x"].transpose(2, 3)).transpose(2, 3)
    torch.testing.assert_close(ours, found["y"], rtol=1e-4, atol=1e-4)


def weights() -> dict[str, torch.Tensor]:
    """Return random tensors under nnU-Net's names and shapes for the architecture above."""
    widths, strides = [4, 8, 16, 16], ARCHITECTURE["arch_kwargs"]["strides"]
    generator, made = torch.Generator().manual_seed(0), {}

    def block(name: str, width: int, out: int) -> None:
        for k, into in enumerate((width, out)):
            made[f"{name}.convs.{k}.conv.weight"] = torch.randn(out, into, 3, 3, generator=generator)
            made[f"{name}.convs.{k}.conv.bias"] = torch.randn(out, generator=generator)
            for part in ("weight", "bias"):
                made[f"{name}.convs.{k}.norm.{part}"] = torch.randn(out, generator=generator)

    for s, width in enumerate(widths):
        block(f"encoder.stages.{s}.0", widths[s - 1] if s else 1, width)
    for k, s in enumerate(range(3, 0, -1)):
        made[f"decoder.transpconvs.{k}.weight"] = torch.randn(
            widths[s], widths[s - 1], *strides[s], generator=generator
        )
        made[f"decoder.transpconvs.{k}.bias"] = torch.randn(widths[s - 1], generator=generator)
        block(f"decoder.stages.{k}", 2 * widths[s - 1], widths[s - 1])
        made[f"decoder.seg_layers.{k}.weight"] = torch.randn(4, widths[s - 1], 1, 1, generator=generator)
        made[f"decoder.seg_layers.{k}.bias"] = torch.randn(4, generator=generator)
    return made


def test_every_weight_has_its_place_and_kernels_are_transposed():
    given = weights()
    state = network_state(given, 4)
    first = given["encoder.stages.0.0.convs.0.conv.weight"]
    np.testing.assert_array_equal(state["input_block.conv1.conv.weight"], first.numpy().transpose(0, 1, 3, 2))
    used = sum(t.numel() for name, t in given.items() if "seg_layers" not in name or ".2." in name)
    biases = sum(t.numel() for name, t in given.items() if name.endswith("conv.bias"))
    assert sum(t.numel() for t in state.values()) == used - biases  # those that an instance norm takes out again


def test_the_plan_becomes_a_plain_model():
    model, state = planned_model(PLANS, weights(), LABELS)
    assert model.network["_target_"].endswith("MirrorAverage")
    assert model.network["network"]["strides"] == [[1, 1], [2, 2], [2, 2], [1, 2]]
    assert model.image_size == (24, 32)
    steps = {step["_target_"].rsplit(".", 1)[-1]: step for step in model.preprocessing}
    assert steps["InPlaneSpacingd"]["pixdim"] == [1.25, 1.5]
    assert steps["DivisiblePadd"]["k"] == [4, 8, 1]
    network = build(model.network, "network").eval()
    network.load_state_dict(state)
    with torch.no_grad():
        assert network(torch.rand(1, 1, 24, 32)).shape == (1, 4, 24, 32)


def test_mirrored_average_is_the_mean_of_four_by_hand():
    network = torch.nn.Conv2d(1, 2, 3, padding=1)
    x = torch.rand(1, 1, 6, 8)
    with torch.no_grad():
        found = MirrorAverage(network)(x)
        by_hand = [network(x)] + [network(x.flip(d)).flip(d) for d in ((2,), (3,), (2, 3))]
    torch.testing.assert_close(found, torch.stack(by_hand).mean(dim=0))
    with pytest.raises(ValueError, match="axes must be"):
        MirrorAverage(network, axes=[2])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param({"n_conv_per_stage": [3] * 4}, "convolutions a stage", id="depth"),
        pytest.param({"norm_op": "torch.nn.BatchNorm2d"}, "norm BatchNorm2d", id="norm"),
    ],
)
def test_another_network_is_refused(change, found):
    other = {**ARCHITECTURE, "arch_kwargs": {**ARCHITECTURE["arch_kwargs"], **change}}
    with pytest.raises(VmfError, match="VMF361") as caught:
        network_definition(other, 1, 4)
    assert found in caught.value.found


def test_slices_across_another_axis_are_refused():
    with pytest.raises(VmfError, match="VMF361"):
        planned_model({**PLANS, "transpose_forward": [1, 0, 2]}, weights(), LABELS)
