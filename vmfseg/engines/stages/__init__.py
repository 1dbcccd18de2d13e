# SPDX-License-Identifier: Apache-2.0
"""A run as stages: pre-training, kernels, training, evaluation; each skipped when done, each resumable."""

from .assignment import choose_assignment, kernel_table
from .calibration import CalibrationStage
from .evaluation import EvaluationStage
from .kernels import KernelStage, sample_features
from .pretraining import PretrainingStage
from .runner import Stage, StageRunner
from .training import TrainingStage, publish_model

__all__ = [
    "CalibrationStage",
    "EvaluationStage",
    "KernelStage",
    "PretrainingStage",
    "Stage",
    "StageRunner",
    "TrainingStage",
    "choose_assignment",
    "kernel_table",
    "publish_model",
    "sample_features",
]
