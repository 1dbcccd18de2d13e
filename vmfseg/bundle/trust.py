# SPDX-License-Identifier: Apache-2.0
"""Decide what of a bundle may be executed: configs that the layers of this package give, and plain overlays.

A config can run any code. It is executed only by training, and only if it is byte for byte what the layers give, or
the user passes ``--trust``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vmfseg.model.definitions import is_allowed
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath
from vmfseg.utils.tensor_files import check_weights

from .config import entries, overlay, read_config, references
from .new import compiled_files

__all__ = [
    "file_findings",
    "not_plain",
    "read_bytes",
    "read_overlay",
    "require_trusted",
    "some_of",
    "uncompiled_configs",
    "untrusted",
]

#: What a bundle may hold. MONAI puts its folder on the import path, so one Python file anywhere could stand for torch.
_SUFFIXES = frozenset(
    [
        ".json", ".yaml", ".yml", ".conf", ".md", ".txt", ".rst", ".csv", ".html", ".png", ".jpg", ".jpeg", ".svg",
        ".gif", ".pdf", ".cff", ".pt", ".safetensors", ".onnx", ".xml", ".bin", ".pt2", ".ts", ".nii", ".gz", ".nrrd",
        ".mha", ".ipynb",
    ]
)  # fmt: skip
_NAMES = frozenset({"LICENSE", "LICENCE", "NOTICE", "DONE", ".gitkeep", ".gitignore", ".gitattributes", ".lock"})
_TEXTS = (".json", ".yaml", ".yml", ".conf", ".txt", ".md")
#: Files that a training reads by itself; others count only if a user names them.
_EXECUTED = frozenset(
    {"train.json", "paper.json", "evaluate.json", "multi_gpu_train.json", "metadata.json", "logging.conf"}
)
_RUNS = ("output", "eval")  # what runs wrote; weights there are read as tensors only
_MAX_FILES = 10_000
_MAX_FILE = 4_000_000_000
_MAX_TEXT = 20_000_000


def require_trusted(path: StrPath, trust: bool = False) -> None:
    """Refuse to train a bundle whose configs are not what the layers of this package give. Nothing is executed.

    Compared byte for byte are the files that a training uses (``train.json``, its overlays, ``metadata.json``,
    ``logging.conf``) with those of the packaged bundle of that name, or of ``vmfseg bundle new`` with the settings that
    ``metadata.json`` notes. Files that Python could import are refused too, because MONAI puts the folder on the import
    path.

    Args:
        path: folder of the bundle. What is no bundle passes: whoever opens it will say so.
        trust: the user vouches for the bundle (``--trust``); nothing is looked at.

    Raises:
        VmfError: VMF410 with the files that differ, VMF411 for a file that does not belong into a bundle.

    Example:
        >>> import json, tempfile
        >>> configs = Path(tempfile.mkdtemp()) / "configs"
        >>> configs.mkdir()
        >>> _ = (configs / "train.json").write_text(json.dumps({"run": "$__import__('os').system('id')"}))
        >>> require_trusted(configs.parent, trust=True)
        >>> require_trusted(configs.parent)
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF410: a config that the layers of vmfseg do not give is not executed
          about  configs/train.json of ...
          fix    pass --trust if you know who wrote it; vmfseg bundle check shows more
    """
    root = Path(path)
    if trust or not (root / "configs").is_dir():
        return
    found = next((f for f in file_findings(root, weights=False) if f.code == "VMF411"), None)
    if found is None:
        differing = [name for name in uncompiled_configs(root) if name in _EXECUTED]
        found = untrusted(differing) if differing else None
    if found is not None:
        raise VmfError(**{**found.as_dict(), "subject": f"{found.subject} of {path}"})


def read_overlay(path: StrPath, config: Mapping[str, Any], trust: bool = False) -> dict[str, Any]:
    """Read a config file that a user lays over a trusted one; it may hold plain values and allowed classes only.

    Args:
        path: a JSON or YAML file.
        config: what it is laid over.
        trust: the user vouches for the file; it is read as it is.

    Raises:
        VmfError: VMF419 for an expression, a macro, a reference to nothing or a class that is not on the allow-list of
            :mod:`vmfseg.model.definitions`; VMF310 and VMF416 for a file that cannot be read.
    """
    content = read_config(Path(path))
    if trust:
        return content
    known = {name for name, _ in entries(overlay(config, content))}
    for place, found in not_plain(content, known):
        raise VmfError(
            "VMF419",
            subject=f"{path}: {place}",
            rule="an overlay may hold plain values, references and classes of the allow-list only",
            found=found,
            fix="write the value itself, or pass --trust if you know who wrote it",
        )
    return content


def uncompiled_configs(root: Path) -> list[str]:
    """Return the names of the files in ``configs`` that are not byte for byte what the layers give."""
    compiled = compiled_files(root)
    files = [file for file in (root / "configs").iterdir() if file.is_file()]
    files.sort(key=lambda file: (file.name != "train.json", file.name))
    given = {file: compiled.get(f"configs/{file.name}") for file in files}
    return [file.name for file, text in given.items() if text is None or read_bytes(file) != text.encode()]


def read_bytes(file: Path) -> bytes:
    """Return the content of a text file of sane size; what cannot be read is like nothing else."""
    try:
        return file.read_bytes() if file.stat().st_size <= _MAX_TEXT else b"too large"
    except OSError as error:
        return f"cannot be read: {error}".encode()


def untrusted(names: Sequence[str]) -> VmfError:
    """Return VMF410 for configs that the layers do not give."""
    return VmfError("VMF410", subject=some_of([f"configs/{name}" for name in names]))


def file_findings(root: Path, weights: bool = True) -> Iterator[VmfError]:
    """Yield the files of a bundle that do not belong there, are too large, or are weights with more than tensors."""
    count, home = 0, root.resolve()
    for folder, folders, files in os.walk(root):
        for name, is_folder in [*((name, True) for name in folders), *((name, False) for name in files)]:
            path = Path(folder) / name
            place = path.relative_to(root).as_posix()
            run = place.split("/")[0] in _RUNS
            count += 1
            if count > _MAX_FILES:
                yield _too_large(str(root), f"over {_MAX_FILES} files")
                return
            hidden = name.startswith(".") and name not in _NAMES and (is_folder or not run)
            known = path.suffix.lower() in _SUFFIXES or name in _NAMES or name.startswith("events.out.tfevents")
            if path.is_symlink():
                if not path.resolve().is_relative_to(home):
                    yield _foreign(place, "a link must not lead out of the bundle", os.readlink(path))
            elif hidden:
                yield _foreign(place, "a bundle must not have hidden files or folders", name)
            elif is_folder:
                continue
            elif not path.is_file():
                yield _foreign(place, "a bundle must hold regular files", "a pipe or a device")
            elif not known:
                yield _foreign(place, "the file does not belong into a bundle", f"the kind {path.suffix or name}")
            else:
                yield from _content_findings(path, place, weights and not run)
        folders[:] = [name for name in folders if not name.startswith(".")]


def _content_findings(path: Path, place: str, weights: bool) -> Iterator[VmfError]:
    size, suffix = path.stat().st_size, path.suffix.lower()
    if size > (_MAX_TEXT if suffix in _TEXTS else _MAX_FILE):
        yield _too_large(place, f"{size} bytes")
    elif weights and suffix in (".pt", ".safetensors"):
        try:
            check_weights(path)
        except VmfError as error:
            yield VmfError(**{**error.as_dict(), "subject": place})


def not_plain(value: Any, known: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the entries that are more than plain values, allowed classes and references to ``known`` ids."""
    for place, item in entries(value):
        key = place.rpartition("::")[2]
        if key == "_target_":
            if not isinstance(item, str) or not is_allowed(item):
                yield place, str(item)
        elif key in ("_mode_", "_requires_") or (isinstance(item, str) and item.startswith(("$", "%"))):
            yield place, str(item)
        elif isinstance(item, str) and item.startswith("@") and not {*references(item)} & known:
            yield place, item


def some_of(words: Sequence[str]) -> str:
    """Return the first three of a list as text, and how many more there are."""
    return "; ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


def _foreign(place: str, rule: str, found: str) -> VmfError:
    return VmfError("VMF411", subject=place, rule=rule, found=found)


def _too_large(place: str, found: str) -> VmfError:
    return VmfError("VMF420", subject=place, found=found)
