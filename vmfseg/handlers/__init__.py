# SPDX-License-Identifier: Apache-2.0
"""Handlers that plug into any MONAI or ignite engine."""

from .checkpoint import ModelSelection, RunCheckpoint, load_tensors, save_tensors
from .decay import PolynomialDecayHandler
from .finite import FiniteHandler
from .gradient_clip import GradientClipHandler
from .history import HistoryHandler
from .progress import ProgressHandler
from .ramp import RampHandler
from .scores_handler import ScoresHandler
from .tensorboard import ListedOutputHandler, RunWriter, scalar_terms

__all__ = [
    "FiniteHandler",
    "GradientClipHandler",
    "HistoryHandler",
    "ListedOutputHandler",
    "ModelSelection",
    "PolynomialDecayHandler",
    "ProgressHandler",
    "RampHandler",
    "RunCheckpoint",
    "RunWriter",
    "ScoresHandler",
    "load_tensors",
    "save_tensors",
    "scalar_terms",
]
