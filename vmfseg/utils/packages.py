# SPDX-License-Identifier: Apache-2.0
"""Import of packages that only some users need."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from vmfseg.utils import VmfError

__all__ = ["check_package", "require_package"]

#: The extra that installs a module; "export" for all others.
_EXTRAS = {
    "fastapi": "serve",
    "highdicom": "dicom",
    "ipyniivue": "tutorials",
    "nncf": "int8",
    "pydicom": "dicom",
    "python_multipart": "serve",
    "ray": "ray",
    "skimage": "mesh",
    "submitit": "slurm",
    "uvicorn": "serve",
}


def require_package(module: str) -> Any:
    """Import an optional package.

    Raises:
        VmfError: VMF530 with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(module, str(error)) from error


def check_package(module: str) -> None:
    """Make sure that an optional package is there, without importing it into this process.

    Raises:
        VmfError: VMF530 with the command that installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise _missing(module, f"No module named '{module}'")


def _missing(module: str, found: str) -> VmfError:
    extra = _EXTRAS.get(module.partition(".")[0], "export")
    return VmfError("VMF530", subject=module, found=found, fix=f"pip install 'vmfseg[{extra}]'")
