# SPDX-License-Identifier: Apache-2.0
"""Segmentation metrics: Dice, surface distances in mm, volumes; a stated policy for empty masks; reports."""

from .accumulator import SegmentationScores
from .reports import summarize, write_metrics
from .scores import Case, evaluate_cases, evaluate_volume

__all__ = ["Case", "SegmentationScores", "evaluate_cases", "evaluate_volume", "summarize", "write_metrics"]
