# SPDX-License-Identifier: Apache-2.0
"""Functions that configs call while they run: find the bundle's folder, check the command line, shorten errors."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from monai.bundle.utils import DEFAULT_EXP_MGMT_SETTINGS

from vmfseg.model.shelves import on_shelf
from vmfseg.threads import restart_calmly
from vmfseg.utils import VmfError
from vmfseg.utils.errors import find_vmf_error

from .config import overlay, read_config
from .keys import check_keys, check_knobs

__all__ = ["check_command_line", "explain_errors", "find_root", "start_run"]

#: Options of ``python -m monai.bundle run`` that are no keys of a config.
_MONAI_OPTIONS = (
    "args_file", "config_file", "final_id", "init_id", "logging_file", "meta_file", "run_id", "tracking",
)  # fmt: skip


def find_root(name: str) -> str:
    """Return the folder of bundle ``name``.

    Looked at in this order: the folder of the config on the command line of MONAI; the current folder; the import path,
    where MONAI puts the folder of a bundle when it runs it; the bundles of :mod:`vmfseg.model.shelves`. A folder counts
    when its ``configs/metadata.json`` carries the name.

    Args:
        name: the entry ``bundle`` of ``configs/metadata.json``.

    Raises:
        VmfError: VMF302 if none of them is the bundle.
    """
    given = [Path(file).absolute().parent.parent for file in _config_files(sys.argv[1:])] if _is_monai() else []
    known = [Path(entry) for entry in sys.path if entry]
    named = on_shelf(name)
    for folder in (*given, Path.cwd(), *known, *([] if named is None else [named])):
        try:
            found = read_config(folder / "configs" / "metadata.json").get("bundle")
        except VmfError:
            continue
        if found == name:
            return os.path.relpath(folder) if folder.resolve().is_relative_to(Path.cwd()) else str(folder.resolve())
    raise VmfError("VMF302", subject=f"bundle {name}", found=f"current folder {Path.cwd()}")


def start_run() -> None:
    """Refuse misspelt keys of ``python -m monai.bundle`` and let it end with the cause of an error.

    The first entry of ``training``, ``evaluating`` and ``run``: ``"$vmfseg.bundle.start_run()"``. Other programs check
    their overrides themselves, so nothing happens there.

    Raises:
        VmfError: VMF110 with the nearest key.
    """
    if _is_monai():
        restart_calmly()
        explain_errors()
        check_command_line(sys.argv[1:])


def check_command_line(words: Sequence[str]) -> None:
    """Refuse keys of a ``monai.bundle run`` command line that its config files do not have.

    Args:
        words: of the command line, ``--key value`` or ``--key=value``.

    Raises:
        VmfError: VMF100 a setting out of its range; VMF110 with the nearest key; VMF310 and VMF319 for files that
            cannot be read or laid over each other.
    """
    options, files = dict(_options(words)), _config_files(words)
    if files and all(Path(file).is_file() for file in files):
        known = overlay(*(read_config(Path(file)) for file in files))
        if options.get("tracking") in DEFAULT_EXP_MGMT_SETTINGS:
            known |= DEFAULT_EXP_MGMT_SETTINGS[options["tracking"]]["configs"]
        keys: dict[str, Any] = {key: value for key, value in options.items() if key not in _MONAI_OPTIONS}
        check_keys(known, keys)
        check_knobs({key: _plain(value) for key, value in keys.items()})


def explain_errors() -> None:
    """Let the program end with the error alone, which MONAI wraps into pages; ``VMFSEG_DEBUG=1`` shows these."""
    previous = sys.excepthook
    if getattr(previous, "explains", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        refusal = find_vmf_error(error)
        if refusal is None or os.environ.get("VMFSEG_DEBUG"):
            previous(kind, error, trace)
        if refusal is not None:
            sys.stderr.write(f"vmfseg: {refusal.render()}\n")

    hook.explains = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _is_monai() -> bool:
    """Tell whether this program is ``python -m monai.bundle``."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name.startswith("monai.bundle")


def _config_files(words: Sequence[str]) -> list[str]:
    """Return the config files that a command line names."""
    text = dict(_options(words)).get("config_file") or ""
    try:
        files = ast.literal_eval(text) if text.startswith(("[", "(")) else text.split(",")
    except (SyntaxError, ValueError):
        return []
    return [file for file in files if isinstance(file, str) and file]


def _plain(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            yield key.replace("-", "_"), value if equals else following
