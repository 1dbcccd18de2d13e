# SPDX-License-Identifier: Apache-2.0
"""What a config does before anything else, whichever program runs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from monai.bundle import ConfigParser

from vmfseg.utils import find_vmf_error

from .keys import check_keys, new_keys, union
from .references import check_config
from .running import running

__all__ = ["explain_errors", "refuse_unknown_keys", "start_run"]


def start_run() -> None:
    """Refuse misspelt keys and broken configs, and let ``python -m monai.bundle`` end with the cause of an error.

    The first entry of ``training``, ``evaluating`` and ``run``: ``"$vmfseg.bundle.start_run()"``.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name.startswith("monai.bundle"):
        explain_errors()
    refuse_unknown_keys()


def refuse_unknown_keys() -> None:
    """Compare the config that is being evaluated with the files of its bundle, see :func:`check_keys`.

    Then look whether it can work at all, see :func:`vmfseg.bundle.references.check_config`.

    MONAI's parser takes up any key from the command line or from a further file, and ignores what nothing refers to.
    Outside of a MONAI workflow nothing happens.

    Raises:
        VmfError: VMF110 with the nearest key; VMF311 to VMF317 for a config that cannot work.
    """
    parser, workflow = running()
    if parser is None or workflow is None:
        return
    folder = Path(workflow.config_root_path)
    files = sorted(f for f in folder.iterdir() if f.suffix in (".json", ".yaml", ".yml") and f.stem != "metadata")
    known = union(ConfigParser.load_config_file(file) for file in files)
    config = {key: value for key, value in parser.config.items() if key != "_meta_"}
    added: dict[str, Any] = {}
    for name in new_keys(config, known):
        added[name] = None
        component = _entry(config, name.rpartition("::")[0])
        if "_target_" in component:  # perhaps another one than in the files
            added[f"{name.rpartition('::')[0]}::_target_"] = component["_target_"]
    check_keys(known, added, context=config)
    check_config(config, folder.as_posix())


def explain_errors() -> None:
    """Let the program end with the refusal alone, which MONAI wraps into pages; ``VMFSEG_DEBUG=1`` shows these."""
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


def _entry(config: Any, name: str) -> Any:
    for part in name.split("::") if name else ():
        config = config[part]
    return config
