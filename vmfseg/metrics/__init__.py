# SPDX-License-Identifier: Apache-2.0
"""Figures one can trust: overlap and distances in mm, with a stated policy for empty masks."""

from .accumulator import SegmentationScores
from .decoding import information_over_bias
from .equivariance import EquivarianceRow, format_equivariance, measure_equivariance
from .independence import distance_correlation, domain_leakage, pool_content, style_stand_ins
from .interpretability import ChannelMatch, describe_channels, match_channels
from .motions import Motion, default_motions
from .policy import POLICY, image_diagonal, mask_status
from .reference import mask_set_distance, reference_summary, reference_volume, slice_micro_dice
from .reports import check_outputs, summarize, write_metrics
from .samples import ActivationSample
from .scores import METRICS, Case, ScoreRow, evaluate_cases, evaluate_volume
from .surface import average_surface_distance, hausdorff_distance, mask_surface, surface_distances
from .tables import format_table
from .volumes import cardiac_function, cardiac_summary, ejection_fraction

__all__ = [
    "METRICS",
    "POLICY",
    "ActivationSample",
    "Case",
    "ChannelMatch",
    "EquivarianceRow",
    "Motion",
    "ScoreRow",
    "SegmentationScores",
    "average_surface_distance",
    "cardiac_function",
    "cardiac_summary",
    "check_outputs",
    "default_motions",
    "describe_channels",
    "distance_correlation",
    "domain_leakage",
    "ejection_fraction",
    "evaluate_cases",
    "evaluate_volume",
    "format_equivariance",
    "format_table",
    "hausdorff_distance",
    "image_diagonal",
    "information_over_bias",
    "mask_set_distance",
    "mask_status",
    "mask_surface",
    "match_channels",
    "measure_equivariance",
    "pool_content",
    "reference_summary",
    "reference_volume",
    "slice_micro_dice",
    "style_stand_ins",
    "summarize",
    "surface_distances",
    "write_metrics",
]
