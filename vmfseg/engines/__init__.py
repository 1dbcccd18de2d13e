# SPDX-License-Identifier: Apache-2.0
"""Ignite engines on MONAI's trainers and evaluators, and the stages that chain them."""

from .levers import CopyPasteLever, ViewsLever
from .prediction_evaluator import PredictionEvaluator, SavePredictionHandler
from .stages.calibration_stage import CalibrationStage
from .stages.evaluation_stage import EvaluationStage
from .stages.kernel_stage import KernelStage
from .stages.pretraining_stage import PretrainingStage
from .stages.runner import StageRunner
from .stages.training_stage import TrainingStage
from .trainers import CrossPseudoTrainer, KernelClusteringTrainer, SemiSupervisedTrainer

__all__ = [
    "CalibrationStage",
    "CopyPasteLever",
    "CrossPseudoTrainer",
    "EvaluationStage",
    "KernelClusteringTrainer",
    "KernelStage",
    "PredictionEvaluator",
    "PretrainingStage",
    "SavePredictionHandler",
    "SemiSupervisedTrainer",
    "StageRunner",
    "TrainingStage",
    "ViewsLever",
]
