# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from vmfseg.phantom.tissues import TISSUES
from vmfseg.representation import ActivationSample
from vmfseg.visualize.activations import TISSUE_GROUPS, AnatomyTable, anatomy_table, draw_confusion, order_channels
from vmfseg.visualize.figure_style import png_bytes


def sample(kernels, size=8, stride=2, seed=0):
    rng = np.random.default_rng(seed)
    activations = rng.random((kernels, size, size))
    labels = rng.integers(0, 4, (size * stride, size * stride))
    return ActivationSample(activations / activations.sum(axis=0), labels, f"s{seed}")


@pytest.mark.parametrize("kernels", [1, 5, 12, 33], ids=lambda j: f"J={j}")
def test_table_equals_sums_over_single_pixels(kernels):
    samples = [sample(kernels, seed=seed) for seed in (0, 1)]
    groups = {"LV": [1], "heart": [2, 3]}
    expected = np.zeros((3, kernels))
    for item in samples:
        for (x, y), label in np.ndenumerate(item.labels):
            tissue = {1: 0, 2: 1, 3: 1}.get(int(label), 2)
            expected[tissue] += item.activations[:, x // 2, y // 2] / 4  # a pixel is a quarter of a position
    table = anatomy_table(samples, groups)
    assert table.names == ("LV", "heart", "other")
    np.testing.assert_allclose(table.mass, expected, atol=1e-12)
    np.testing.assert_allclose(table.shares.sum(axis=1), 1)
    assert table.mass.sum() == pytest.approx(2 * 64)


def test_structures_smaller_than_a_position_are_seen():
    labels = np.zeros((8, 8), int)
    labels[0, 0] = 5  # a quarter of one position
    activations = np.stack([np.eye(4), 1 - np.eye(4)])
    table = anatomy_table([ActivationSample(activations, labels, "s")], {"papillaries": (5,), "lung": (2,)})
    assert table.names == ("papillaries", "other")
    assert table.mass[0].tolist() == [0.25, 0.0]


def test_perfect_kernels_get_their_tissue_in_the_order_of_the_table():
    labels = np.repeat(np.repeat(np.arange(4).reshape(2, 2), 4, 0), 4, 1)
    masks = np.stack([labels[::2, ::2] == value for value in (3, 0, 2, 1)]).astype(float)
    table = anatomy_table([ActivationSample(masks, labels, "s")], {"LV": [1], "MYO": [2], "RV": [3]})
    found = order_channels(table)
    assert [(entry.channel, entry.name) for entry in found] == [(3, "LV"), (2, "MYO"), (0, "RV"), (1, "other")]
    assert [entry.dice for entry in found] == pytest.approx([1, 1, 1, 1])


def test_kernels_that_overlap_nothing_come_last_without_name():
    table = AnatomyTable(("LV", "other"), np.array([[1.0, 90.0], [0.5, 900.0]]))
    last = order_channels(table)[-1]
    assert (last.channel, last.name) == (0, "")


@pytest.mark.parametrize("kernels", [1, 7, 40], ids=lambda j: f"J={j}")
def test_every_kernel_is_ordered_once_and_drawn(kernels):
    table = anatomy_table([sample(kernels)], {"LV": [1], "MYO": [2], "RV": [3]})
    order = order_channels(table)
    assert sorted(entry.channel for entry in order) == list(range(kernels))
    figure = draw_confusion(table, order)
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert ticks == [str(entry.channel) for entry in order]
    shown = np.asarray(figure.axes[0].images[0].get_array())
    np.testing.assert_allclose(shown, table.shares[:, [entry.channel for entry in order]])
    assert png_bytes(figure) == png_bytes(draw_confusion(table, order))


def test_groups_hold_every_tissue_of_the_phantom_once():
    codes = [code for group in TISSUE_GROUPS.values() for code in group]
    assert sorted(codes) == sorted(tissue.code for tissue in TISSUES.values())


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        pytest.param([], "samples must be at least one, got none", id="none"),
        pytest.param([sample(3)], "samples must hold one of .*'liver'.*got none of them", id="absent"),
    ],
)
def test_nothing_to_count_is_refused(samples, message):
    with pytest.raises(ValueError, match=message):
        anatomy_table(samples, {"liver": [23]})
