# SPDX-License-Identifier: Apache-2.0
"""A class is scored on the slices where it was annotated, and nowhere else."""

import dataclasses

import numpy as np
import pytest

from vmfseg.metrics import SegmentationScores, evaluate_volume
from vmfseg.metrics.pairing import read_domains
from vmfseg.utils import VmfError

SPACING = (1.25, 1.5, 8.0)
LABELS = {0: "background", 1: "LV", 2: "MYO"}


@pytest.fixture
def maps():
    rng = np.random.default_rng(0)
    truth = np.zeros((20, 18, 6), np.uint8)
    truth[4:12, 4:12], truth[6:9, 6:9] = 2, 1
    pred = np.roll(truth, 1, axis=0)
    pred[rng.random(pred.shape) > 0.97] = 1
    pred[..., 5] = 2  # wrong where nobody annotated
    return pred, truth


def cut(array, keep):
    """Return the label map with each class in its slices only, by plain loops."""
    out = np.zeros_like(array)
    for label, slices in keep.items():
        for z in slices:
            out[..., z][array[..., z] == label] = label
    return out


@pytest.mark.parametrize(
    ("slices", "keep"),
    [
        ("1-3", {1: [1, 2, 3], 2: [1, 2, 3]}),
        ({"1": "1-4", "2": "2"}, {1: [1, 2, 3, 4], 2: [2]}),
        ('{"1": "0", "2": "0-4"}', {1: [0], 2: [0, 1, 2, 3, 4]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_figures_are_those_of_the_annotated_slices(maps, slices, keep, axis):
    expected = evaluate_volume(*(cut(array, keep) for array in maps), SPACING, LABELS)
    moved = [np.moveaxis(array, -1, axis) for array in maps]
    spacing = np.insert(SPACING[:2], axis if axis >= 0 else 2, SPACING[2])
    got = evaluate_volume(*moved, spacing, LABELS, slices=slices, slice_axis=axis)
    for row, true in zip(got, expected, strict=True):
        assert row.assd_mm == pytest.approx(true.assd_mm, rel=1e-12)  # summed in another order
        plain = {"spacing_mm": (), "assd_mm": None}
        assert dataclasses.replace(row, **plain) == dataclasses.replace(true, **plain)
        assert row.dice not in (0.0, 1.0)


def test_all_slices_named_is_as_none_named(maps):
    assert evaluate_volume(*maps, SPACING, LABELS, slices="0-5") == evaluate_volume(*maps, SPACING, LABELS)


def test_a_class_without_an_annotated_slice_is_not_annotated(maps):
    lv, myo = evaluate_volume(*maps, SPACING, LABELS, slices={"1": "1-3", "2": ""})
    assert (lv.status, myo.status, myo.dice, myo.volume_true_ml) == ("scored", "not_annotated", None, None)
    both = evaluate_volume(*maps, SPACING, LABELS, annotated=[2], slices="1-3")
    assert [row.status for row in both] == ["not_annotated", "scored"]


@pytest.mark.parametrize("protocol", ["clean", "paper"])
def test_the_accumulator_takes_slices(maps, protocol):
    keep = {1: [1, 2], 2: [1, 2]}
    got, expected = SegmentationScores(LABELS, protocol), SegmentationScores(LABELS, protocol)
    got.update(*maps, SPACING, "s1", slices="1-2")
    expected.update(*(cut(array, keep) for array in maps), SPACING, "s1")
    assert got.state() == expected.state()
    assert got.compute()["mean_dice"] == expected.compute()["mean_dice"]


def test_labels_without_a_name_and_slices_that_are_not_there_are_refused(maps):
    pred, truth = maps
    with pytest.raises(ValueError, match="got 7"):
        evaluate_volume(np.where(pred == 1, 7, pred), truth, SPACING, LABELS, slices="1-2")
    with pytest.raises(VmfError, match=r"VMF280[\s\S]*0 \.\.\. 5, got 6"):
        evaluate_volume(pred, truth, SPACING, LABELS, slices="2-6")


def test_a_table_of_domains_may_say_slices(tmp_path):
    (tmp_path / "d.csv").write_text("subject,domain,slices\na,A,2-5\nb,A,\n")
    table = read_domains(tmp_path / "d.csv")
    assert (table["a"].slices, table["b"].slices) == ("2-5", None)
