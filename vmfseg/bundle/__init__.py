# SPDX-License-Identifier: Apache-2.0
"""MONAI bundles: compiled from YAML layers to self-contained JSON, checked without executing them."""

from vmfseg.model.definitions import record_definitions
from vmfseg.model.shelves import model_folder, output_folder

from . import distributed
from .runtime import find_root, start_run

record_definitions()

__all__ = ["distributed", "find_root", "model_folder", "output_folder", "start_run"]
