# SPDX-License-Identifier: Apache-2.0
"""Logging of a run to TensorBoard and MLflow."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events

from vmfseg.utils.io import StrPath, refusing

__all__ = ["ListedOutputHandler", "RunWriter", "scalar_terms"]


def scalar_terms(output: Any) -> dict[str, float]:
    """Return the loss and its terms from the output of a trainer: the ``output_transform`` of logging handlers.

    Args:
        output: ``engine.state.output``, decollated (a list, whose first item counts) or not.

    Example:
        >>> scalar_terms({"image": torch.zeros(2, 1), "loss": torch.tensor(1.5), "dice": 0.5})
        {'loss': 1.5, 'dice': 0.5}
    """
    item: Mapping[str, Any] = output[0] if isinstance(output, list) else output
    return {
        str(key): float(value.detach() if isinstance(value, torch.Tensor) else value)
        for key, value in item.items()
        if isinstance(value, float) or (isinstance(value, torch.Tensor) and value.ndim == 0)
    }


class ListedOutputHandler:
    """Put the output of an iteration into a list, as MONAI's logging handlers find it after decollating.

    The trainers here do not decollate (nobody needs the single images, and a batch may have more images than labels),
    but ``--tracking mlflow`` and ``StatsHandler`` look for the loss in the first item of a list. List it first.

    Example:
        >>> trainer = Engine(lambda engine, batch: {"loss": batch})
        >>> ListedOutputHandler().attach(trainer)
        >>> trainer.run([0.5]).output
        [{'loss': 0.5}]
    """

    def attach(self, engine: Engine) -> None:
        """Attach to a trainer."""
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Any) -> None:
        """Put the output into a list, unless it is in one."""
        if not isinstance(engine.state.output, list):
            engine.state.output = [engine.state.output]


class RunWriter:
    """A TensorBoard writer that opens its file at the first value, in a folder named after that time.

    MONAI's handlers open theirs when they are built. Building a config, or a run whose training is done already, would
    leave empty files, and runs into one folder would draw one tangled curve. Of several processes only the first
    writes. The file is written by a thread of TensorBoard's, whose error comes with the next value.

    Args:
        log_dir: where the folder of the run goes.

    Raises:
        VmfError: VMF501 if the disk is full, VMF502 if the folder cannot be written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> writer = RunWriter(folder)
        >>> before = len(list(folder.iterdir()))
        >>> writer.add_scalar("loss", 1.0, 1)
        >>> writer.close()
        >>> before, len(list(folder.glob("*/events.*")))
        (0, 1)
    """

    def __init__(self, log_dir: StrPath) -> None:
        self.log_dir = Path(log_dir)
        self._writer: Any = None

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None, **kwargs: Any) -> None:
        """Write a value."""
        with refusing(self.log_dir):
            writer = self._open()
            if writer is not None:
                writer.add_scalar(tag, scalar_value, global_step, **kwargs)

    def flush(self) -> None:
        """Put on disk what was written."""
        if self._writer is not None:
            with refusing(self.log_dir):
                self._writer.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with refusing(self.log_dir):
                writer.close()

    def _open(self) -> Any:
        if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank():
            return None
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # a second of import time

            if threading.excepthook is threading.__excepthook__:
                threading.excepthook = _without_writers
            self._writer = SummaryWriter(str(self.log_dir / time.strftime("%Y%m%d-%H%M%S")))
        return self._writer


def _without_writers(args: threading.ExceptHookArgs) -> None:
    """Print no traceback of TensorBoard's thread: its error is raised again where the next value is written."""
    if type(args.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(args)
