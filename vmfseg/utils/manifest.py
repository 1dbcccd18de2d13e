# SPDX-License-Identifier: Apache-2.0
"""Versions of what a result was made with."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib import metadata

from vmfseg import __version__

__all__ = ["installed_versions", "library_versions"]

_LIBRARIES = ("torch", "monai", "pytorch-ignite", "numpy", "scipy", "nibabel", "itk")


def library_versions() -> dict[str, str]:
    """Return the versions of Python, vmfseg and the libraries whose code decides the figures."""
    return {"python": platform.python_version(), "vmfseg": __version__, **installed_versions(_LIBRARIES)}


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages, ``"absent"`` for one that is not installed.

    Example:
        >>> installed_versions(["no-such-package"])
        {'no-such-package': 'absent'}
    """
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions
