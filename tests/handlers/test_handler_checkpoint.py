# SPDX-License-Identifier: Apache-2.0
"""RunCheckpoint and ModelSelection: what survives a kill, a flipped bit, and a bad epoch."""

from __future__ import annotations

import hashlib
import json
import logging

import pytest
import torch
from ignite.engine import Engine, Events

from vmfseg.handlers import ModelSelection
from vmfseg.handlers.checkpoint import RunCheckpoint, load_tensors, save_tensors
from vmfseg.utils import VmfError


def _run(trainer, folder, net, resume=False, stop_after=None, **kwargs):
    checkpoint = RunCheckpoint(folder, {"net": net, "optimizer": trainer.optimizer}, **kwargs)
    checkpoint.attach(trainer)
    if stop_after is not None:
        trainer.add_event_handler(Events.EPOCH_COMPLETED(once=stop_after), lambda engine: engine.terminate())
    restored = checkpoint.restore(trainer) if resume else False
    trainer.run()
    return restored


def test_the_last_two_are_kept_and_named_with_their_checksums(tmp_path, trainer, line):
    net = line()
    _run(trainer(net, epochs=5), tmp_path, net)
    index = json.loads((tmp_path / "checkpoint.json").read_text())
    assert [entry["file"] for entry in index["checkpoints"]] == ["epoch-000004.pt", "epoch-000005.pt"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.json", "epoch-000004.pt", "epoch-000005.pt"]
    for entry in index["checkpoints"]:
        assert entry["sha256"] == hashlib.sha256((tmp_path / entry["file"]).read_bytes()).hexdigest()
    payload = torch.load(tmp_path / "epoch-000005.pt", weights_only=True)
    assert payload["engine"] == {"epoch": 5, "iteration": 15}
    assert torch.equal(payload["objects"]["net"]["weight"], net.weight.detach())


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_continued_training_equals_an_uninterrupted_one(tmp_path, trainer, line, stop):
    straight = line()
    _run(trainer(straight, epochs=4), tmp_path / "straight", straight)
    _run(trainer(first := line(), epochs=4), tmp_path / "broken", first, stop_after=stop)
    second = line(100.0)
    again = trainer(second, epochs=4)
    assert _run(again, tmp_path / "broken", second, resume=True)
    assert again.state.iteration == 12
    assert torch.equal(second.weight, straight.weight)  # momentum included, or it would differ


def test_an_interval_skips_epochs(tmp_path, trainer, line):
    net = line()
    _run(trainer(net, epochs=5), tmp_path, net, interval=2)
    assert sorted(p.name for p in tmp_path.glob("*.pt")) == ["epoch-000002.pt", "epoch-000004.pt"]
    with pytest.raises(ValueError, match="interval must be at least 1, got 0"):
        RunCheckpoint(tmp_path, {}, interval=0)


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "empty"])
def test_a_damaged_newest_falls_back_and_says_so(tmp_path, trainer, line, caplog, damage):
    net = line()
    _run(trainer(net, epochs=3), tmp_path, net)
    newest = tmp_path / "epoch-000003.pt"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "delete":
        newest.unlink()
    else:
        newest.write_bytes({"flip": bytes(data), "truncate": bytes(data[:99]), "empty": b""}[damage])
    second = line(7.0)
    again = trainer(second, epochs=3)
    checkpoint = RunCheckpoint(tmp_path, {"net": second, "optimizer": again.optimizer})
    with caplog.at_level(logging.WARNING):
        assert checkpoint.restore(again)
    assert again.state.epoch == 2
    assert "epoch-000003.pt is damaged; taking the one before" in caplog.text
    expected = torch.load(tmp_path / "epoch-000002.pt", weights_only=True)["objects"]["net"]["weight"]
    assert torch.equal(second.weight.detach(), expected)


