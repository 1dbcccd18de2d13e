# SPDX-License-Identifier: Apache-2.0
"""Handlers that plug into any MONAI or ignite engine."""

from .checkpoint import ModelSelection
from .finite import FiniteHandler
from .gradient_clip import GradientClipHandler
from .history import HistoryHandler
from .progress import ProgressHandler
from .schedules import PolynomialDecayHandler, RampHandler
from .scores_handler import ScoresHandler
from .teacher import EMATeacher
from .tensorboard import ListedOutputHandler, RunWriter, scalar_terms

__all__ = [
    "EMATeacher",
    "FiniteHandler",
    "GradientClipHandler",
    "HistoryHandler",
    "ListedOutputHandler",
    "ModelSelection",
    "PolynomialDecayHandler",
    "ProgressHandler",
    "RampHandler",
    "RunWriter",
    "ScoresHandler",
    "scalar_terms",
]
