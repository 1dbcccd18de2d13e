# SPDX-License-Identifier: Apache-2.0
"""ProgressHandler: plain lines where there is no terminal, a bar that closes where there is one."""

from __future__ import annotations

import io
import re

import pytest
from ignite.engine import Engine

from vmfseg.data import InterleavedLoader
from vmfseg.handlers import ProgressHandler


def test_plain_lines_have_terms_progress_and_time(trainer, line, capsys):
    evaluator = Engine(lambda *_args: None)
    evaluator.state.key_metric_name = "val_mean_dice"
    evaluator.state.metrics["val_mean_dice"] = 0.875

    def loss(parts, *_args, **_kwargs):
        return {"dice": parts.logits.mean() * 0 + 2.0, "clustering": parts.logits.mean() * 0 - 0.5}

    trainer(line(), epochs=2, loss=loss, train_handlers=[ProgressHandler("training", evaluator)]).run()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for number, text in enumerate(lines, start=1):
        assert text.startswith(f"training: {3 * number}/6 steps  loss 1.500  dice 2.000  clustering -0.500  ")
        assert "validation Dice 0.875" in text
        assert re.search(r"\d+ s, \d+ s left$", text)
        assert "\x1b" not in text
    assert lines[1].endswith(" 0 s left")


@pytest.mark.parametrize(("every", "iterations"), [(1, [3, 6, 9, 12, 15]), (2, [6, 12, 15]), (9, [15])])
def test_lines_come_every_so_many_epochs_and_at_the_end(trainer, line, capsys, every, iterations):
    trainer(line(), epochs=5, train_handlers=[ProgressHandler("x", every=every)]).run()
    lines = capsys.readouterr().out.splitlines()
    assert [int(text.split("/")[0].removeprefix("x: ")) for text in lines] == iterations


def test_terms_are_means_of_the_epoch(trainer, line, capsys):
    values = iter([1.0, 2.0, 6.0, 10.0, 10.0, 10.0])

    def loss(parts, *_args, **_kwargs):
        return {"term": parts.logits.mean() * 0 + next(values)}

    trainer(line(), epochs=2, loss=loss, train_handlers=[ProgressHandler("x")]).run()
    assert re.findall(r"term ([\d.]+)", capsys.readouterr().out) == ["3.000", "10.000"]


def test_other_processes_are_silent(trainer, line, capsys):
    one = trainer(line(), train_handlers=[ProgressHandler("x")])
    one.state.rank = 1
    one.run()
    assert capsys.readouterr().out == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_the_bar_gives_the_cursor_back(trainer, line, monkeypatch, fails):
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    one = trainer(line(), epochs=2, train_handlers=[ProgressHandler("training")])
    if fails:
        one.add_event_handler("ITERATION_COMPLETED", lambda _e: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            one.run()
    else:
        one.run()
    text = terminal.getvalue()
    assert "training" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    if not fails:
        assert "6/6 steps" in text
        plain = re.sub(r"\x1b\[[\d;]*m", "", text)  # colors
        shown = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "\n", plain).replace("\r", "\n").splitlines()
        assert any("━" in part and "6/6" in part for part in shown)
        assert any(part.strip().startswith("loss ") and "fit " in part for part in shown)  # below the bar, not beside
        assert max(map(len, shown)) <= 80


def test_steps_with_and_without_labels_are_counted(trainer, line, images, capsys):
    loader = InterleavedLoader(images(), images(), steps_per_epoch=2)
    trainer(line(), loader, epochs=3, train_handlers=[ProgressHandler("training", every=3)]).run()
    assert capsys.readouterr().out.startswith("training: 12/12 steps (6 labelled + 6 unlabelled)  ")
    assert InterleavedLoader(images(), images(), steps_per_epoch=2, joint=True).kinds == {}
    assert InterleavedLoader(images()).kinds == {}
