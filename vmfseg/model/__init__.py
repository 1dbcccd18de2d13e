# SPDX-License-Identifier: Apache-2.0
"""The trained model: its manifest, the predictor, predicted quality and domain shift."""

from .artifact import Model
from .definitions import prepare_network, record_definitions
from .inferer import SliceBatchInferer
from .inputs import find_images, find_rows, plan_jobs
from .prediction import FramePrediction, Prediction
from .predictor import Predictor
from .quality import QualityModel
from .segment import SegmentOptions, segment_files
from .shift import ShiftReference, SubjectStatistics
from .survey import shift_groups
from .weights import warm_start
from .writer import write_label

__all__ = [
    "FramePrediction",
    "Model",
    "Prediction",
    "Predictor",
    "QualityModel",
    "SegmentOptions",
    "ShiftReference",
    "SliceBatchInferer",
    "SubjectStatistics",
    "find_images",
    "find_rows",
    "plan_jobs",
    "prepare_network",
    "record_definitions",
    "segment_files",
    "shift_groups",
    "warm_start",
    "write_label",
]