@pytest.mark.parametrize("content", ["{", "[]", '{"other": 1}', ""], ids=["half", "list", "other", "empty"])
def test_a_damaged_index_means_no_checkpoint(tmp_path, trainer, line, caplog, content):
    net = line()
    _run(trainer(net, epochs=2), tmp_path, net)
    (tmp_path / "checkpoint.json").write_text(content)
    again = trainer(line())
    assert RunCheckpoint(tmp_path, {}).restore(again) is False
    assert again.state.epoch == 0
    assert "checkpoint.json is damaged" in caplog.text


def test_without_a_checkpoint_there_is_nothing_to_restore(tmp_path, trainer, line):
    assert RunCheckpoint(tmp_path / "none", {}).restore(trainer(line())) is False


def test_only_the_first_process_writes(tmp_path, trainer, line):
    net = line()
    one = trainer(net)
    one.state.rank = 1
    _run(one, tmp_path, net)
    assert list(tmp_path.iterdir()) == []


def test_tensors_round_trip_and_code_is_refused(tmp_path):
    value = {"a": torch.arange(3), "b": {"c": 1.5, "d": None}}
    digest = save_tensors(tmp_path / "x.pt", value)
    assert digest == hashlib.sha256((tmp_path / "x.pt").read_bytes()).hexdigest()
    back = load_tensors(tmp_path / "x.pt")
    assert torch.equal(back["a"], value["a"])
    assert back["b"] == value["b"]
    torch.save(pytest.raises, tmp_path / "code.pt")  # a pickled function
    for name in ("code.pt", "missing.pt"):
        with pytest.raises(VmfError, match="VMF401") as caught:
            load_tensors(tmp_path / name)
        assert name in caught.value.subject


def _evaluator(scores):
    values = iter(scores)
    engine = Engine(lambda _engine, _batch: None)
    engine.state.key_metric_name = "dice"
    engine.add_event_handler(Events.EPOCH_STARTED, lambda e: e.state.metrics.update(dice=next(values)))
    return engine


@pytest.mark.parametrize(
    ("mode", "scores", "epoch", "weight", "metric"),
    [
        pytest.param("best", [0.2, 0.7, 0.5], 2, 2.0, 0.7, id="best"),
        pytest.param("best", [0.7, 0.7, 0.5], 1, 1.0, 0.7, id="the first of equals"),
        pytest.param("best", [float("nan"), 0.1, 0.0], 2, 2.0, 0.1, id="nan is zero"),
        pytest.param("best", [float("nan")], 1, 1.0, 0.0, id="only nan"),
        pytest.param("last", [0.9, 0.7, 0.5], 3, 3.0, 0.5, id="last"),
    ],
)
def test_selection_keeps_the_weights_of(line, mode, scores, epoch, weight, metric):
    net = line(0.0)
    selection = ModelSelection(net, mode)
    evaluator = _evaluator(scores)
    selection.attach(evaluator)
    for number in range(1, len(scores) + 1):
        net.weight.data.fill_(float(number))
        evaluator.state.epoch = number - 1
        evaluator.state.max_epochs = number
        evaluator.run([0], max_epochs=number)
    assert selection.best_epoch == epoch
    assert selection.best_metric == pytest.approx(metric)
    assert float(selection.best_state["weight"]) == weight


def test_a_kept_weight_does_not_follow_the_network_and_survives_a_checkpoint(line):
    net = line(2.0)
    selection = ModelSelection(net)
    selection.take(net, 0.5, 3)
    net.weight.data.fill_(9.0)
    other = ModelSelection(line())
    other.load_state_dict(selection.state_dict())
    assert float(other.best_state["weight"]) == 2.0
    assert (other.best_metric, other.best_epoch) == (0.5, 3)


def test_two_networks_compete_for_one_selection(line):
    nets = [line(1.0), line(2.0)]
    selection = ModelSelection(nets[0])
    for net, score in zip(nets, (0.4, 0.6), strict=True):
        evaluator = _evaluator([score])
        selection.attach(evaluator, net)
        evaluator.run([0], max_epochs=1)
    assert float(selection.best_state["weight"]) == 2.0


def test_a_wrong_mode_is_named(line):
    with pytest.raises(ValueError, match="mode must be best or last, got 'target'"):
        ModelSelection(line(), "target")
