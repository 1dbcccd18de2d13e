# SPDX-License-Identifier: Apache-2.0
"""What a result was made of: versions, seeds, configuration, data."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from vmfseg import __version__

__all__ = ["build_manifest", "library_versions"]

_LIBRARIES = ("torch", "monai", "pytorch-ignite", "numpy", "scipy", "nibabel", "itk")


def library_versions() -> dict[str, str]:
    """Return the versions of Python, vmfseg and the libraries whose code decides the figures."""
    versions = {"python": platform.python_version(), "vmfseg": __version__}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions


def build_manifest(**facts: Any) -> dict[str, Any]:
    """Return a manifest: the versions, then the facts given. No time and no path, so equal runs have equal manifests.

    Example:
        >>> build_manifest(seed=3, protocol="clean")["seed"]
        3
    """
    manifest: dict[str, Any] = {"format": "vmfseg-manifest-1", "versions": library_versions()}
    manifest.update({key: dict(value) if isinstance(value, Mapping) else value for key, value in facts.items()})
    return manifest
