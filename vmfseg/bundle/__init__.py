# SPDX-License-Identifier: Apache-2.0
"""Bundles: layered sources compiled to self-contained JSON, and the static checker that never runs a config."""

from . import distributed
from .fingerprint import config_closure
from .keys import check_keys
from .locate import find_root
from .running import given_rows
from .start import start_run
from .trust import inspect_bundle, require_trusted

__all__ = [
    "check_keys",
    "config_closure",
    "distributed",
    "find_root",
    "given_rows",
    "inspect_bundle",
    "require_trusted",
    "start_run",
]
