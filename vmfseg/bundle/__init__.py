# SPDX-License-Identifier: Apache-2.0
"""Bundles: layered sources compiled to self-contained JSON, and the static checker that never runs a config."""

from .locate import find_root

__all__ = ["find_root"]
