# SPDX-License-Identifier: Apache-2.0
import json

import pytest
from ignite.engine import Engine, Events

from vmfseg.handlers import HistoryHandler


def trainer_with(values, path, evaluators=(), validate_every=0):
    trainer = Engine(lambda engine, batch: {"loss": values[engine.state.iteration - 1], "dice'": 1.0, "image": [1]})
    for evaluator in evaluators:

        def validate(engine, evaluator=evaluator):
            if engine.state.epoch % validate_every == 0:
                evaluator.state.epoch = engine.state.epoch
                evaluator.state.metrics = {"val_mean_dice": 0.1 * engine.state.epoch}

        trainer.add_event_handler(Events.EPOCH_COMPLETED, validate)
    HistoryHandler(path, evaluators).attach(trainer)
    return trainer


def read(path):
    content = json.loads(path.read_text())
    assert content["format"] == "vmfseg-history-1"
    return content["epochs"]


def evaluator():
    engine = Engine(lambda engine, batch: None)
    engine.state.key_metric_name = "val_mean_dice"
    return engine


def test_means_of_each_epoch_and_fresh_validation_only(tmp_path):
    path = tmp_path / "history.json"
    trainer_with([4.0, 2.0, 1.0, 3.0, 5.0, 7.0], path, [evaluator()], validate_every=2).run([0, 0], max_epochs=3)
    assert read(path) == [
        {"epoch": 1, "iteration": 2, "terms": {"loss": 3.0}, "validation": {}},
        {"epoch": 2, "iteration": 4, "terms": {"loss": 2.0}, "validation": {"val_mean_dice": 0.2}},
        {"epoch": 3, "iteration": 6, "terms": {"loss": 6.0}, "validation": {}},
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_what_is_not_finite_is_null(tmp_path, value):
    trainer_with([value], tmp_path / "h.json").run([0], max_epochs=1)
    assert read(tmp_path / "h.json")[0]["terms"] == {"loss": None}


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    values = [5.0, 4.0, 3.0, 2.0]
    trainer_with(values, tmp_path / "whole.json").run([0], max_epochs=4)
    # the interrupted run got to epoch 3, its last checkpoint is of epoch 2
    trainer_with(values, tmp_path / "parts.json").run([0], max_epochs=3)
    resumed = trainer_with(values, tmp_path / "parts.json")
    resumed.state.epoch, resumed.state.iteration = 2, 2
    resumed.state.max_epochs, resumed.state.epoch_length = 4, 1
    resumed.run([0])
    assert (tmp_path / "parts.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_a_new_run_starts_a_new_file(tmp_path):
    path = tmp_path / "h.json"
    trainer_with([1.0, 2.0], path).run([0], max_epochs=2)
    trainer_with([9.0], path).run([0], max_epochs=1)
    assert [row["terms"]["loss"] for row in read(path)] == [9.0]


@pytest.mark.parametrize("text", ["{", "[]", '{"epochs": [1]}', '{"epochs": [{}]}'])
def test_a_damaged_file_stops_no_training(tmp_path, text):
    path = tmp_path / "h.json"
    path.write_text(text)
    trainer_with([1.0], path).run([0], max_epochs=1)
    assert len(read(path)) == 1


def test_only_the_first_process_writes(tmp_path):
    trainer = trainer_with([1.0], tmp_path / "h.json")
    trainer.state.rank = 1
    trainer.add_event_handler(Events.STARTED, lambda engine: setattr(engine.state, "rank", 1))
    trainer.run([0], max_epochs=1)
    assert not (tmp_path / "h.json").exists()
