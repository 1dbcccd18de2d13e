# SPDX-License-Identifier: Apache-2.0
"""MONAI's logging handlers work on trainers that do not decollate."""

from __future__ import annotations

import resource
import threading

import pytest
import torch
from ignite.engine import Engine
from monai.handlers import TensorBoardStatsHandler, from_engine
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vmfseg.handlers import ListedOutputHandler, RunWriter, scalar_terms
from vmfseg.utils import VmfError


def trainer():
    engine = Engine(lambda _, batch: {"image": torch.zeros(2, 1), "loss": torch.tensor(float(batch)), "dice": 0.5})
    ListedOutputHandler().attach(engine)
    return engine


def test_terms_arrive_in_tensorboard(tmp_path):
    engine, writer = trainer(), RunWriter(tmp_path)
    TensorBoardStatsHandler(writer, output_transform=scalar_terms).attach(engine)
    assert not list(tmp_path.iterdir())
    engine.run([3, 2, 1], max_epochs=1)
    writer.close()
    (folder,) = tmp_path.iterdir()
    events = EventAccumulator(str(folder)).Reload()
    assert sorted(events.Tags()["scalars"]) == ["dice", "loss"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 3.0), (2, 2.0), (3, 1.0)]


def test_a_full_disk_is_named_without_a_traceback(tmp_path, monkeypatch):
    writer, shown = RunWriter(tmp_path / "out"), []
    show = shown.append
    for hook in ("excepthook", "__excepthook__"):  # as in a program: pytest has put its own there
        monkeypatch.setattr(threading, hook, show)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write() -> None:
        for step in range(10):
            writer.add_scalar("loss", 1.0, step)
            writer.flush()

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(VmfError, match="VMF501: the disk is full") as caught:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (caught.value.subject, caught.value.exit_code) == (str(tmp_path / "out"), 6)
    assert shown == [], "the thread that writes says nothing of its own"


def test_loss_is_where_monais_tracking_looks_for_it():
    engine = trainer()
    engine.run([4], max_epochs=1)
    assert float(from_engine(["loss"], first=True)(engine.state.output)) == 4.0


def test_lists_and_dictionaries_give_the_same_terms():
    output = {"image": torch.zeros(1), "loss": torch.tensor(2.0)}
    assert scalar_terms(output) == scalar_terms([output, {"loss": torch.tensor(9.0)}]) == {"loss": 2.0}
