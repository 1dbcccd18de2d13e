# SPDX-License-Identifier: Apache-2.0
"""The picture of a prediction: outlines, frames by name, the flag in the corner."""

from __future__ import annotations

import io

import nibabel as nib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from vmfseg.model.prediction import Prediction
from vmfseg.model.scan import Scan
from vmfseg.visualize.overlay import draw_overlay, overlay_figure

LABELS = {0: "background", 1: "LV", 2: "MYO"}
ORANGE, GREEN, RED = "#e69f00", "#009e73", "#c0392b"


@pytest.fixture
def predict(tmp_path):
    """Return a function that makes a prediction of rings around discs, in all slices of frames 1 and 3 of a cine."""

    def make(depth: int = 7, frames: tuple[int, ...] = (1, 3), **quality) -> Prediction:
        x, y = np.indices((48, 48)) - 24
        label = np.select([np.hypot(x, y) < 8, np.hypot(x, y) < 13], [1, 2], 0).astype(np.uint8)
        labels = np.zeros((48, 48, depth, 4), np.uint8)
        labels[..., list(frames)] = label[..., None, None]
        voxels = np.random.default_rng(0).integers(0, 900, labels.shape).astype(np.int16)
        nib.save(nib.Nifti1Image(voxels, np.diag([1.5, 1.5, 8, 1])), tmp_path / "cine.nii.gz")
        return Prediction(labels, Scan.open(tmp_path / "cine.nii.gz"), frames, quality)

    return make


def near(picture, color):
    """Return which pixels have a color."""
    return np.abs(picture - to_rgb(color)).max(axis=2) < 0.1


def test_both_phases_are_named_and_the_flag_says_its_reasons(predict):
    quality = {"phases": {"ED": 3, "ES": 1}, "light": "red", "light_reasons": ["a low Dice is predicted"]}
    figure = overlay_figure(predict(**quality, predicted_dice=0.41), LABELS)
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles == [f"{name}, slice {k} of 7" for name in ("ED (frame 3)", "ES (frame 1)") for k in range(1, 8)]
    assert figure.get_suptitle() == "RED  predicted Dice 0.41  a low Dice is predicted"


def test_structures_are_outlined_and_the_flag_is_in_the_upper_left_corner(predict):
    picture = imread(io.BytesIO(draw_overlay(predict(phases={"ED": 3}, light="red"), LABELS)))[..., :3]
    height, width = picture.shape[:2]
    rows, columns = np.nonzero(near(picture, RED))
    assert rows.max() < 0.1 * height
    assert columns.min() < 0.02 * width
    panes = picture[int(0.1 * height) : int(0.9 * height)]
    gray = (np.ptp(panes, axis=2) < 0.02) & (panes.mean(axis=2) < 0.95)
    for color in (ORANGE, GREEN):
        assert 0 < near(panes, color).sum() < 0.03 * gray.sum(), "a line, not a filled area"


@pytest.mark.parametrize(("slices", "longest"), [(5, 5), (6, 6), (7, 4), (9, 5), (13, 5)])
def test_rows_are_of_about_equal_length(predict, slices, longest):
    figure = overlay_figure(predict(slices, phases={"ED": 3}), LABELS)
    rows: dict[int, int] = {}
    for axis in figure.axes:
        if axis.get_title():
            row = axis.get_subplotspec().rowspan.start
            rows[row] = rows.get(row, 0) + 1
    assert max(rows.values()) == longest
    assert sum(rows.values()) == slices
    assert min(rows.values()) >= longest - len(rows)
