# SPDX-License-Identifier: Apache-2.0
"""Why a scan is segmented as it is: the maps of all kernels, and what anatomy each of them stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vmfseg.data.reader import read_header
from vmfseg.model.spec import BundleSpec
from vmfseg.model.tensors import fill_network, read_tensors
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath
from vmfseg.visualize import (
    TISSUE_GROUPS,
    AnatomyTable,
    ChannelLabel,
    SliceView,
    anatomy_table,
    as_samples,
    draw_montage,
    order_channels,
    view_volume,
    worst_slice,
)

__all__ = ["Explanation", "explain_scan"]


@dataclass(frozen=True)
class Explanation:
    """What the kernels of a model make of one scan.

    Attributes:
        bundle: name of the bundle.
        scan: the file.
        frame: of a cine.
        view: the slice that is shown.
        views: all slices.
        labels: class names by value.
        channels: the kernels in the order of the anatomy they match.
        table: how much each kernel is active in each tissue; ``None`` if no tissue is known.
        named_by: where the tissues come from.
    """

    bundle: str
    scan: str
    frame: int
    view: SliceView
    views: tuple[SliceView, ...]
    labels: dict[int, str]
    channels: tuple[ChannelLabel, ...]
    table: AnatomyTable | None
    named_by: str

    def draw(self) -> Figure:
        """Draw image, prediction, reconstruction and the maps of all kernels, those of one tissue side by side."""
        return draw_montage(self.view, self.labels, self.channels)

    def as_dict(self) -> dict[str, Any]:
        """Return what ``kernels.json`` holds: what each kernel stands for, in numbers."""
        shares = np.mean([view.activations.mean(axis=(1, 2)) for view in self.views], axis=0)
        kernels = []
        for entry in self.channels:
            found: dict[str, Any] = {
                "kernel": entry.channel,
                "stands_for": entry.name or None,
                "soft_dice": None if entry.dice is None else round(entry.dice, 4),
                "share_of_scan": round(float(shares[entry.channel]), 4),
            }
            if self.table is not None:
                mass = self.table.mass[:, entry.channel]
                parts = mass / max(float(mass.sum()), 1e-12)
                named = zip(self.table.names, parts, strict=True)
                found["active_in"] = {name: round(float(part), 4) for name, part in named if part >= 0.01}
            kernels.append(found)
        return {
            "format": "vmfseg-kernels-1",
            "bundle": self.bundle,
            "scan": Path(self.scan).name,
            "frame": self.frame,
            "slice": self.view.index,
            "slices": len(self.views),
            "labels": {str(value): name for value, name in self.labels.items()},
            "named_by": self.named_by,
            "kernels": kernels,
        }


def explain_scan(
    bundle: StrPath,
    scan: StrPath,
    *,
    frame: int = 0,
    slice_index: int | None = None,
    label: StrPath | None = None,
    checkpoint: StrPath | None = None,
) -> Explanation:
    """Show a scan to the model of a bundle and name its kernels. Nothing in the bundle is executed.

    A kernel is named by the tissue that its activation overlaps most (soft Dice, see
    :mod:`vmfseg.visualize.activations`): by the true tissues for a scan of the phantom, else by ``label``, else by the
    prediction itself, which says what the model uses a kernel for, not that it is right.

    Args:
        bundle: its folder, or a name below ``bundles``.
        scan: an image file, 3-D or 4-D.
        frame: of a 4-D file.
        slice_index: the slice to show; default the one with most foreground, or, with a label, most errors.
        label: the true label map of the scan.
        checkpoint: other weights than the bundle's.

    Raises:
        VmfError: VMF235 if the frame, VMF175 if the slice is not there; see :class:`BundleSpec`, :func:`read_tensors`,
            :func:`fill_network` and the reader.
    """
    spec = BundleSpec.load(bundle, checkpoint)
    network = spec.build_network()
    fill_network(network, read_tensors(spec.weights), spec.weights)
    header = read_header(scan)
    if not 0 <= frame < header.num_frames:
        raise VmfError(
            "VMF235",
            subject=str(scan),
            rule="the frame must exist",
            found=f"frame {frame} of {header.num_frames} (counted from 0)",
            fix=f"give --frame 0 to {header.num_frames - 1}",
        )
    row = {"image": str(scan), "label": None if label is None else str(label), "subject": Path(scan).name}
    if header.num_frames > 1:
        row["frame"] = frame  # type: ignore[assignment]
    size = spec.image_size[0] if len(set(spec.image_size)) == 1 else spec.image_size
    views = view_volume(network.eval(), row, spec.space.get("pixdim", 1.2), size)  # type: ignore[arg-type]
    if slice_index is not None and not 0 <= slice_index < len(views):
        raise VmfError(
            "VMF175",
            subject="--slice",
            rule="the slice must exist",
            found=f"slice {slice_index} of {len(views)} (counted from 0)",
            fix=f"give 0 to {len(views) - 1}",
        )
    table, named_by = _anatomy(views, spec.labels)
    channels = [ChannelLabel(j, "", None) for j in range(len(views[0].activations))]
    return Explanation(
        bundle=spec.name,
        scan=str(scan),
        frame=frame,
        view=worst_slice(views) if slice_index is None else views[slice_index],
        views=tuple(views),
        labels=dict(spec.labels),
        channels=tuple(channels if table is None else order_channels(table)),
        table=table,
        named_by=named_by,
    )


def _anatomy(views: Sequence[SliceView], labels: Mapping[int, str]) -> tuple[AnatomyTable | None, str]:
    classes = {name: [value] for value, name in labels.items() if value}
    sources = (
        ("the true tissues of the phantom", as_samples(views, tissues=True), TISSUE_GROUPS),
        ("the given label", as_samples(views), classes),
        ("the prediction itself", as_samples([replace(view, truth=view.pred) for view in views]), classes),
    )
    for name, samples, groups in sources:
        present = {int(value) for sample in samples for value in np.unique(sample.labels)}
        if present & {value for values in groups.values() for value in values}:
            return anatomy_table(samples, groups), name
    return None, "nothing: the prediction is empty"
