# SPDX-License-Identifier: Apache-2.0
"""Segmentation metrics: Dice, surface distances in mm, volumes; a stated policy for empty masks; reports."""

from .accumulator import SegmentationScores
from .policy import POLICY, image_diagonal, mask_status
from .reference import mask_set_distance, reference_summary, reference_volume, slice_micro_dice
from .reports import check_outputs, summarize, write_metrics
from .scores import METRICS, Case, ScoreRow, evaluate_cases, evaluate_volume
from .surface import average_surface_distance, hausdorff_distance, mask_surface, surface_distances
from .tables import format_table
from .volumes import cardiac_function, cardiac_summary, ejection_fraction

__all__ = [
    "METRICS",
    "POLICY",
    "Case",
    "ScoreRow",
    "SegmentationScores",
    "average_surface_distance",
    "cardiac_function",
    "cardiac_summary",
    "check_outputs",
    "ejection_fraction",
    "evaluate_cases",
    "evaluate_volume",
    "format_table",
    "hausdorff_distance",
    "image_diagonal",
    "mask_set_distance",
    "mask_status",
    "mask_surface",
    "reference_summary",
    "reference_volume",
    "slice_micro_dice",
    "summarize",
    "surface_distances",
    "write_metrics",
]
