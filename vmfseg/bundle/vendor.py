# SPDX-License-Identifier: Apache-2.0
"""A bundle that carries its code: for places that install nothing but MONAI, such as a model zoo."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path

from vmfseg.model.artifact import find_bundle
from vmfseg.utils import VmfError, atomic_write, read_json, write_json
from vmfseg.utils.io import StrPath

__all__ = ["vendor_bundle"]

#: Parts of the package that no config names, and what Python leaves behind.
_LEFT_OUT = ("cli", "serving", "__pycache__")
#: What of ``models`` goes along; slices of validation images never do, they may show patients.
_MODELS = ("model.pt", "model.safetensors", "manifest.json", "quality.json", "shift.json")


def vendor_bundle(bundle: StrPath, output: StrPath, *, overwrite: bool = False) -> Path:
    """Copy a bundle together with the package that its configs name, so that it runs where vmfseg is not installed.

    The package lies in the bundle's own folder, which MONAI puts on the import path when it runs a config; so the
    configs stay as they are. ``metadata.json`` no longer asks for vmfseg, only for what vmfseg itself needs. Runs,
    predictions and calibration slices are not copied.

    Args:
        bundle: its folder, or a name below ``bundles``.
        output: folder that will hold the bundle's folder.
        overwrite: write into a folder that exists already.

    Returns:
        The new folder.

    Raises:
        VmfError: VMF330 no such bundle, VMF503 the folder exists, VMF501 and VMF502 if it cannot be written.
    """
    root = find_bundle(bundle).resolve()
    target = Path(output).expanduser() / root.name
    if target.resolve() == root or (target.exists() and not overwrite):
        raise VmfError(
            "VMF503", subject=str(target), rule="the output exists already", fix="pass --overwrite or choose another -o"
        )
    for file in _bundle_files(root):
        atomic_write(target / file.relative_to(root), file.read_bytes())
    note = target / "configs" / "metadata.json"
    described = read_json(note)
    described["required_packages_version"] = _requirements()
    write_json(note, described)
    package = Path(str(resources.files("vmfseg")))
    for file in sorted(path for path in package.rglob("*") if path.is_file()):
        inner = file.relative_to(package)
        if not set(inner.parts) & set(_LEFT_OUT):
            atomic_write(target / "vmfseg" / inner, file.read_bytes())
    return target


def _bundle_files(root: Path) -> Iterator[Path]:
    yield from (path for path in (root / "LICENSE",) if path.is_file())
    for folder in ("configs", "docs"):
        yield from sorted(path for path in (root / folder).rglob("*") if path.is_file())
    yield from (path for name in _MODELS if (path := root / "models" / name).is_file())


def _requirements() -> dict[str, str]:
    """Return what vmfseg needs beyond MONAI, torch and NumPy, in the versions that are installed here."""
    lines = [line for line in metadata.requires("vmfseg") or [] if "extra ==" not in line]
    names = [match.group() for line in lines if (match := re.match(r"[\w.-]+", line))]
    return {name: metadata.version(name) for name in names if name.lower() not in ("monai", "torch", "numpy", "typer")}
