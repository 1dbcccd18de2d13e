# SPDX-License-Identifier: Apache-2.0
"""Bundles for a user's own data, compiled from the layers, with the recipe noted so that compiling can be repeated."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vmfseg.utils import VmfError, check_choice
from vmfseg.utils.checks import check_divisible, check_positive
from vmfseg.utils.io import StrPath, refuse_existing

from .compile import bundle_names, compile_bundle, compile_spec, described_bundles, format_json, write_files
from .config import read_config

__all__ = ["DEFAULT_BATCH", "DEFAULT_WIDTH", "METHODS", "Recipe", "compiled_files", "new_bundle", "widths_of"]

#: Methods that a new bundle can have.
METHODS = ("dgnet", "lddg", "saml", "sdnet", "unet", "unsupervised", "vmfnet", "vmfpseudo", "vmfweak", "weak")
#: Channels of the finest level and slices in a batch, as in the packaged bundles.
DEFAULT_WIDTH, DEFAULT_BATCH = 16, 4
_NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")
#: Names go into configs, where quotes, braces, $, @ and % would mean something.
_WORD = re.compile(r"\w[\w .+()-]{0,60}")
_HALVED = 16
_MAX_SIZE = 4096
_MAX_LABELS = 254
_MAX_WIDTH, _MAX_BATCH = 256, 1024


@dataclass(frozen=True)
class Recipe:
    """What decides the files of a new bundle. Also read from foreign ``metadata.json``, so it is checked strictly.

    Args:
        labels: names of the classes 1, 2, ... in the masks.
        spacing: in-plane spacing of the network's slices in mm.
        size: in-plane size of the slices in pixels, a multiple of 16.
        method: one of :data:`METHODS`.
        target_domain: the domain that is left out and judged, or nothing.
        labeled_fraction: of the labelled subjects, which part is used with its labels.
        width: channels of the finest level of the network, see :func:`widths_of`.
        batch_size: slices in a batch, labelled and unlabelled ones alike.

    Raises:
        ValueError: for a value that cannot work.
    """

    labels: Sequence[str]
    spacing: float
    size: int
    method: str = "vmfnet"
    target_domain: str = ""
    labeled_fraction: float = 1.0
    width: int = DEFAULT_WIDTH
    batch_size: int = DEFAULT_BATCH

    def __post_init__(self) -> None:
        names = list(self.labels) if isinstance(self.labels, list | tuple) else []
        words = all(isinstance(name, str) and _WORD.fullmatch(name) for name in names)
        if not words or not 0 < len(names) <= _MAX_LABELS or len({*names, "background"}) != len(names) + 1:
            raise ValueError(f"labels must be different words without the background, got {names}. Use LV,MYO,RV.")
        for key in ("spacing", "labeled_fraction"):
            if type(getattr(self, key)) not in (int, float) or not math.isfinite(getattr(self, key)):
                raise ValueError(f"{key} must be a number, got {getattr(self, key)!r}. Use for instance 0.8.")
        check_positive("spacing", self.spacing, "It is the in-plane spacing in mm.")
        if type(self.size) is not int or not 0 < self.size <= _MAX_SIZE:
            raise ValueError(f"size must be a whole number up to {_MAX_SIZE}, got {self.size!r}. Use for instance 160.")
        check_divisible("size", (self.size, self.size), _HALVED, "the encoder halves it four times")
        for key, most in (("width", _MAX_WIDTH), ("batch_size", _MAX_BATCH)):
            if type(getattr(self, key)) is not int or not 0 < getattr(self, key) <= most:
                raise ValueError(f"{key} must be a whole number up to {most}, got {getattr(self, key)!r}. Use 16 or 4.")
        check_choice("method", self.method, METHODS)
        if not isinstance(self.target_domain, str) or (self.target_domain and not _WORD.fullmatch(self.target_domain)):
            raise ValueError(f"target_domain must be a plain word, got {self.target_domain!r}. Use for instance siteC.")
        if not 0 < self.labeled_fraction <= 1:
            found = self.labeled_fraction
            raise ValueError(f"labeled_fraction must be above 0 and at most 1, got {found}. Write 5 % as 0.05.")

    def compile(self, name: str) -> dict[str, str]:
        """Return the files of the bundle ``name``: path below the bundle's folder to content.

        Raises:
            ValueError: for a name that is not small letters, digits and ``_``.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"name must be small letters, digits and _, got {name!r}. Use for instance knee_t2.")
        like = next(spec for spec in described_bundles().values() if spec["fields"]["METHOD"] == self.method)
        fields: dict[str, Any] = {
            **like["fields"],
            "DATA": "folder",
            "TITLE": name,
            "OWN_PIXDIM": float(self.spacing),
            "OWN_SIZE": self.size,
            "OWN_TARGET": self.target_domain,
            "OWN_FRACTION": float(self.labeled_fraction),
            "WIDTHS": list(widths_of(self.width)),
            "HIDDEN": self.width,
            "BATCH": self.batch_size,
            "COMPACT": None,
            "CHANNEL_DEF": {str(value): label for value, label in enumerate(["background", *self.labels])},
        }
        files = compile_spec(name, {**like, "fields": fields})
        usual = {"width": DEFAULT_WIDTH, "batch_size": DEFAULT_BATCH}  # left out, as in bundles of older versions
        recipe = {key: value for key, value in asdict(self).items() if usual.get(key) != value}
        metadata = {**json.loads(files["configs/metadata.json"]), "vmfseg": recipe}
        files["configs/metadata.json"] = format_json(metadata) + "\n"
        return files


def widths_of(width: int) -> tuple[int, ...]:
    """Return the channels of all levels of the encoder: doubled three times, as in the paper, which starts with 64.

    Example:
        >>> widths_of(64)
        (64, 128, 256, 512, 512)
    """
    return width, 2 * width, 4 * width, 8 * width, 8 * width


def new_bundle(
    name: str,
    folder: StrPath,
    labels: Sequence[str],
    spacing: float,
    size: int,
    *,
    overwrite: bool = False,
    **settings: Any,
) -> list[Path]:
    """Write a bundle for a folder of scans with a table (see :class:`vmfseg.data.FolderDataset`).

    Args:
        name: of the bundle: small letters, digits and ``_``.
        folder: where the bundle's folder goes.
        labels: names of the classes 1, 2, ... in the masks.
        spacing: in-plane spacing of the network's slices in mm; that of your finest scanner is a good start.
        size: in-plane size of the slices in pixels, a multiple of 16; ``size * spacing`` mm must hold the organ.
        overwrite: replace files of a bundle that is there.
        **settings: ``method``, ``target_domain`` and what else a :class:`Recipe` takes.

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
    files = Recipe([str(label).strip() for label in labels], spacing, size, **settings).compile(name)
    root = Path(folder) / name
    refuse_existing([root], overwrite)
    return write_files(files, root)


def compiled_files(root: Path) -> dict[str, str]:
    """Return what the layers give for the bundle in a folder: path below the folder to content.

    The bundle is known by ``configs/metadata.json``: a packaged one by its name, one of :func:`new_bundle` by the
    recipe in the entry ``vmfseg``. Both are plain values that are checked before they are used.

    Returns:
        Nothing if the layers know no such bundle.
    """
    try:
        metadata = read_config(root / "configs" / "metadata.json")
        name, recipe = metadata.get("bundle"), metadata.get("vmfseg")
        if isinstance(recipe, dict) and isinstance(name, str):
            return Recipe(**recipe).compile(name)
        return compile_bundle(name) if name in bundle_names() else {}
    except (VmfError, ValueError, TypeError):
        return {}
