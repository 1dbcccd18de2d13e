# SPDX-License-Identifier: Apache-2.0
import pytest
from ignite.engine import Engine

from vmfseg.handlers import RampHandler
from vmfseg.losses import VMFLoss


def test_progress_counts_the_iterations_of_the_whole_run():
    loss = VMFLoss(ramps={"reconstruction": (0.25, 0.75)})
    seen = []
    engine = Engine(lambda engine, batch: seen.append((loss.progress, loss.ramp("reconstruction"), loss.ramp("dice"))))
    RampHandler(loss).attach(engine)
    engine.run(range(4), max_epochs=2)
    assert [row[0] for row in seen] == [k / 8 for k in range(8)]
    assert [row[1] for row in seen] == pytest.approx([0, 0, 0, 0.25, 0.5, 0.75, 1, 1])
    assert {row[2] for row in seen} == {1.0}
