# SPDX-License-Identifier: Apache-2.0
"""A bundle for a user's own data, made of the layers that the bundles of the package are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vmfseg.utils import VmfError, check_choice, check_divisible, check_positive
from vmfseg.utils.io import StrPath

from .compile import compile_spec, described_bundles, write_files

__all__ = ["METHODS", "new_bundle"]

#: Methods that a new bundle can have.
METHODS = ("unsupervised", "vmfnet", "vmfpseudo", "vmfweak", "weak")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")
_HALVED = 16


def new_bundle(
    name: str,
    folder: StrPath,
    labels: Sequence[str],
    spacing: float,
    size: int,
    *,
    method: str = "vmfnet",
    target_domain: str = "",
    labeled_fraction: float = 1.0,
    overwrite: bool = False,
) -> list[Path]:
    """Write a bundle for a folder of scans with a table (see :class:`vmfseg.data.FolderDataset`).

    Args:
        name: of the bundle: small letters, digits and ``_``.
        folder: where the bundle's folder goes.
        labels: names of the classes 1, 2, ... in the masks.
        spacing: in-plane spacing of the network's slices in mm; that of your finest scanner is a good start.
        size: in-plane size of the slices in pixels, a multiple of 16; ``size * spacing`` mm must hold the organ.
        method: one of :data:`METHODS`.
        target_domain: the domain that is left out and judged; can be given at the training instead.
        labeled_fraction: of the labelled subjects, which part is used with its labels.
        overwrite: replace files of a bundle that is there.

    Returns:
        The files.

    Raises:
        ValueError: for an argument that cannot work.
        VmfError: VMF503 if the bundle is there already.

    Example:
        >>> import tempfile
        >>> files = new_bundle("knee", tempfile.mkdtemp(), ["femur", "tibia"], spacing=0.8, size=128)
        >>> sorted(path.name for path in files if path.suffix == ".json")
        ['evaluate.json', 'inference.json', 'metadata.json', 'multi_gpu_train.json', 'paper.json', 'train.json']
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"name must be small letters, digits and _, got {name!r}. Use for instance knee_t2.")
    names = [str(label).strip() for label in labels]
    if not names or len({*names, "background"}) != len(names) + 1 or not all(_is_label(label) for label in names):
        raise ValueError(f"labels must be different words without the background, got {names}. Use LV,MYO,RV.")
    check_positive("spacing", spacing, "It is the in-plane spacing in mm.")
    check_divisible("size", (size, size), _HALVED, "the encoder halves it four times")
    check_choice("method", method, METHODS)
    if not 0 < labeled_fraction <= 1:
        raise ValueError(f"labeled_fraction must be above 0 and at most 1, got {labeled_fraction}. Write 5 % as 0.05.")
    root = Path(folder) / name
    if root.exists() and not overwrite:
        raise VmfError(
            "VMF503", subject=str(root), rule="the output exists already", fix="pass --overwrite or choose another name"
        )
    like = next(spec for spec in described_bundles().values() if spec["fields"]["METHOD"] == method)
    numbered = list(enumerate(["background", *names]))
    fields: dict[str, Any] = {
        **like["fields"],
        "DATA": "folder",
        "TITLE": name,
        "OWN_CLASSES": len(numbered),
        "OWN_PIXDIM": float(spacing),
        "OWN_SIZE": int(size),
        "OWN_TARGET": target_domain,
        "OWN_FRACTION": float(labeled_fraction),
        "CHANNEL_DEF": {str(value): label for value, label in numbered},
        "CLASS_LIST": ", ".join(f"{value} {label}" for value, label in numbered),
        "CLASS_NAMES": ", ".join(names),
    }
    return write_files(compile_spec(name, {**like, "fields": fields}), root)


def _is_label(label: str) -> bool:
    # braces are fields of the layers, the others begin references, expressions and macros of MONAI
    return bool(label) and not set(label) & set("{}\n\"'") and label[0] not in "$@%"
