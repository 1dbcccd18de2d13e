# SPDX-License-Identifier: Apache-2.0
"""Evaluator that segments volumes with the predictor, for scores and for files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from monai.data import MetaTensor
from monai.engines import Evaluator
from monai.engines.utils import IterationEvents
from monai.utils.enums import CommonKeys as Keys
from torch.utils.data import DataLoader, Dataset

from vmfseg.model import Predictor
from vmfseg.model.scan import label_path, write_label

__all__ = ["PredictionEvaluator", "SavePredictionHandler"]


class PredictionEvaluator(Evaluator):  # type: ignore[misc]
    """Segment one volume an iteration by a :class:`vmfseg.model.Predictor`, on the volume's own grid.

    The batch is a row with a loaded ``image`` ``(C, X, Y, Z)``; ``engine.state.output`` has ``pred`` ``(1, X, Y, Z)``,
    a ``MetaTensor`` of class numbers with the image's metadata, and ``frame``, the
    :class:`~vmfseg.model.prediction.FramePrediction`. MONAI's and ignite's handlers plug in.

    Args:
        val_data_loader: rows, for instance a MONAI ``Dataset`` with :class:`vmfseg.data.LoadVolumed`.
        predictor: the model; may be set later, before the engine runs.
        device: of the predictor.
        **kwargs: as for MONAI's ``Evaluator``.
    """

    def __init__(
        self,
        val_data_loader: Iterable[Any] | Dataset[Any],
        predictor: Predictor | None = None,
        device: str | torch.device = "cpu",
        **kwargs: Any,
    ) -> None:
        if isinstance(val_data_loader, Dataset):  # ignite wants an iterable; rows come one by one, as they are
            val_data_loader = DataLoader(val_data_loader, batch_size=None, collate_fn=_as_is)
        super().__init__(device=device, val_data_loader=val_data_loader, decollate=False, **kwargs)
        self.predictor = predictor

    def _iteration(self, engine: PredictionEvaluator, row: dict[str, Any]) -> dict[str, Any]:
        if engine.predictor is None:
            raise ValueError("predictor must be set before the engine runs, got None.")
        image: MetaTensor = row[Keys.IMAGE]
        frame = engine.predictor.predict_frame(image)
        pred = MetaTensor(torch.from_numpy(frame.labels)[None]).copy_meta_from(image)
        engine.state.output = {Keys.PRED: pred, "frame": frame}
        engine.fire_event(IterationEvents.FORWARD_COMPLETED)
        engine.fire_event(IterationEvents.MODEL_COMPLETED)
        return engine.state.output  # type: ignore[no-any-return]


def _as_is(row: Any) -> Any:
    return row


class SavePredictionHandler:
    """Write every label map with the geometry and header of its image, in one step.

    Args:
        output_dir: where.
        data_root_dir: subfolders of the images below it are kept.
        output_postfix: end of the names.
        overwrite: whether existing files may be replaced.

    Attributes:
        written: the paths so far.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        data_root_dir: str | os.PathLike[str] = "",
        output_postfix: str = "seg",
        overwrite: bool = True,
    ) -> None:
        self.output_dir, self.postfix, self.overwrite = Path(output_dir), output_postfix, overwrite
        root = Path(data_root_dir).expanduser().absolute() if os.fspath(data_root_dir) else None
        self.root: str | Path = "" if root is None else root.parent if root.is_file() else root
        self.written: list[Path] = []

    def attach(self, engine: Engine) -> None:
        """Attach to a :class:`PredictionEvaluator`."""
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Any) -> None:
        """Write the label map of this iteration."""
        row, output = engine.state.batch, engine.state.output
        image = str(row[Keys.IMAGE].meta["filename_or_obj"])
        frame = row.get("frame")
        path = label_path(image, self.output_dir, None if frame is None else int(frame), self.root, self.postfix)
        self.written.append(write_label(path, output[Keys.PRED][0].numpy(), image, overwrite=self.overwrite))

    def describe(self) -> str:
        """Return one line about what was written."""
        return f"{len(self.written)} label maps in {self.output_dir}"
