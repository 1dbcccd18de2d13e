# SPDX-License-Identifier: Apache-2.0
"""Progress display of a training: a bar with the loss terms in a terminal, one plain line an epoch elsewhere."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Iterator
from typing import Any

from ignite.engine import Engine, Events
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from vmfseg.handlers.tensorboard import scalar_terms

__all__ = ["ProgressHandler"]


class _BarAndTerms(Progress):
    """The terms have a line of their own: beside the bar they would not fit 80 columns."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(f"  {task.fields['terms']}", style="dim")


class ProgressHandler:
    """Show how far a stage is: loss terms (running mean of the epoch), validation Dice and time left.

    Args:
        name: of the stage.
        evaluator: whose key metric is shown, or ``None``.
        every: plain lines come every so many epochs (and at the end).
    """

    def __init__(self, name: str, evaluator: Engine | None = None, every: int = 1) -> None:
        self.name, self.evaluator, self.every = name, evaluator, max(1, every)
        self._bar: Progress | None = None
        self._task: Any = None
        self._sums: dict[str, tuple[float, int]] = {}
        self._start, self._first = 0.0, 0

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer."""
        engine.add_event_handler(Events.STARTED, self._open)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._count)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._epoch)
        for event in (Events.COMPLETED, Events.TERMINATE):
            engine.add_event_handler(event, self._close)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._fail)

    def _open(self, engine: Any) -> None:
        self._start, self._first = time.monotonic(), engine.state.iteration
        if getattr(engine.state, "rank", 0) == 0 and sys.stdout.isatty():
            columns = (
                TextColumn("{task.description}"),
                BarColumn(24),
                TextColumn("{task.completed:.0f}/{task.total:.0f} steps"),
                TimeRemainingColumn(),
            )
            self._bar = _BarAndTerms(*columns, console=Console())
            self._bar.start()
            atexit.register(self._bar.stop)  # an interrupted run must give the cursor back
            total = engine.state.max_epochs * engine.state.epoch_length
            self._task = self._bar.add_task(self.name, total=total, completed=self._first, terms="")

    def _count(self, engine: Any) -> None:
        for key, value in scalar_terms(engine.state.output).items():
            if not key.endswith("'"):  # terms of a second network
                total, count = self._sums.get(key, (0.0, 0))
                self._sums[key] = (total + value, count + 1)
        if self._bar is not None:
            self._bar.update(self._task, completed=engine.state.iteration, terms=self._terms())

    def _epoch(self, engine: Any) -> None:
        state = engine.state
        last = state.epoch == state.max_epochs
        if self._bar is None and getattr(state, "rank", 0) == 0 and (state.epoch % self.every == 0 or last):
            spent = time.monotonic() - self._start
            done = max(1, state.iteration - self._first)
            left = spent / done * (state.max_epochs * state.epoch_length - state.iteration)
            sys.stdout.write(
                f"{self.name}: {state.iteration}/{state.max_epochs * state.epoch_length} steps{_kinds(engine)}  "
                f"{self._terms()}  "
                f"{spent:.0f} s, {left:.0f} s left\n"
            )
            sys.stdout.flush()
        if self._bar is not None:
            self._bar.update(self._task, terms=self._terms())
        self._sums = {}

    def _terms(self) -> str:
        parts = [f"{key} {total / count:.3f}" for key, (total, count) in self._sums.items()]
        if self.evaluator is not None:
            metric = self.evaluator.state.metrics.get(getattr(self.evaluator.state, "key_metric_name", "") or "")
            if metric is not None:
                parts.append(f"validation Dice {float(metric):.3f}")
        return "  ".join(parts)

    def _close(self, _engine: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
            atexit.unregister(self._bar.stop)
            self._bar = None

    def _fail(self, engine: Any, error: BaseException) -> None:
        self._close(engine)
        raise error


def _kinds(engine: Any) -> str:
    """Return how many steps of the whole training are of which kind, if its loader tells."""
    kinds = getattr(getattr(engine, "data_loader", None), "kinds", None) or {}
    parts = [f"{count * engine.state.max_epochs} {kind}" for kind, count in kinds.items()]
    return f" ({' + '.join(parts)})" if parts else ""
