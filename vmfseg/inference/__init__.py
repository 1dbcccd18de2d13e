# SPDX-License-Identifier: Apache-2.0
"""Volumes in, labels on the same grid out, with an honest word on trust; and the network for other runtimes."""

from .deploy import DeployedInferer, deploy
from .export import ExportReport, export_bundle
from .inputs import Job, find_images, plan_jobs
from .overlay import draw_overlay
from .plausibility import plausibility
from .predictor import FramePrediction, Prediction, Predictor
from .quality import QualityModel
from .rows import find_rows, rows_of_file
from .segment import SegmentOptions, SegmentResult, segment_files
from .spec import BundleSpec
from .weights import ModelLoader, load_model
from .writer import SaveLabeld, label_path, write_label

__all__ = [
    "BundleSpec",
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
    "write_label",
]
