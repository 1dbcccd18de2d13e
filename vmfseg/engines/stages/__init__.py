# SPDX-License-Identifier: Apache-2.0
"""Stages of a run: pre-training, kernels, training, calibration, evaluation; each skipped when done, each resumable."""

from .calibration import CalibrationStage
from .evaluation import EvaluationStage
from .kernels import KernelStage
from .pretraining import PretrainingStage
from .runner import Stage, StageRunner
from .training import TrainingStage

__all__ = [
    "CalibrationStage",
    "EvaluationStage",
    "KernelStage",
    "PretrainingStage",
    "Stage",
    "StageRunner",
    "TrainingStage",
]
