# SPDX-License-Identifier: Apache-2.0
"""Numbers of the paper and the reference code that the networks must give: groups 1 to 5 of the specification."""

import numpy as np
import pytest
import torch

from vmfseg.losses import VMFClusteringLoss
from vmfseg.networks import (
    PresenceHead,
    ReconstructionUNet,
    SegmentationHead,
    VMFComposer,
    VMFEncoder,
    VMFKernels,
    VMFMixture,
    VMFNet,
)

# group 1 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        pytest.param(VMFEncoder, 17_155_200, id="encoder"),
        pytest.param(ReconstructionUNet, 17_266_241, id="pre-training-unet"),
        pytest.param(SegmentationHead, 134_980, id="segmentation-head"),
        pytest.param(VMFComposer, 164_737, id="decoder"),
        pytest.param(lambda: VMFComposer(linear=True), 164_225, id="linear-decoder"),
        pytest.param(VMFKernels, 768, id="kernels"),
        pytest.param(VMFNet, 17_455_685, id="vmfnet"),
        pytest.param(lambda: VMFNet(linear_decoder=True), 17_455_173, id="vmfnet-linear-decoder"),
        pytest.param(lambda: VMFNet(reconstruct=False), 17_290_948, id="vmfpseudo-one-network"),
        pytest.param(PresenceHead.on_activations, 766_449, id="presence-on-activations-16"),
        pytest.param(lambda: PresenceHead.on_activations(base_channels=32), 2_925_505, id="presence-on-activations-32"),
        pytest.param(PresenceHead.on_masks, 11_443_683, id="presence-on-masks"),
        pytest.param(lambda: VMFNet(reconstruct=False, presence="masks"), 28_734_631, id="vmfweak-three-outputs"),
    ],
)
def test_parameter_counts_to_the_digit(build, expected):
    with torch.device("meta"):
        assert sum(p.numel() for p in build().parameters()) == expected


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("downs.0", 37_824),
        ("downs.1", 221_952),
        ("downs.2", 886_272),
        ("downs.3", 3_542_016),
        ("downs.4", 4_721_664),
        ("ups.0", 5_900_544),
        ("ups.1", 1_475_712),
        ("ups.2", 369_216),
    ],
)
def test_parameter_counts_of_every_stage(block, expected):
    with torch.device("meta"):
        assert sum(p.numel() for p in VMFEncoder().get_submodule(block).parameters()) == expected


def test_the_stages_that_only_pre_training_has():
    with torch.device("meta"):
        unet = ReconstructionUNet()
        assert sum(p.numel() for p in unet.ups.parameters()) == 110_976
        assert sum(p.numel() for p in unet.out.parameters()) == 65


# group 2 ------------------------------------------------------------------------------------------------------------


def test_shapes_and_ranges_at_the_papers_size():
    net = VMFNet().eval()
    with torch.no_grad():
        parts = net(torch.rand(2, 1, 288, 288), return_parts=True)
    assert parts.features.shape == (2, 64, 144, 144)
    assert parts.features.min() >= 0
    assert parts.activations.shape == (2, 12, 144, 144)
    assert parts.kernels.shape == (12, 64)
    assert parts.logits.shape == (2, 4, 288, 288)
    masks = parts.logits.sigmoid()
    assert masks.min() > 0
    assert masks.max() < 1
    assert parts.reconstruction.shape == (2, 1, 288, 288)


# group 3 ------------------------------------------------------------------------------------------------------------


def layer_with_cosines(cosines, threshold=0.0):
    """Return kernels in the plane whose cosines with the feature (1, 0) are given."""
    layer = VMFKernels(2, len(cosines), threshold=threshold)
    layer.set_kernels(torch.tensor([[c, (1 - c * c) ** 0.5] for c in cosines]))
    return layer


