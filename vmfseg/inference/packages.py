# SPDX-License-Identifier: Apache-2.0
"""Packages that only some users need."""

from __future__ import annotations

import importlib
from typing import Any

from vmfseg.utils import VmfError

__all__ = ["require_package"]

_EXTRAS = {"nncf": "int8"}


def require_package(module: str) -> Any:
    """Import an optional package.

    Raises:
        VmfError: VMF530 with the command that installs it.
    """
    extra = _EXTRAS.get(module.partition(".")[0], "export")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise VmfError(
            "VMF530",
            subject=module,
            rule="this needs a package that is not installed",
            found=str(error),
            fix=f"pip install 'vmfseg[{extra}]'",
        ) from error
