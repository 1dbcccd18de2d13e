# SPDX-License-Identifier: Apache-2.0
"""The trained model: its manifest, the predictor, predicted quality and domain shift."""

from .artifact import Model
from .definitions import prepare_network
from .inferer import SliceBatchInferer
from .inputs import find_rows
from .predictor import Predictor
from .segment import SegmentOptions, segment_files

__all__ = ["Model", "Predictor", "SegmentOptions", "SliceBatchInferer", "find_rows", "prepare_network", "segment_files"]
