# SPDX-License-Identifier: Apache-2.0
"""Whether a bundle can be opened without fear. A bundle from elsewhere is a program; this looks before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath

from .check import overlay
from .documents import config_files, read_config, stack
from .layout import file_findings, hash_findings, logging_findings
from .references import config_findings
from .static import code_findings

__all__ = ["bundle_findings", "inspect_bundle", "require_trusted"]


def require_trusted(path: StrPath, trust: bool = False) -> None:
    """Refuse a bundle that could run code of its own, before anything of it is used. Nothing in it is executed.

    Call it before any use of a bundle that a user names. A bundle passes if every expression and every ``_target_`` of
    its configs is in the lists of :mod:`vmfseg.bundle.targets`, its files are of the kinds that belong there, and its
    weights are tensors and have the hashes that its manifest notes; those made by vmfseg do.

    Args:
        path: folder of the bundle. What is no bundle passes: whoever opens it will say so.
        trust: the user vouches for it (``--trust``); nothing is looked at.

    Raises:
        VmfError: VMF410 to VMF416, the first finding and how many more there are.

    Example:
        >>> import json, tempfile
        >>> configs = Path(tempfile.mkdtemp()) / "configs"
        >>> configs.mkdir()
        >>> _ = (configs / "train.json").write_text(json.dumps({"run": "$__import__('os').system('id')"}))
        >>> require_trusted(configs.parent, trust=True)
        >>> require_trusted(configs.parent)
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF410: the expression must not have the attribute system, ...
          about  configs/train.json: run of ...
          found  $__import__('os').system('id')
          fix    do not run it unless you know who wrote it; --trust runs it all the same
    """
    if trust or not (Path(path) / "configs").is_dir():
        return
    findings = [finding for finding in bundle_findings(path, broken=False) if finding.exit_code == 5]
    if findings:
        more = f" (and {len(findings) - 1} more: vmfseg bundle check {path})" if len(findings) > 1 else ""
        raise VmfError(**{**findings[0].as_dict(), "subject": f"{findings[0].subject} of {path}{more}"})


def bundle_findings(path: StrPath, broken: bool = True) -> Iterator[VmfError]:
    """Yield everything that is wrong with a bundle, what could harm first.

    Args:
        path: folder of the bundle.
        broken: also look whether its configs can work (codes VMF3xx).

    Yields:
        VMF410 to VMF416 for what is not to be trusted, VMF310 to VMF318 for what is broken.
    """
    root = Path(path)
    configs: dict[str, dict[str, Any]] = {}
    failed: list[VmfError] = []
    yield from file_findings(root)
    for file in config_files(root):
        try:
            configs[file.name] = read_config(file, f"configs/{file.name}")
        except VmfError as error:
            failed.append(error)
    found = [*failed, *code_findings(root, configs), *logging_findings(root)]
    try:
        found += hash_findings(root)
    except VmfError as error:
        found.append(error)
    yield from sorted(found, key=lambda finding: finding.exit_code != 5)
    if broken:
        yield from _broken(root, configs, bool(failed))


def inspect_bundle(path: StrPath) -> list[VmfError]:
    """Return the findings about a bundle, each once; an empty list is a good bundle.

    Raises:
        VmfError: VMF318 if the folder is no bundle.
    """
    root = Path(path)
    if not (root / "configs").is_dir():
        raise VmfError(
            "VMF318",
            subject=str(path),
            rule="this is no bundle",
            found="a folder without configs" if root.is_dir() else "no such folder",
            fix="give the folder that holds configs, models and docs, or a zip file of it",
        )
    unique: dict[tuple[str, str, str], VmfError] = {}
    for finding in bundle_findings(root):
        # a mistake in train.json shows in every file that is laid over it
        place = finding.subject.rpartition("json: ")[2] if finding.exit_code == 4 else finding.subject
        unique.setdefault((finding.code, place, finding.found), finding)
    return list(unique.values())


def _broken(root: Path, configs: dict[str, dict[str, Any]], partly: bool) -> Iterator[VmfError]:
    if not (root / "configs" / "metadata.json").is_file() and not partly:
        yield VmfError(
            "VMF318",
            subject="configs/metadata.json",
            rule="a bundle must have it",
            found="no such file",
            fix="copy it from another bundle and adapt it",
        )
    for target, files in stack(configs).items():
        base = f"configs/{target}"
        try:
            merged = overlay(*(configs[file] for file in files))
        except (KeyError, TypeError, IndexError, ValueError) as error:
            yield VmfError(
                "VMF311",
                subject=base,
                rule="a nested key must lead to an entry of train.json",
                found=str(error.args[0] if error.args else error),
                fix="correct the key, or write the section into train.json",
            )
            continue
        yield from config_findings(merged, base)
