# SPDX-License-Identifier: Apache-2.0
"""Volumes in, labels on the same grid out."""

from .rows import find_rows, rows_of_file
from .weights import ModelLoader, load_model
from .writer import SaveLabeld, label_path, write_label

__all__ = ["ModelLoader", "SaveLabeld", "find_rows", "label_path", "load_model", "rows_of_file", "write_label"]
