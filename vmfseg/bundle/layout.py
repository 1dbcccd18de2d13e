# SPDX-License-Identifier: Apache-2.0
"""Look at the files of a bundle: only those that belong there, none that Python would import, weights as noted."""

from __future__ import annotations

import ast
import configparser
import logging
import logging.handlers
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vmfseg.utils import VmfError, sha256_file
from vmfseg.utils.weights import check_weights

from .documents import read_config

__all__ = ["file_findings", "hash_findings", "logging_findings"]

#: What a bundle may hold. MONAI puts its folder on the import path, so one Python file anywhere could stand for torch.
_SUFFIXES = frozenset(
    [
        ".json", ".yaml", ".yml", ".conf", ".md", ".txt", ".rst", ".csv", ".html", ".png", ".jpg", ".jpeg", ".svg",
        ".gif", ".pdf", ".cff", ".pt", ".safetensors", ".onnx", ".xml", ".bin", ".pt2", ".ts", ".nii", ".gz", ".nrrd",
        ".mha", ".ipynb",
    ]
)  # fmt: skip
_NAMES = frozenset(
    {
        "LICENSE", "LICENCE", "NOTICE", "DONE", ".gitkeep", ".gitignore", ".gitattributes", ".lock",
    }
)  # fmt: skip
_MAX_FILES = 10_000
_MAX_FILE = 4_000_000_000
_MAX_TEXT = 20_000_000
_RUNS = ("output", "eval")  # what runs wrote; only weights from there are opened, as tensors
_WEIGHTS = (".pt", ".safetensors")
#: Programs for other runtimes: opened only if the bundle's own notes name them with their hash.
_NETWORKS = (".ts", ".onnx", ".pt2", ".xml", ".bin")
_HANDLERS = frozenset({"StreamHandler", "NullHandler"})


def file_findings(root: Path) -> Iterator[VmfError]:
    """Yield the files of a bundle that do not belong there.

    Yields:
        VMF411 for programs, links out of the folder, unknown kinds; VMF416 for what is too large; VMF413 for weights
        that are more or less than tensors.
    """
    count = 0
    home = root.resolve()
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]  # git, caches: nothing to import there
        for name in (*folders, *files):
            path = Path(folder) / name
            place = path.relative_to(root).as_posix()
            count += 1
            if path.is_symlink():
                if not path.resolve().is_relative_to(home):
                    yield _refuse(place, "a link that leads out of the bundle", os.readlink(path))
                continue
            if name in folders:
                continue
            if not path.is_file():
                yield _refuse(place, "a file that is none (a pipe, a device)", "not a regular file")
            elif not _belongs(path):
                yield _refuse(place, "a file that does not belong into a bundle", f"the kind {path.suffix or name}")
            else:
                yield from _content(path, place)
        if count > _MAX_FILES:
            yield VmfError("VMF416", subject=str(root), rule="too many files", found=f"over {_MAX_FILES}", fix=_FIX)
            return


def hash_findings(root: Path) -> Iterator[VmfError]:
    """Yield the weights that differ from what ``models/manifest.json`` notes, and networks that it does not know.

    Yields:
        VMF412 for a file that was changed or is not noted, VMF310 for a manifest that cannot be read.
    """
    models = root / "models"
    manifest: Mapping[str, Any] = {}
    if (models / "manifest.json").is_file():
        manifest = read_config(models / "manifest.json", "models/manifest.json")
    noted = manifest.get("sha256", {})
    noted = noted if isinstance(noted, Mapping) else {}
    for name, digest in noted.items():
        path = models / str(name)
        if Path(str(name)).name != name:
            yield _refuse("models/manifest.json", "a note about a file elsewhere", str(name))
        elif path.is_file() and sha256_file(path) != digest:
            yield VmfError(
                "VMF412",
                subject=f"models/{name}",
                rule="the file is not the one that models/manifest.json notes",
                found=f"sha256 {sha256_file(path)[:12]} instead of {str(digest)[:12]}",
                fix="get the bundle again, or train again",
            )
    for path in sorted(models.glob("*")):
        # vmfseg export notes the weights that a network was made of beside it, and the backends compare them
        beside = path.with_name(f"{path.stem}.xml.json" if path.suffix == ".bin" else f"{path.name}.json")
        if path.suffix in _NETWORKS and path.name not in noted and not beside.is_file():
            yield VmfError(
                "VMF412",
                subject=f"models/{path.name}",
                rule="a network for another runtime must be noted in models/manifest.json",
                found="no note about it",
                fix="remove it; vmfseg export makes it again from the weights",
            )


def logging_findings(root: Path) -> Iterator[VmfError]:
    """Yield what in ``configs/logging.conf`` is more than a format: Python evaluates its ``class`` and ``args``.

    Yields:
        VMF414 for a class or argument that is not plain, VMF310 for a file that cannot be read.
    """
    path = root / "configs" / "logging.conf"
    if not path.is_file():
        return
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        yield VmfError(
            "VMF310", subject="configs/logging.conf", rule="the config cannot be read", found=reason, fix="correct it"
        )
        return
    for section in parser.sections():
        for option, value in parser.items(section):
            place, text = f"configs/logging.conf: [{section}] {option}", value.strip()
            if option == "class" and not _is_logging_class(section, text):
                yield _logging(place, text, "class must be StreamHandler, NullHandler or Formatter")
            elif option in ("args", "kwargs", "defaults") and not _is_plain(text):
                yield _logging(place, text, "arguments must be plain values, sys.stdout or sys.stderr")


def _belongs(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES or path.name in _NAMES or path.name.startswith("events.out.tfevents")


def _content(path: Path, place: str) -> Iterator[VmfError]:
    size, suffix = path.stat().st_size, path.suffix.lower()
    text = suffix in (".json", ".yaml", ".yml", ".conf", ".txt", ".md")
    if size > (_MAX_TEXT if text else _MAX_FILE):
        yield VmfError("VMF416", subject=place, rule="the file is too large", found=f"{size} bytes", fix=_FIX)
    elif suffix in _WEIGHTS and place.split("/")[0] not in _RUNS:
        try:
            check_weights(path)
        except VmfError as error:
            yield VmfError(**{**error.as_dict(), "subject": place})


def _is_logging_class(section: str, text: str) -> bool:
    if section.startswith("formatter_"):
        return text in ("", "logging.Formatter", "Formatter")
    return text.removeprefix("logging.") in _HANDLERS and hasattr(logging, text.removeprefix("logging."))


def _is_plain(text: str) -> bool:
    try:
        tree = ast.parse(text or "()", mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.stderr"):
            continue
        if isinstance(node, ast.Name) and node.id == "sys":
            continue
        plain = (ast.Expression, ast.Tuple, ast.List, ast.Dict, ast.Constant, ast.Load, ast.UnaryOp, ast.USub)
        if not isinstance(node, plain):
            return False
    return True


_FIX = "remove it if you know that nothing needs it; --trust takes the bundle as it is"


def _refuse(place: str, rule: str, found: str) -> VmfError:
    return VmfError("VMF411", subject=place, rule=rule, found=found, fix=_FIX)


def _logging(place: str, found: str, rule: str) -> VmfError:
    fix = "take the logging.conf of a bundle of vmfseg; --trust takes the bundle as it is"
    return VmfError("VMF414", subject=place, rule=rule, found=found[:120], fix=fix)
