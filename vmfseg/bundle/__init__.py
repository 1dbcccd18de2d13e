# SPDX-License-Identifier: Apache-2.0
"""MONAI bundles: compiled from YAML layers to self-contained JSON, checked without executing them."""

from vmfseg.model.definitions import record_definitions

from . import distributed
from .check import inspect_bundle
from .keys import check_keys
from .runtime import find_root, start_run
from .trust import read_overlay, require_trusted

record_definitions()

__all__ = [
    "check_keys",
    "distributed",
    "find_root",
    "inspect_bundle",
    "read_overlay",
    "require_trusted",
    "start_run",
]
