# SPDX-License-Identifier: Apache-2.0
"""Search path of bundles that are called by name, and the default output folders of their runs.

A name is looked up in ``./bundles``, in ``bundles`` of the repository that an editable install points to, and in the
data of the installed package, in this order. Bundles of an installed package, and models that a bundle ships, are only
read: what a run makes of them goes elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import vmfseg
from vmfseg.utils import VmfError, read_json
from vmfseg.utils.io import StrPath

__all__ = ["INSTALLED", "is_shipped", "known_bundles", "model_folder", "on_shelf", "output_folder"]

_PACKAGE = Path(vmfseg.__file__).resolve().parent
#: Bundles inside the installed package; the wheel puts them there.
INSTALLED = _PACKAGE / "bundles"


def known_bundles() -> dict[str, Path]:
    """Return the folders of the bundles that can be called by name."""
    found: dict[str, Path] = {}
    for shelf in _shelves():
        for note in sorted(shelf.glob("*/configs/metadata.json")):
            found.setdefault(note.parent.parent.name, note.parent.parent)
    return found


def on_shelf(name: StrPath) -> Path | None:
    """Return the folder of the bundle that is called ``name``, or ``None``.

    Example:
        >>> on_shelf("hearts").name, on_shelf("no_such_bundle"), on_shelf("../hearts")
        ('hearts', None, None)
    """
    given = Path(name)
    if given.is_absolute() or len(given.parts) != 1 or given.name in ("", ".", ".."):
        return None
    return next(
        (shelf / given for shelf in _shelves() if (shelf / given / "configs" / "metadata.json").is_file()), None
    )


def output_folder(bundle: StrPath, name: str = "output") -> str:
    """Return where a run of a bundle writes by default: its ``output``, or ``runs/BUNDLE`` for an installed one.

    Args:
        bundle: folder of the bundle.
        name: another folder of the bundle, for instance ``"eval"``: then ``runs/BUNDLE_eval`` for an installed one.

    Example:
        >>> output_folder("bundles/hearts"), output_folder(INSTALLED / "hearts")
        ('bundles/hearts/output', 'runs/hearts')
    """
    root = Path(bundle)
    own = root.name if name == "output" else f"{root.name}_{name}"
    return str(Path("runs") / own if _is_installed(root) else root / name)


def model_folder(bundle: StrPath, output: StrPath = "") -> str:
    """Return where a training of a bundle puts its model by default.

    That is ``models`` of the bundle. A model that the bundle ships stays, and so does everything in an installed
    package: then it is ``models`` of the output folder.

    Args:
        bundle: folder of the bundle.
        output: folder of the run; default :func:`output_folder`.
    """
    root = Path(bundle)
    if _is_installed(root) or is_shipped(root / "models"):
        return str(Path(output or output_folder(root)) / "models")
    return str(root / "models")


def is_shipped(models: StrPath) -> bool:
    """Tell whether the model in a folder was written by ``vmfseg bundle ship``."""
    try:
        manifest = read_json(Path(models) / "manifest.json")
    except VmfError:
        return False
    return isinstance(manifest, dict) and "shipped" in manifest


def _shelves() -> tuple[Path, ...]:
    repository = _PACKAGE.parent
    is_repository = (repository / "setup.cfg").is_file() and (repository / "bundles").is_dir()
    return (Path("bundles"), *([repository / "bundles"] if is_repository else []), INSTALLED)


def _is_installed(root: Path) -> bool:
    return root.resolve().is_relative_to(INSTALLED)
