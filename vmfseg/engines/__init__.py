# SPDX-License-Identifier: Apache-2.0
"""Ignite engines on MONAI's trainers and evaluators, and the stages that chain them."""

from .clustering_trainer import KernelClusteringTrainer
from .cross_pseudo_trainer import CrossPseudoTrainer
from .prediction_evaluator import PredictionEvaluator, SavePredictionHandler
from .semi_supervised import SemiSupervisedTrainer
from .stages import CalibrationStage, EvaluationStage, KernelStage, PretrainingStage, StageRunner, TrainingStage

__all__ = [
    "CalibrationStage",
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
]
