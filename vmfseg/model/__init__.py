# SPDX-License-Identifier: Apache-2.0
"""Volumes in, labels on the same grid out, with an honest word on trust; and the network for other runtimes."""

from .calibration import calibrate_quality
from .deploy import DeployedInferer, deploy
from .inferer import SliceBatchInferer
from .inputs import Job, find_images, plan_jobs
from .listing import find_rows, rows_of_file
from .plausibility import plausibility
from .prediction import FramePrediction, Prediction
from .predictor import Predictor
from .quality import QualityModel
from .segment import SegmentOptions, SegmentResult, segment_files
from .shift import ShiftReference, ShiftReport, SubjectStatistics
from .spec import BundleSpec
from .survey import shift_groups
from .weights import ModelLoader, load_model
from .writer import SaveLabeld, label_path, write_label

__all__ = [
    "BundleSpec",
    "DeployedInferer",
    "FramePrediction",
    "Job",
    "ModelLoader",
    "Prediction",
    "Predictor",
    "QualityModel",
    "SaveLabeld",
    "SegmentOptions",
    "SegmentResult",
    "ShiftReference",
    "ShiftReport",
    "SliceBatchInferer",
    "SubjectStatistics",
    "calibrate_quality",
    "deploy",
    "find_images",
    "find_rows",
    "label_path",
    "load_model",
    "plan_jobs",
    "plausibility",
    "rows_of_file",
    "segment_files",
    "shift_groups",
    "write_label",
]
