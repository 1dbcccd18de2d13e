# SPDX-License-Identifier: Apache-2.0
"""Check names that clients send: ids, tags, file names.

An id is only ever looked up in an index, so what it says cannot lead anywhere; one that tries is refused all the same,
aloud. Names that do become part of a file name, of new images and tags, must be plain.
"""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import PurePosixPath
from typing import Any

from vmfseg.data.reader import SUPPORTED_SUFFIXES
from vmfseg.utils import VmfError

__all__ = ["check_id", "check_plain", "parse_object", "safe_stem", "split_suffix"]

_PLAIN = re.compile(r"\w(?:[\w .+=@-]{0,118}\w)?")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_ID, _MAX_OBJECT = 512, 1 << 16
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}


def check_id(what: str, value: str) -> str:
    r"""Return an id if nothing in it looks like a way out of a folder.

    Raises:
        VmfError: VMF184.

    Example:
        >>> check_id("image", "site1/scan")
        'site1/scan'
        >>> check_id("image", "..\\..\\secret")
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF184: image must be the id of something that is listed...
    """
    parts = value.replace("\\", "/").split("/")
    odd = any(unicodedata.category(char) in ("Cc", "Cs") for char in value)
    if not value or len(value) > _MAX_ID or odd or "\\" in value or {"", ".", ".."} & set(parts):
        raise _refuse(what, "must be the id of something that is listed", value, "take an id from /datastore/")
    return value


def check_plain(what: str, value: str) -> str:
    """Return a name that may become part of a file name.

    Raises:
        VmfError: VMF184.

    Example:
        >>> check_plain("tag", "final")
        'final'
        >>> check_plain("tag", "a/../b")
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF184: tag must be a plain name of at most 120 characters...
    """
    name = unicodedata.normalize("NFC", value)
    stem = name.split(".")[0].strip().lower()
    if not _PLAIN.fullmatch(name) or ".." in name or stem in _RESERVED or len(name.encode()) > 200:
        rule = "must be a plain name of at most 120 characters"
        raise _refuse(what, rule, value, "use letters, digits, - _ . and no folder")
    return name


def split_suffix(what: str, filename: str | None) -> tuple[str, str]:
    """Return stem and ending of an uploaded file's name; folders before the name are dropped, as browsers do.

    Raises:
        VmfError: VMF184 an odd name, VMF205 an ending that is not read.

    Example:
        >>> split_suffix("file", "/home/me/Scan.NII.GZ")
        ('Scan', '.nii.gz')
    """
    text = filename or ""
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in text):
        raise _refuse(what, "must have a plain file name", text, "rename the file")
    name = PurePosixPath(text.replace("\\", "/")).name
    for suffix in sorted(SUPPORTED_SUFFIXES, key=len, reverse=True):
        if name.lower().endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)], suffix
    raise VmfError(
        "VMF205",
        subject=name or what,
        rule=f"images must be {', '.join(SUPPORTED_SUFFIXES)}",
        found=PurePosixPath(name).suffix or "no file extension",
        fix="convert the image to .nii.gz",
    )


def safe_stem(name: str) -> str:
    """Return a name for a download: ASCII, no folder, no quote.

    Example:
        >>> safe_stem('site1/scan "7"')
        'scan_7_'
    """
    return _UNSAFE.sub("_", PurePosixPath(name).name)[:80].lstrip(".") or "scan"


def parse_object(what: str, text: str | None) -> dict[str, Any]:
    """Read a JSON object that came as text.

    Raises:
        VmfError: VMF185.

    Example:
        >>> parse_object("params", '{"result_extension": ".nrrd"}')
        {'result_extension': '.nrrd'}
    """
    if not text:
        return {}
    found = ""
    try:
        if len(text) > _MAX_OBJECT:
            raise ValueError(f"{len(text)} characters, at most {_MAX_OBJECT} are read")
        value = json.loads(text, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair could never be sent back
        if isinstance(value, dict):
            return value
        found = type(value).__name__
    except (ValueError, RecursionError) as error:
        found = str(error)
    raise VmfError("VMF185", subject=what, rule="must be a JSON object", found=found, fix="send {} for none")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _refuse(what: str, rule: str, value: str, fix: str) -> VmfError:
    return VmfError("VMF184", subject=what, rule=f"{what} {rule}", found=repr(value[:80]), fix=fix)
