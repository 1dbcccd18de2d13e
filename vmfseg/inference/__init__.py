# SPDX-License-Identifier: Apache-2.0
"""Volumes in, labels on the same grid out, with an honest word on trust; and the network for other runtimes."""

from .calibration import calibrate_quality
from .deploy import DeployedInferer, deploy
from .export import ExportReport, export_bundle
from .inputs import Job, find_images, plan_jobs
from .overlay import draw_overlay
from .plausibility import plausibility
from .prediction import FramePrediction, Prediction
from .predictor import Predictor
from .quality import QualityModel
from .rows import find_rows, rows_of_file
from .segment import SegmentOptions, SegmentResult, segment_files
from .shift import ShiftReference, ShiftReport, SubjectStatistics
from .spec import BundleSpec
from .stage import CalibrationStage
from .survey import shift_groups
from .vendor import vendor_bundle
from .weights import ModelLoader, load_model
from .writer import SaveLabeld, label_path, write_label

__all__ = [
    "BundleSpec",
    "CalibrationStage",
    "DeployedInferer",
    "ExportReport",
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
    "SubjectStatistics",
    "calibrate_quality",
    "deploy",
    "draw_overlay",
    "export_bundle",
    "find_images",
    "find_rows",
    "label_path",
    "load_model",
    "plan_jobs",
    "plausibility",
    "rows_of_file",
    "segment_files",
    "shift_groups",
    "vendor_bundle",
    "write_label",
]
