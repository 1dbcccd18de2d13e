# SPDX-License-Identifier: Apache-2.0
"""Help texts out of docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["help_text"]


def help_text(command: Callable[..., Any]) -> str:
    r"""Return the docstring of a command as its help.

    Paragraphs below a line ``\b`` keep their lines. In a raw docstring that is a backslash and a letter, which would be
    shown; here it becomes the character that typer looks for.

    Example:
        >>> help_text(inspect.cleandoc).splitlines()[0]
        'Clean up indentation from docstrings.'
    """
    return inspect.cleandoc(command.__doc__ or "").replace("\\b", "\b")
