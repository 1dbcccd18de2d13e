# SPDX-License-Identifier: Apache-2.0
"""Transform that loads a row: paths become tensors, image channels and label on one grid."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.transforms import MapTransform
from monai.utils import ensure_tuple

from vmfseg.data.findings import warn_findings
from vmfseg.data.masks import Fusion, align_label, check_label_values, read_frame, read_label
from vmfseg.data.reader import Volume, volume_meta
from vmfseg.data.volume import ReadRules
from vmfseg.utils import check_choice

__all__ = ["LoadVolumed", "read_channels", "to_metatensor"]


class LoadVolumed(MapTransform):  # type: ignore[misc]
    """Load the image and, where there is one, the label of a row through the strict reader.

    The row's ``frame`` picks one frame of a 4-D file. A list of images gives the channels in that order, a list of
    masks (several raters) is fused. Further channels and the label are brought to the axes of the first image by their
    affines, and refused if they lie on another grid. What is unusual but accepted is issued as a
    :class:`~vmfseg.data.findings.DataWarning`.

    Shape: image ``(C, X, Y, Z)`` float32; label ``(1, X, Y, Z)`` uint8 (int32 above 255). Both are ``MetaTensor``.

    Args:
        keys: what to load. The first key is required, the others are left out where a row has none.
        label_keys: which of them are labels.
        num_classes: if given, labels must be below it; otherwise they must not be negative.
        fusion: how masks of several raters are fused, ``"majority"`` or ``"staple"``.
        rules: rules for images, see :class:`~vmfseg.data.volume.ReadRules`.

    Raises:
        VmfError: see :mod:`vmfseg.data.reader`; VMF251 to VMF255 for labels.

    Example:
        >>> import nibabel as nib, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> cine = np.random.default_rng(0).integers(0, 99, (32, 24, 3, 5)).astype(np.int16)
        >>> nib.save(nib.Nifti1Image(cine, np.eye(4)), folder / "cine.nii.gz")
        >>> row = LoadVolumed()({"image": str(folder / "cine.nii.gz"), "frame": 2, "subject": "s1"})
        >>> tuple(row["image"].shape), "label" in row, bool((row["image"].numpy()[0] == cine[..., 2]).all())
        ((1, 32, 24, 3), False, True)
    """

    def __init__(
        self,
        keys: KeysCollection = ("image", "label"),
        *,
        label_keys: KeysCollection = "label",
        num_classes: int | None = None,
        fusion: Fusion = "majority",
        **rules: Any,
    ) -> None:
        super().__init__(keys, allow_missing_keys=True)
        check_choice("fusion", fusion, ["majority", "staple"])
        if num_classes is not None and num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {num_classes}. Count the background too.")
        self.label_keys = set(ensure_tuple(label_keys))
        self.num_classes = num_classes
        self.fusion: Fusion = fusion
        self.rules = {key: value for key, value in rules.items() if key != "kind"}
        ReadRules(**self.rules)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the row with tensors in the place of paths."""
        row = dict(data)
        if self.keys[0] not in row:
            raise KeyError(f"key {self.keys[0]!r} must be in the row, got {sorted(str(key) for key in row)}.")
        frame = row.get("frame")
        image: Volume | None = None
        for key in self.key_iterator(row):
            if key in self.label_keys:
                label = self._label(row[key], frame, row.get("label_map"))
                label = label if image is None else align_label(image, label)
                warn_findings(label.findings)
                row[key] = to_metatensor(
                    label if image is None else replace(label, original_affine=image.original_affine), label=True
                )
            else:
                channels = read_channels(row[key], frame, **self.rules)
                warn_findings(finding for volume in channels for finding in volume.findings)
                image = image or channels[0]
                row[key] = to_metatensor(*channels)
        return row

    def _label(self, value: Any, frame: int | None, label_map: Mapping[int, int] | None) -> Volume:
        paths = os.fspath(value) if isinstance(value, str | os.PathLike) else [os.fspath(item) for item in value]
        label = read_label(paths, frame, label_map=label_map, fusion=self.fusion, **self.rules)
        top = self.num_classes or int(label.array.max(initial=0.0)) + 1
        check_label_values(label, range(top))
        return label


def read_channels(
    paths: str | os.PathLike[str] | Sequence[str], frame: int | None = None, **rules: Any
) -> list[Volume]:
    """Read the files of one image, one a channel, all on the grid of the first.

    Raises:
        VmfError: VMF253 to VMF255 for a file on another grid; otherwise as :func:`~vmfseg.data.reader.read_volume`.
    """
    names = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    volumes = [read_frame(name, frame, **rules) for name in names]
    return [volumes[0], *(align_label(volumes[0], volume, what="channel") for volume in volumes[1:])]


def to_metatensor(*channels: Volume, label: bool = False) -> MetaTensor:
    """Return 3-D volumes on one grid as a ``MetaTensor`` with channels in front."""
    meta = volume_meta(channels[0])
    affine = torch.from_numpy(meta.pop("affine"))
    array = np.stack([volume.array for volume in channels])
    if label:
        array = array.astype(np.uint8 if float(array.max(initial=0.0)) <= 255 else np.int32)
    return MetaTensor(torch.from_numpy(array), affine=affine, meta=meta)
