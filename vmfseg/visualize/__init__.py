# SPDX-License-Identifier: Apache-2.0
"""Figures of slices, kernels and scores, and the one-file report of a run."""

from .curves import draw_history
from .kernel_maps import explain_scan
from .overlay import draw_overlay
from .report import build_report
from .run_files import run_experiment
from .slice_montage import draw_montage
from .slice_views import view_volume
from .viewer import show_volume

__all__ = [
    "build_report",
    "draw_history",
    "draw_montage",
    "draw_overlay",
    "explain_scan",
    "run_experiment",
    "show_volume",
    "view_volume",
]
