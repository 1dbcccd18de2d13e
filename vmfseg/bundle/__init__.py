# SPDX-License-Identifier: Apache-2.0
"""Bundles: layered sources compiled to self-contained JSON, and the static checker that never runs a config."""

from .fingerprint import config_closure
from .locate import find_root

__all__ = ["config_closure", "find_root"]
