# SPDX-License-Identifier: Apache-2.0
"""Pictures of what a network does, and the one-file report of a run."""

from .activations import TISSUE_GROUPS, AnatomyTable, ChannelLabel, anatomy_table, draw_confusion, order_channels
from .curves import draw_boxes, draw_history
from .model import RunModel, load_run_model
from .montage import draw_montage
from .overlay import draw_overlay
from .report import build_report
from .run import RunFiles, open_run
from .style import png_bytes
from .viewer import show_volume
from .views import SliceView, as_samples, view_volume, worst_slice

__all__ = [
    "TISSUE_GROUPS",
    "AnatomyTable",
    "ChannelLabel",
    "RunFiles",
    "RunModel",
    "SliceView",
    "anatomy_table",
    "as_samples",
    "build_report",
    "draw_boxes",
    "draw_confusion",
    "draw_history",
    "draw_montage",
    "draw_overlay",
    "load_run_model",
    "open_run",
    "order_channels",
    "png_bytes",
    "show_volume",
    "view_volume",
    "worst_slice",
]
