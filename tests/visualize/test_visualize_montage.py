# SPDX-License-Identifier: Apache-2.0
import io

import matplotlib
import matplotlib.image
import numpy as np
import pytest

from vmfseg.visualize import draw_montage
from vmfseg.visualize.activations import ChannelLabel
from vmfseg.visualize.figure_style import class_color, overlay, png_bytes, upright

LABELS = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}


def panes(figure):
    return {axis.get_title(): axis for axis in figure.axes if axis.get_title()}


@pytest.mark.parametrize("kernels", [1, 2, 4, 5, 12, 17], ids=lambda j: f"J={j}")
def test_all_panes_are_there_and_do_not_overlap(make_view, kernels):
    view = make_view(kernels)
    figure = draw_montage(view, LABELS)
    found = panes(figure)
    assert set(found) == {"image", "truth", "prediction", "reconstruction", *(f"kernel {j}" for j in range(kernels))}
    for j in range(kernels):
        shown = found[f"kernel {j}"].images[0]
        np.testing.assert_array_equal(shown.get_array(), upright(view.activations[j]))
        assert shown.get_clim() == (0, 1)
    boxes = [axis.get_position() for axis in found.values()]
    for index, box in enumerate(boxes):
        assert -1e-9 < box.x0 < box.x1 < 1 + 1e-9
        assert -1e-9 < box.y0 < box.y1 < 1 + 1e-9
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])


def test_maps_stand_in_the_given_order_with_their_anatomy(make_view):
    order = [ChannelLabel(2, "LV", 0.9), ChannelLabel(0, "MYO", 0.5), ChannelLabel(1, "", 0.01)]
    figure = draw_montage(make_view(3), LABELS, order)
    titles = [axis.get_title() for axis in figure.axes if axis.get_title().startswith("kernel")]
    assert titles == ["kernel 2: LV", "kernel 0: MYO", "kernel 1"]
    texts = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert texts == ["0.90", "0.50", "0.01"]


def test_classes_have_a_legend_and_their_colors(make_view):
    figure = draw_montage(make_view(6), LABELS)
    legends = [axis.get_legend() for axis in figure.axes if axis.get_legend()]
    assert [text.get_text() for text in legends[0].get_texts()] == ["LV", "MYO", "RV"]
    truth = panes(figure)["truth"].images[1].get_array()
    rgb = matplotlib.colors.to_rgb(class_color(1))
    np.testing.assert_allclose(truth[16 - 1 - 3, 16 - 1 - 3, :3], rgb)  # LV at (3, 3), turned upright


@pytest.mark.parametrize("kernels", [3, 12], ids=lambda j: f"J={j}")
def test_without_truth_or_reconstruction_nothing_is_invented(make_view, kernels):
    figure = draw_montage(make_view(kernels, truth=None, reconstruction=None), LABELS)
    found = panes(figure)
    assert "no truth" in found
    assert "reconstruction" not in found
    assert len(found["no truth"].images) == 1


def test_upright_puts_the_right_side_left_and_the_front_on_top():
    slice_space = np.zeros((4, 3))  # axes to the right and to the front
    slice_space[3, 2] = 1  # the patient's right, front
    assert upright(slice_space)[0, 0] == 1


def test_overlay_is_transparent_where_there_is_background():
    picture = overlay(np.array([[0, 2]]))
    assert picture[0, 0, 3] == 0
    assert picture[0, 1, 3] == 0.5


def test_png_is_a_picture_of_the_size_asked_for_and_always_the_same(make_view):
    data = png_bytes(draw_montage(make_view(7), LABELS), dpi=50)
    width, height = draw_montage(make_view(7), LABELS).get_size_inches()
    picture = matplotlib.image.imread(io.BytesIO(data))
    assert picture.shape[:2] == (int(height * 50), int(width * 50))
    assert picture.std() > 0.05
    assert data == png_bytes(draw_montage(make_view(7), LABELS), dpi=50)


@pytest.mark.parametrize("channels", [[0, 1], [0, 1, 3], [0, 0, 1]], ids=["few", "strange", "twice"])
def test_wrong_channels_are_refused(make_view, channels):
    with pytest.raises(ValueError, match="channels must name each of the 3 kernels once, got"):
        draw_montage(make_view(3), LABELS, [ChannelLabel(j, "", None) for j in channels])
