# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch

from vmfseg.networks import AssignmentHead, PresenceHead, SegmentationHead, VMFComposer, VMFEncoder
from vmfseg.networks.blocks import DoubleConv, initialize_weights
from vmfseg.networks.heads import KernelPresenceHead


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("dims", [2, 3])
def test_segmentation_head_returns_to_image_size(stride, dims):
    head = SegmentationHead(dims, 3, 5, hidden_channels=4, stride=stride)
    assert head(torch.rand(2, 3, *[4] * dims)).shape == (2, 5, *[4 * stride] * dims)


def test_segmentation_head_returns_logits_not_probabilities():
    logits = SegmentationHead(in_channels=3, out_channels=4, hidden_channels=8)(torch.rand(2, 3, 8, 8))
    assert logits.min() < 0
    assert logits.abs().max() > 1e-3


def test_a_head_of_log_activations_is_a_head_behind_a_logarithm():
    torch.manual_seed(0)
    plain = SegmentationHead(in_channels=3, hidden_channels=8).eval()
    log = SegmentationHead(in_channels=3, hidden_channels=8, log_activations=True).eval()
    log.load_state_dict(plain.state_dict())
    activations = torch.rand(2, 3, 8, 8).softmax(dim=1)
    torch.testing.assert_close(log(activations), plain(activations.log()))
    gated = torch.zeros(1, 3, 8, 8)
    gated[:, 0] = 1
    assert log(gated).isfinite().all()


def test_a_head_of_log_activations_still_teaches_the_encoder_where_one_kernel_takes_all():
    torch.manual_seed(0)
    reached = {}
    for logarithm in (False, True):
        scores = torch.zeros(1, 3, 8, 8)
        scores[:, 0] = 10  # the winner has all but 1e-4
        scores.requires_grad_()
        head = SegmentationHead(in_channels=3, hidden_channels=8, log_activations=logarithm).eval()
        head(scores.softmax(dim=1)).square().sum().backward()
        reached[logarithm] = float(scores.grad.abs().mean())
    assert reached[True] > 100 * reached[False]


def test_assignment_adds_the_activations_of_a_class():
    head = AssignmentHead(in_channels=4, out_channels=3, stride=1)
    head.assign([0, 2, 1, 2])
    activations = torch.rand(2, 4, 5, 5).softmax(dim=1)
    scores = head(activations).sigmoid()
    expected = torch.stack([activations[:, 0], activations[:, 2], activations[:, 1] + activations[:, 3]], dim=1)
    torch.testing.assert_close(scores, expected)


def test_every_kernel_starts_as_background_and_the_assignment_is_saved():
    head = AssignmentHead(in_channels=3, out_channels=2)
    assert head(torch.rand(1, 3, 4, 4).softmax(dim=1)).argmax(dim=1).unique().tolist() == [0]
    head.assign([1, 1, 0])
    other = AssignmentHead(in_channels=3, out_channels=2)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.matrix, torch.tensor([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]))


@pytest.mark.parametrize("classes", [[0, 1], [0, 1, 2], [0, -1, 1], [0, 1, 1, 1]])
def test_bad_assignments_are_refused(classes):
    head = AssignmentHead(in_channels=3, out_channels=2)
    with pytest.raises(ValueError, match=r"classes must be 3 numbers from 0 to 1, got \[.*\]\. Give every kernel"):
        head.assign(classes)


@pytest.mark.parametrize(("size", "layers"), [(144, 5), (288, 6)])
def test_pooling_changes_nothing_at_the_papers_sizes(size, layers):
    head = PresenceHead(in_channels=2, num_layers=layers, base_channels=1).eval()
    maps = head.layers(torch.rand(1, 2, size, size))
    assert maps.shape[2:] == (4, 4)
    torch.testing.assert_close(head.pool(maps), maps)


@pytest.mark.parametrize("size", [(32, 32), (96, 40), (100, 33)])
def test_presence_head_takes_any_size(size):
    assert PresenceHead(in_channels=3, out_channels=2, base_channels=2)(torch.rand(2, 3, *size)).shape == (2, 2)


def test_both_places_of_the_presence_head():
    assert PresenceHead.on_activations(5)(torch.rand(2, 5, 64, 64)).shape == (2, 1)
    on_masks = PresenceHead.on_masks(5, base_channels=2)
    assert on_masks(torch.rand(2, 4, 64, 64)).shape == (2, 4)
    widths = [m.out_channels for m in on_masks.layers if isinstance(m, torch.nn.Conv2d)]
    assert widths == [2, 4, 8, 16, 32, 64]


def test_presence_is_linear_at_the_end():
    head = PresenceHead(in_channels=2, out_channels=3, num_layers=2, base_channels=2).eval()
    assert [type(m) for m in head.linear] == [torch.nn.Linear, torch.nn.Linear]


@pytest.mark.parametrize("name", ["num_layers", "base_channels", "out_channels"])
def test_bad_presence_arguments_are_named(name):
    with pytest.raises(ValueError, match=rf"{name}.* must be at least 1, got .*0.*\. The paper has"):
        PresenceHead(**{name: 0})


