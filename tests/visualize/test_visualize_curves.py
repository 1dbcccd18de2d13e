# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from vmfseg.visualize import draw_history
from vmfseg.visualize.curves import draw_boxes
from vmfseg.visualize.figure_style import png_bytes


def epoch(number, loss, dice=None, **more):
    validation = {} if dice is None else {"val_mean_dice": dice}
    return {"epoch": number, "iteration": 10 * number, "terms": {"loss": loss, **more}, "validation": validation}


def test_history_shows_every_term_and_score_at_its_iteration():
    figure = draw_history([epoch(1, 3.0, dice_term=1.0), epoch(2, 2.0, 0.4), epoch(3, 1.0, 0.6)], selected=3)
    left, right = figure.axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in left.lines}
    assert lines == {"loss": [[10, 3], [20, 2], [30, 1]], "dice term": [[10, 1]]}
    assert right.lines[0].get_xydata().tolist() == [[20, 0.4], [30, 0.6]]
    assert right.lines[1].get_xdata() == [30, 30]
    assert [text.get_text() for text in right.texts] == ["chosen"]


def test_history_without_validation_has_one_panel_and_skips_what_was_not_finite():
    figure = draw_history([epoch(1, None), epoch(2, 2.0)])
    assert len(figure.axes) == 1
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[20, 2.0]]


def test_boxes_have_the_quartiles_of_every_domain_and_class(case_rows):
    rows = case_rows(("A", "1", 0), ("A", "2", 1), ("A", "3", 2), ("B", "4", 1), ("B", "5", None)).rows
    figure = draw_boxes(rows)
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["domain A", "domain B"]
    boxes = [patch for patch in axis.patches if patch.get_path().vertices.shape[0] > 4]
    assert len(boxes) == 4
    dices = [row.dice for row in rows if row.domain == "A" and row.class_name == "LV"]
    heights = boxes[0].get_path().vertices[:, 1]
    np.testing.assert_allclose((heights.min(), heights.max()), np.quantile(dices, (0.25, 0.75)))
    points = [c.get_offsets() for c in axis.collections]
    assert sum(map(len, points)) == len(rows)
    crosses = [c.get_offsets() for c in axis.collections if len(c.get_offsets()) and c.get_linewidth() > 1]
    assert [offset[0, 1] for offset in crosses] == [0]  # the one missed structure
    assert png_bytes(figure) == png_bytes(draw_boxes(rows))


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="epochs must be at least one, got none"):
        draw_history([])
    with pytest.raises(ValueError, match="rows must hold at least one Dice, got none"):
        draw_boxes([])
