# SPDX-License-Identifier: Apache-2.0
"""Training history: mean losses and validation scores of each epoch, as a small JSON file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events

from vmfseg.handlers.tensorboard import scalar_terms
from vmfseg.utils import VmfError, read_json, write_json
from vmfseg.utils.io import StrPath

__all__ = ["HISTORY_FORMAT", "HistoryHandler"]

HISTORY_FORMAT = "vmfseg-history-1"


class HistoryHandler:
    """Write the mean of every loss term and the validation scores of each epoch to ``history.json``.

    ``{"format": "vmfseg-history-1", "epochs": [{"epoch": 1, "iteration": 25, "terms": {"loss": ...}, "validation":
    {"val_mean_dice": ...}}, ...]}``; a value that is not finite is ``null``. The file is replaced in one step after
    each epoch, so it can be read at any time. A resumed run goes on in it and drops what it does again.

    Args:
        path: the file.
        evaluators: whose key metrics are noted. List this handler after the one that runs them.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "history.json"
        >>> trainer = Engine(lambda engine, batch: {"loss": float(batch)})
        >>> HistoryHandler(path).attach(trainer)
        >>> state = trainer.run([1.0, 2.0], max_epochs=1)
        >>> read_json(path)["epochs"]
        [{'epoch': 1, 'iteration': 2, 'terms': {'loss': 1.5}, 'validation': {}}]
    """

    def __init__(self, path: StrPath, evaluators: Sequence[Engine] = ()) -> None:
        self.path, self.evaluators = Path(path), list(evaluators)
        self._epochs: list[dict[str, Any]] = []
        self._sums: dict[str, list[float]] = {}

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer."""
        engine.add_event_handler(Events.STARTED, self._open)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._count)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._write)

    def _open(self, engine: Any) -> None:
        self._sums = {}
        self._epochs = [row for row in self._earlier() if row["epoch"] <= engine.state.epoch]

    def _earlier(self) -> list[dict[str, Any]]:
        try:
            history = read_json(self.path) if self.path.is_file() else {}
            return [row for row in history.get("epochs", []) if isinstance(row["epoch"], int)]
        except (VmfError, AttributeError, KeyError, TypeError):
            return []  # a damaged file of curves is no reason to stop a training

    def _count(self, engine: Any) -> None:
        for name, value in scalar_terms(engine.state.output).items():
            if not name.endswith("'"):  # terms of a second network
                self._sums.setdefault(name, []).append(value)

    def _write(self, engine: Any) -> None:
        terms = {name: _finite(sum(values) / len(values)) for name, values in self._sums.items()}
        self._sums = {}
        validation = {}
        for evaluator in self.evaluators:
            state: Any = evaluator.state
            name = getattr(state, "key_metric_name", None)
            if name in state.metrics and state.epoch == engine.state.epoch:  # validated in this very epoch
                validation[str(name)] = _finite(float(state.metrics[name]))
        row = {"epoch": engine.state.epoch, "iteration": engine.state.iteration}
        self._epochs.append({**row, "terms": terms, "validation": validation})
        if not getattr(engine.state, "rank", 0):
            write_json(self.path, {"format": HISTORY_FORMAT, "epochs": self._epochs})


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