def test_presence_refuses_images_that_would_vanish():
    with pytest.raises(
        ValueError, match=r"input size must be at least 32, got \(31, 64\)\. Use larger images or fewer"
    ):
        PresenceHead(in_channels=3)(torch.rand(1, 3, 31, 64))


@pytest.mark.parametrize("head", [SegmentationHead, AssignmentHead, PresenceHead])
def test_wrong_channel_counts_are_refused(head):
    with pytest.raises(ValueError, match=r"input must have shape \(B, 12, H, W\), got \(1, 11, 64, 64\)\. Check"):
        head()(torch.rand(1, 11, 64, 64))


@pytest.mark.parametrize("stride", [0, 3, -2])
@pytest.mark.parametrize("head", [SegmentationHead, VMFComposer])
def test_bad_strides_are_named(head, stride):
    with pytest.raises(ValueError, match=rf"stride must be a power of two, got {stride}\. It is image size over"):
        head(stride=stride)


@pytest.mark.parametrize("dims", [2, 3])
def test_composing_is_the_weighted_sum_of_kernels(dims):
    composer = VMFComposer(dims, feature_channels=5, hidden_channels=2)
    activations, kernels = torch.rand(2, 3, *[4] * dims), torch.randn(3, 5)
    expected = np.einsum("bj...,jf->bf...", activations.numpy(), kernels.numpy())
    np.testing.assert_allclose(composer.compose(activations, kernels), expected, atol=1e-5)


def test_the_linear_decoder_is_affine_and_the_papers_is_not():
    a, b, kernels = torch.rand(1, 3, 6, 6), torch.rand(1, 3, 6, 6), torch.randn(3, 5)
    for linear in (True, False):
        composer = VMFComposer(feature_channels=5, hidden_channels=4, linear=linear).eval()
        zero = composer(torch.zeros_like(a), kernels)
        whole = composer(a + b, kernels) - zero
        parts = (composer(a, kernels) - zero) + (composer(b, kernels) - zero)
        assert torch.allclose(whole, parts, atol=1e-5) == linear


@pytest.mark.parametrize(
    ("activations", "kernels", "message"),
    [
        ((1, 3, 4, 4), (2, 5), r"activations must have shape \(B, 2, H, W\), got \(1, 3, 4, 4\)\. Check"),
        ((1, 3, 4, 4), (3, 5, 1, 1), r"kernels must have shape \(J, F\), got \(3, 5, 1, 1\)\. Pass unit_kernels"),
    ],
)
def test_bad_parts_are_refused_by_the_composer(activations, kernels, message):
    with pytest.raises(ValueError, match=message):
        VMFComposer(feature_channels=5, hidden_channels=2)(torch.rand(activations), torch.rand(kernels))


def test_initialization_is_that_of_the_reference():
    block = DoubleConv(2, 64, 64, 64).apply(initialize_weights)
    conv, norm = block[0], block[1]
    assert conv.bias.abs().max() == 0
    fan = 64 * 9
    assert conv.weight.std().item() == pytest.approx((2 / (fan + fan)) ** 0.5, rel=0.02)
    assert norm.weight.unique().tolist() == [1.0]
    assert norm.bias.unique().tolist() == [0.0]


def test_the_logit_of_a_tile_is_that_of_its_largest_tenth():
    head = KernelPresenceHead(num_kernels=3, out_channels=2, tile=10, stride=2)  # 5 x 5 positions a tile
    with torch.no_grad():
        head.degree.copy_(torch.randn(2, 3, generator=torch.Generator().manual_seed(1)))
    a = torch.rand(2, 3, 10, 15, generator=torch.Generator().manual_seed(0)).softmax(1)
    found = head(a)
    assert found.shape == (2, 2, 2, 3)
    degree = 1 / (1 + np.exp(-head.degree.detach().numpy()))
    for b in range(2):
        for k in range(2):
            for i in range(2):
                for j in range(3):
                    tile = a[b, :, 5 * i : 5 * i + 5, 5 * j : 5 * j + 5].numpy()
                    s = np.sort(np.einsum("j,jhw->hw", degree[k], tile).ravel())
                    assert float(found[b, k, i, j].detach()) == pytest.approx(8 * (s[-2:].mean() - 0.4), abs=1e-4)
    assert KernelPresenceHead(3, tile=0)(a).shape == (2, 1)
    with pytest.raises(ValueError, match="tile must be a multiple of the stride 2"):
        KernelPresenceHead(3, tile=5, stride=2)


def test_position_follows_the_unit_features_and_only_there():
    plain, placed = (VMFEncoder(channels=(4, 8, 8), level=0, position=weight).eval() for weight in (0.0, 0.5))
    placed.load_state_dict(plain.state_dict())
    x = torch.rand(1, 1, 8, 12)
    with torch.no_grad():
        features, found = plain(x)[0].numpy(), placed(x)[0].numpy()
    assert (plain.feature_channels, placed.feature_channels) == (4, 6)
    np.testing.assert_allclose(found[:4], features / np.linalg.norm(features, axis=0), atol=1e-5)
    np.testing.assert_allclose(found[4, :, 3], 0.5 * np.linspace(-1, 1, 8), atol=1e-6)
    np.testing.assert_allclose(found[5, 2], 0.5 * np.linspace(-1, 1, 12), atol=1e-6)
