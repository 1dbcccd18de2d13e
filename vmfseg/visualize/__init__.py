# SPDX-License-Identifier: Apache-2.0
"""Figures of slices, kernels and scores, and the one-file report of a run."""

from .activations import TISSUE_GROUPS, AnatomyTable, ChannelLabel, anatomy_table, draw_confusion, order_channels
from .curves import draw_boxes, draw_history
from .figure_style import png_bytes
from .kernel_maps import explain_scan
from .overlay import draw_overlay
from .report import build_report
from .run_files import open_run, run_experiment
from .slice_montage import draw_montage
from .slice_views import SliceView, as_samples, view_volume, worst_slice
from .viewer import show_volume

__all__ = [
    "TISSUE_GROUPS",
    "AnatomyTable",
    "ChannelLabel",
    "SliceView",
    "anatomy_table",
    "as_samples",
    "build_report",
    "draw_boxes",
    "draw_confusion",
    "draw_history",
    "draw_montage",
    "draw_overlay",
    "explain_scan",
    "open_run",
    "order_channels",
    "png_bytes",
    "run_experiment",
    "show_volume",
    "view_volume",
    "worst_slice",
]
