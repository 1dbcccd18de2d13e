# SPDX-License-Identifier: Apache-2.0
"""Measures of the learnt representation: interpretability, compositional equivariance, independence of domain."""

from .decoding import information_over_bias
from .equivariance import measure_equivariance
from .independence import domain_leakage
from .interpretability import describe_channels, match_channels
from .samples import ActivationSample

__all__ = [
    "ActivationSample",
    "describe_channels",
    "domain_leakage",
    "information_over_bias",
    "match_channels",
    "measure_equivariance",
]
