# SPDX-License-Identifier: Apache-2.0
"""Evaluation stage: Dice and surface distances on the unseen domain, through the predictor."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vmfseg.engines.prediction_evaluator import PredictionEvaluator
from vmfseg.engines.stages.calibration_stage import trained_predictor
from vmfseg.engines.stages.runner import say
from vmfseg.metrics import SegmentationScores
from vmfseg.metrics.tables import format_table
from vmfseg.utils import read_json
from vmfseg.utils.io import StrPath, copy_file

__all__ = ["EvaluationStage", "gather_scores"]


class EvaluationStage:
    """Score the target domain on its native grid, write the figures and show them.

    Outputs: ``metrics.json`` and ``metrics.csv``, also copied to ``output_dir``. The model is fixed before this stage
    starts; nothing flows back. Without a target domain there is nothing to do, and it says so.

    Args:
        evaluator: engine over target volumes whose handlers feed ``scores``.
        model: the training stage, or the folder of a trained model.
        scores: what was collected.
        output_dir: where the figures are copied to; empty for none.
        mention: paths that the last lines name, by what they are.
        fingerprint: what decides the result beside the settings of the config.
    """

    name = "evaluation"

    def __init__(
        self,
        evaluator: PredictionEvaluator,
        model: Any,
        scores: SegmentationScores,
        output_dir: StrPath = "",
        mention: Mapping[str, str] | None = None,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        self.evaluator, self.model, self.scores, self.output_dir = evaluator, model, scores, output_dir
        self.mention, self.fingerprint = dict(mention or {}), dict(fingerprint or {})

    def run(self, folder: Path, resume: bool) -> Sequence[str]:
        """Evaluate, write and show."""
        if not len(self.evaluator.data_loader):
            folder.mkdir(parents=True, exist_ok=True)
            self._tell_nothing()
            return []
        self.evaluator.predictor = trained_predictor(self.model, self.evaluator.state.device)
        self.evaluator.run()
        gather_scores(self.scores)
        if getattr(self.evaluator.state, "rank", 0):
            return []
        self.scores.write(folder, overwrite=True)
        self.load(folder)
        return ["metrics.json", "metrics.csv"]

    def score(self) -> None:
        """Evaluate without a run round it, for a model that is there; figures go to the output folder."""
        self.run(Path(self.output_dir), False)

    def load(self, folder: Path) -> None:
        """Show the figures of an earlier run."""
        if getattr(self.evaluator.state, "rank", 0):
            return
        if not len(self.evaluator.data_loader):
            self._tell_nothing()
            return
        summary = read_json(folder / "metrics.json")
        target = Path(self.output_dir) if self.output_dir else folder
        if self.output_dir and target != folder:
            for name in ("metrics.json", "metrics.csv"):
                copy_file(folder / name, target / name)
        say("")
        say(format_table(summary, plain=not sys.stdout.isatty()).rstrip())
        if summary["mean_dice"] is None:
            say("no mean Dice: the unseen domain has no label to compare with")
        else:
            say(f"mean Dice on the unseen domain: {summary['mean_dice']:.3f}")
        for what, path in {**self.mention, "figures": str(target / "metrics.json")}.items():
            say(f"{what}: {path}")

    def _tell_nothing(self) -> None:
        say("no unseen domain: nothing to score", getattr(self.evaluator.state, "rank", 0))
        for what, path in self.mention.items():
            say(f"{what}: {path}", getattr(self.evaluator.state, "rank", 0))


def gather_scores(scores: SegmentationScores) -> None:
    """Merge the scores of all processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        states: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(states, scores.state())
        for state in states:
            scores.merge(state)
