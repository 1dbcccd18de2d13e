# SPDX-License-Identifier: Apache-2.0
"""CSV reader: columns are found by name, for any delimiter, encoding and spelling of the header."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Mapping, Sequence

from vmfseg.utils import VmfError, did_you_mean

__all__ = ["find_columns", "integer", "normalize", "read_table"]


def read_table(path: str | os.PathLike[str]) -> tuple[list[str], list[list[str]]]:
    """Read a CSV file and return its header and its rows, both stripped of spaces; empty rows are left out.

    Raises:
        VmfError: VMF278 if it cannot be read, or has no header or no row below it.
    """
    try:
        with open(path, "rb") as stream:
            raw = stream.read()
    except OSError as error:
        raise _refuse(path, error.strerror or type(error).__name__, "check the path") from error
    if raw[:2] == b"PK":
        raise _refuse(path, "a spreadsheet (xlsx)", "save it as CSV")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    first = next(iter(text.lstrip().splitlines()), "")
    delimiter = max(",;\t", key=first.count)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        rows = [[cell.strip() for cell in row] for row in reader]
    except csv.Error as error:  # a cell of more than 131072 characters, for instance
        raise _refuse(path, str(error), "check the quotes") from error
    rows = [row for row in rows if any(row)]
    if not rows:
        raise _refuse(path, "no rows", "fill in the table")
    header = rows[0]
    if len(rows) == 1:
        raise _refuse(path, "a header and no row below it", "fill in the table")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) > len(header) and any(row[len(header) :]):
            raise _refuse(
                path, f"line {number} has {len(row)} cells, the header {len(header)}", "quote cells with commas"
            )
    return header, [row + [""] * (len(header) - len(row)) for row in rows[1:]]


def normalize(name: str) -> str:
    """Return a header without case, spaces and punctuation.

    Example:
        >>> normalize(" External_Code ")
        'externalcode'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_columns(
    path: str | os.PathLike[str], header: Sequence[str], wanted: Mapping[str, Sequence[str]], required: Sequence[str]
) -> dict[str, int]:
    """Return the position of each wanted column, looked up by any of its names.

    Args:
        path: the table, for messages.
        header: its header.
        wanted: normalized names by column; earlier names win.
        required: columns that must be there.

    Raises:
        VmfError: VMF289 if a required column is missing.

    Example:
        >>> find_columns("t.csv", ["", "External code", "Center"], {"centre": ("centre", "center")}, ["centre"])
        {'centre': 2}
    """
    present = [normalize(name) for name in header]
    found = {}
    for column, names in wanted.items():
        position = next((present.index(name) for name in names if name in present), None)
        if position is not None:
            found[column] = position
        elif column in required:
            raise VmfError(
                "VMF289",
                subject=os.fspath(path),
                rule=f"the table must have a column {column!r}",
                found=", ".join(name for name in header if name) or "no header",
                fix=(did_you_mean(column, header).strip() + f" Name it {names[0]!r}.").strip(),
            )
    return found


def integer(text: str) -> int | None:
    """Return a whole number written as ``"9"`` or ``"9.0"``, ``None`` for anything else.

    Example:
        >>> integer("9.0"), integer("x")
        (9, None)
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else None


def _refuse(path: str | os.PathLike[str], found: str, fix: str) -> VmfError:
    return VmfError("VMF278", subject=os.fspath(path), found=found, fix=fix)
