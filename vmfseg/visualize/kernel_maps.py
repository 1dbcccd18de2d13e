# SPDX-License-Identifier: Apache-2.0
"""Kernel activation maps of one scan, each kernel named by the anatomy that it overlaps most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from vmfseg.data.reader import read_header
from vmfseg.engines.stages.assignment import choose_assignment
from vmfseg.model import Predictor
from vmfseg.utils import VmfError
from vmfseg.utils.io import StrPath

from .activations import TISSUE_GROUPS, AnatomyTable, ChannelLabel, anatomy_table, order_channels
from .slice_montage import draw_montage
from .slice_views import SliceView, as_samples, view_volume, worst_slice

__all__ = ["KernelMaps", "explain_scan", "no_kernels"]


@dataclass(frozen=True)
class KernelMaps:
    """The kernels of a model on one scan.

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

    def names_by_label(self) -> dict[int, str]:
        """Return the class that each kernel fits best on the labelled slices, without those that fit the background.

        The assignment is that of :mod:`vmfseg.engines.stages.assignment`: the best mean Dice over the classes.
        """
        samples = as_samples(self.views)
        present = {int(value) for sample in samples for value in np.unique(sample.labels)} - {0}
        classes = {name: [value] for value, name in self.labels.items() if value in present}
        if not classes:
            return {}
        table = anatomy_table([s for s in samples if s.labels.any()], classes)
        rows = [len(classes), *range(len(classes))]  # the rest comes first, as the background
        mass = np.vstack([table.mass, np.zeros_like(table.mass[:1])])[rows]
        chosen, _ = choose_assignment(torch.from_numpy(mass))
        return {kernel: list(classes)[n - 1] for kernel, n in enumerate(chosen) if n}

    def as_dict(self) -> dict[str, Any]:
        """Return what ``kernels.json`` holds: tissue, overlap and share of each kernel."""
        shares = np.mean([view.activations.mean(axis=(1, 2)) for view in self.views], axis=0)  # type: ignore[union-attr]
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
    predictor: Predictor,
    scan: StrPath | Sequence[StrPath],
    *,
    frame: int = 0,
    slice_index: int | None = None,
    label: StrPath | None = None,
) -> KernelMaps:
    """Run a model on a scan and name its kernels.

    A kernel is named by the tissue that its activation overlaps most (soft Dice, see
    :mod:`vmfseg.visualize.activations`): by the true tissues for a scan of the phantom, else by ``label``, else by the
    prediction itself, which says what the model uses a kernel for, not that it is right.

    Args:
        predictor: the model.
        scan: an image file, 3-D or 4-D, or one file for each channel.
        frame: of a 4-D file.
        slice_index: the slice to show; default the one with most foreground, or, with a label, most errors.
        label: the true label map of the scan.

    Raises:
        VmfError: VMF354 if the network has no kernels, VMF235 if the frame, VMF176 if the slice is not there; see also
            the reader.
    """
    if not predictor.has_kernels:
        raise no_kernels(predictor)
    files = [str(file) for file in scan] if isinstance(scan, Sequence) and not isinstance(scan, str) else [str(scan)]
    count = read_header(files[0]).num_frames
    if not 0 <= frame < count:
        raise _missing("VMF235", files[0], "frame", frame, count)
    row: dict[str, Any] = {"image": files[0] if len(files) == 1 else files, "subject": Path(files[0]).name}
    row |= {"label": None if label is None else str(label), "frame": frame if count > 1 else None}
    views = view_volume(predictor, row)
    if slice_index is not None and not 0 <= slice_index < len(views):
        raise _missing("VMF176", "--slice", "slice", slice_index, len(views))
    table, named_by = _anatomy(views, predictor.labels)
    kernels = views[0].activations
    unnamed = [ChannelLabel(j, "", None) for j in range(0 if kernels is None else len(kernels))]
    return KernelMaps(
        bundle=predictor.model.name,
        scan=files[0],
        frame=frame,
        view=worst_slice(views) if slice_index is None else views[slice_index],
        views=tuple(views),
        labels=dict(predictor.labels),
        channels=tuple(unnamed if table is None else order_channels(table)),
        table=table,
        named_by=named_by,
    )


def no_kernels(predictor: Predictor) -> VmfError:
    """Return the error for a model whose network has no vMF kernels."""
    return VmfError(
        "VMF354",
        subject=predictor.model.name or "model",
        found=str(predictor.model.network.get("_target_", type(predictor.network).__name__)),
    )


def _missing(code: str, subject: str, what: str, number: int, count: int) -> VmfError:
    found, fix = f"{what} {number} of {count} (counted from 0)", f"Choose a {what} from 0 to {count - 1}."
    return VmfError(code, subject=subject, rule=f"the {what} must exist", found=found, fix=fix)


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
