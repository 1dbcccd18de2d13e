# SPDX-License-Identifier: Apache-2.0
"""Stages of a run: pre-training, kernels, training, calibration, evaluation; each skipped when done, each resumable."""

from .calibration_stage import CalibrationStage
from .evaluation_stage import EvaluationStage
from .kernel_stage import KernelStage
from .pretraining_stage import PretrainingStage
from .runner import Stage, StageRunner
from .training_stage import TrainingStage

__all__ = [
    "CalibrationStage",
    "EvaluationStage",
    "KernelStage",
    "PretrainingStage",
    "Stage",
    "StageRunner",
    "TrainingStage",
]