ALONG_X = torch.tensor([5.0, 0.0]).view(1, 2, 1, 1)


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "float16-autocast"])
def test_gated_activations_of_known_cosines(autocast):
    layer = layer_with_cosines([1.0, 0.5, -0.2, 0.0])
    with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
        weights = layer(ALONG_X).flatten()
    assert weights[0].item() == pytest.approx(0.9999997, abs=5e-8)
    assert weights[1].item() == pytest.approx(3.06e-7, rel=1e-3)
    assert weights[2:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_a_position_whose_cosines_are_all_negative_is_zero_and_so_is_its_gradient(dtype):
    layer = layer_with_cosines([-0.1, -0.5, -1.0])
    feature = ALONG_X.clone().to(dtype).requires_grad_()
    weights = layer(feature)
    assert weights.flatten().tolist() == [0.0, 0.0, 0.0]
    weights.sum().backward()
    assert feature.grad.abs().max() == 0
    assert layer.weight.grad.abs().max() == 0


def test_the_overflow_that_the_reference_form_has_in_float16():
    assert torch.isinf(torch.exp(torch.tensor(30.0, dtype=torch.float16)))
    weights = layer_with_cosines([1.0, 0.999, -1.0], threshold=None)(ALONG_X.half())
    expected = np.exp(30 * np.array([1.0, 0.999, -1.0]))
    np.testing.assert_allclose(weights.detach().flatten().float(), expected / expected.sum(), atol=1e-3)


# group 4 ------------------------------------------------------------------------------------------------------------


def naive_activations(features, weight, kappa, threshold):
    """The reference's steps in float64, position by position: normalize, cosine, exp, mask, L1."""
    out = np.zeros((features.shape[0], weight.shape[0], *features.shape[2:]))
    for b, *position in np.ndindex(features.shape[0], *features.shape[2:]):
        z = features[(b, slice(None), *position)].astype(np.float64)
        norm = np.sqrt((z**2).sum())
        z = z / (norm if norm > 0 else 1.0)
        mu = weight.astype(np.float64) / np.sqrt((weight.astype(np.float64) ** 2).sum(1, keepdims=True))
        cosine = mu @ z
        a = np.where(cosine > threshold, np.exp(kappa * cosine), 0.0)
        out[(b, slice(None), *position)] = a / max(a.sum(), 1e-12)
    return out


@pytest.mark.parametrize("size", [(5, 4), (3, 2, 4)], ids=["2d", "3d"])
@pytest.mark.parametrize("threshold", [None, 0.0, 0.2])
@pytest.mark.parametrize("sign", ["signed", "relu"])
def test_activations_equal_the_naive_loop(size, threshold, sign):
    layer = VMFKernels(6, 4, threshold=threshold)
    features = torch.randn(2, 6, *size)
    features = features.relu() if sign == "relu" else features
    features[0, :, 0, 0] = 0
    with torch.no_grad():
        layer.weight.mul_(torch.tensor([[0.1], [1.0], [3.0], [20.0]]))
        actual = layer(features).numpy()
    expected = naive_activations(features.numpy(), layer.weight.detach().numpy(), 30.0, threshold or 0.0)
    if threshold is None:
        expected = naive_activations(features.numpy(), layer.weight.detach().numpy(), 30.0, -2.0)
    np.testing.assert_allclose(actual, expected, atol=2e-5)


@pytest.mark.parametrize("threshold", [None, 0.0])
def test_activations_sum_to_one_wherever_a_kernel_is_active(threshold):
    layer = VMFKernels(3, 4, threshold=threshold)
    features = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        total, cosine = layer(features).sum(dim=1), layer.cosine(features)
    active = (cosine > 0).any(dim=1) if threshold == 0.0 else torch.ones_like(total, dtype=torch.bool)
    assert active.any()
    np.testing.assert_allclose(total[active], 1.0, atol=1e-5)
    assert total[~active].abs().sum() == 0
    if threshold == 0.0:
        assert (~active).any()


# group 5 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [False, True], ids=["unit-kernels", "raw-kernels"])
def test_what_scaling_the_kernels_changes(raw):
    net = VMFNet(channels=(4, 6, 8), num_kernels=3, hidden_channels=4, raw_kernels=raw).eval()
    image = torch.rand(2, 1, 16, 16)
    clustering = VMFClusteringLoss()
    with torch.no_grad():
        before = net(image, return_parts=True)
        loss_before = clustering(before.features, net.kernels.weight)
        net.kernels.weight.mul_(torch.tensor([[0.2], [3.0], [50.0]]))
        after = net(image, return_parts=True)
        loss_after = clustering(after.features, net.kernels.weight)
    torch.testing.assert_close(after.activations, before.activations, atol=1e-5, rtol=0)
    torch.testing.assert_close(after.logits, before.logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(loss_after, loss_before)
    change = (after.reconstruction - before.reconstruction).abs().max()
    assert change > 1e-2 if raw else change < 1e-5


def test_kernels_from_a_mixture_give_the_mixtures_responsibilities_of_equal_weights():
    vectors = torch.randn(300, 5).relu() + 0.01
    mixture = VMFMixture(num_kernels=4, kappa=12.0).fit(vectors)
    layer = VMFKernels.from_mixture(mixture)
    assert float(layer.kappa) == 12.0
    mixture.weights = torch.full((4,), 0.25)
    weights = layer(vectors.t().reshape(1, 5, 300, 1)).detach()[0, :, :, 0].t()
    torch.testing.assert_close(weights, mixture.predict_proba(vectors), atol=1e-5, rtol=0)
