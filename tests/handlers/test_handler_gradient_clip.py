# SPDX-License-Identifier: Apache-2.0
"""GradientClipHandler against a clipped step by hand."""

from __future__ import annotations

import pytest

from vmfseg.handlers import GradientClipHandler


@pytest.mark.parametrize("value", [0.1, 1.0, 100.0])
def test_the_step_is_the_clipped_one(trainer, line, images, value):
    net = line(1.0)
    trainer(net, images(1), epochs=1, train_handlers=[GradientClipHandler(value)]).run()
    gradient = 2 * (1.0 - 5)  # of (w x - 5)^2 at w = x = 1
    assert net.weight.item() == pytest.approx(1.0 - 0.01 * max(-value, min(value, gradient)))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_bad_values_are_named(value):
    with pytest.raises(ValueError, match="value must be positive"):
        GradientClipHandler(value)
