# SPDX-License-Identifier: Apache-2.0
"""Measures of the learnt representation: interpretability, compositional equivariance, independence of domain."""

from .decoding import information_over_bias
from .equivariance import EquivarianceRow, format_equivariance, measure_equivariance
from .independence import distance_correlation, domain_leakage, pool_content, style_stand_ins
from .interpretability import ChannelMatch, describe_channels, match_channels
from .motions import Motion, default_motions
from .samples import ActivationSample

__all__ = [
    "ActivationSample",
    "ChannelMatch",
    "EquivarianceRow",
    "Motion",
    "default_motions",
    "describe_channels",
    "distance_correlation",
    "domain_leakage",
    "format_equivariance",
    "information_over_bias",
    "match_channels",
    "measure_equivariance",
    "pool_content",
    "style_stand_ins",
]
