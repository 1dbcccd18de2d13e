# SPDX-License-Identifier: Apache-2.0
"""Versions of what a result was made with, here and in another environment."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from importlib import metadata

from vmfseg import __version__

__all__ = ["installed_versions", "library_versions", "nnunet_versions"]

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


def nnunet_versions() -> dict[str, str]:
    """Return the versions of nnunetv2 and of the torch beside it, where ``VMFSEG_NNUNET_PYTHON`` says or here."""
    names, python = ("nnunetv2", "torch"), os.environ.get("VMFSEG_NNUNET_PYTHON", "")
    found = _versions_there(python, names) if python else installed_versions(names)
    return {"nnunetv2": found["nnunetv2"], "nnunetv2's torch": found["torch"]}


@lru_cache
def _versions_there(python: str, names: tuple[str, ...]) -> dict[str, str]:
    """Return what :func:`installed_versions` would in the environment of another interpreter."""
    found = "next((d.version for d in m.distributions(name=n)), 'absent')"
    code = f"import json, sys, importlib.metadata as m; print(json.dumps({{n: {found} for n in sys.argv[1:]}}))"
    try:
        done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)  # noqa: S603
        return dict(json.loads(done.stdout))
    except (OSError, subprocess.CalledProcessError, ValueError):
        return dict.fromkeys(names, "absent")
