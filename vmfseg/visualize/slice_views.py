# SPDX-License-Identifier: Apache-2.0
"""Slices of a volume with the outputs of a trained network, for pictures and for interpretability measures."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.networks.utils import eval_mode
from monai.transforms import Compose, MapTransform, RandomizableTrait

from vmfseg.data import LoadVolumed
from vmfseg.model import Model, Predictor
from vmfseg.model.definitions import build
from vmfseg.model.grid import move_window
from vmfseg.networks import network_parts
from vmfseg.representation import ActivationSample
from vmfseg.transforms.annotation import annotated_slices

__all__ = ["SliceView", "as_samples", "tissue_file", "view_volume", "worst_slice"]

Array = npt.NDArray[Any]
_PARTS = ("logits", "activations", "features", "reconstruction")


@dataclass(frozen=True)
class SliceView:
    """One slice in the network's space.

    Attributes:
        image: ``HW``, what the network sees, the first channel.
        pred: ``HW`` label map of the most probable class.
        activations: ``Jhw``, how much each kernel explains each position, or ``None`` for a network without kernels.
        features: ``Fhw``, or ``None``.
        truth: ``HW`` label map, or ``None``.
        reconstruction: ``HW``, or ``None`` where the network makes none.
        tissues: ``HW`` true tissue of every pixel, for the phantom, or ``None``.
        subject: the person.
        domain: scanner, vendor or site.
        phase: ``"ED"``, ``"ES"`` or empty.
        index: number of the slice in its volume.
        annotated: voxel values of the classes that were drawn in this slice, ``None`` for all; without any there is no
            truth.
    """

    image: Array
    pred: Array
    activations: Array | None = None
    features: Array | None = None
    truth: Array | None = None
    reconstruction: Array | None = None
    tissues: Array | None = None
    subject: str = ""
    domain: str = "all"
    phase: str = ""
    index: int = 0
    annotated: tuple[int, ...] | None = None

    @property
    def wrong(self) -> int:
        """Pixels whose class is wrong; 0 without a truth. A class that nobody drew here cannot be wrong."""
        if self.truth is None:
            return 0
        known = self.pred if self.annotated is None else np.where(np.isin(self.pred, self.annotated), self.pred, 0)
        return int((known != self.truth).sum())


def view_volume(predictor: Predictor, row: Mapping[str, Any], *, tissues: bool = True) -> list[SliceView]:
    """Run the trained network on all slices of a volume and keep its parts.

    Slices are those of the predictor, in the window that it takes. The truth goes through the transforms that the
    labels of the training went through, in the same window.

    Args:
        predictor: the model.
        row: paths and names, as :class:`vmfseg.data.experiment.Experiment` gives them.
        tissues: load the phantom's true tissues, where they are beside the image.

    Raises:
        ValueError: if the predictor has no network, or the channels are not the model's.
    """
    if predictor.network is None:
        raise ValueError("predictor must hold its network, got None. Make it by Predictor.from_bundle.")
    loaded = _load(row)
    if loaded["image"].shape[0] != predictor.model.channels:
        raise ValueError(f"image must have {predictor.model.channels} channels, got {loaded['image'].shape[0]}.")
    shift = predictor.locate(loaded["image"]).shift
    slices = predictor.grid.place(loaded["image"], shift).slices
    truth, drawn = None, None
    if "label" in loaded:
        prepared = move_window(_label_chain(predictor.model), shift)(loaded)
        truth, drawn = _label_slices(prepared), _drawn(prepared["label"], len(predictor.labels), row)
    factors = tissue_file(row["image"]) if tissues and isinstance(row["image"], str) else None
    factor_maps = None
    if factors is not None:
        # as a row of its own, without the steps for labels alone: classes do not concern tissues
        known = _load({"image": row["image"], "label": str(factors), "frame": row.get("frame")})
        factor_maps = _label_slices(move_window(predictor.model.build_preprocessing(), shift)(known))
    parts = _parts(predictor, slices)
    volume = {"pred": torch.from_numpy(parts["logits"]).permute(1, 2, 3, 0)}
    pred = np.asarray(predictor.grid.scores(volume)["pred"]).argmax(axis=0).astype(np.uint8)
    return [
        SliceView(
            image=slices[k, 0].numpy(),
            pred=pred[..., k],
            **{name: parts[name][k] if name in parts else None for name in ("activations", "features")},
            truth=None if truth is None or (drawn is not None and not drawn[k]) else truth[..., k],
            reconstruction=parts["reconstruction"][k, 0] if "reconstruction" in parts else None,
            tissues=None if factor_maps is None else factor_maps[..., k],
            subject=str(row.get("subject", "")),
            domain=str(row.get("domain", "all")),
            phase=str(row.get("phase") or ""),
            index=k,
            annotated=None if drawn is None else drawn[k],
        )
        for k in range(len(slices))
    ]


def worst_slice(views: Sequence[SliceView]) -> SliceView:
    """Return the slice with most wrong pixels, or, without a truth, with most foreground."""
    return max(views, key=lambda view: (view.wrong, int((view.pred > 0).sum()), -view.index))


def tissue_file(image: str) -> Path | None:
    """Return the phantom's file of true tissues that belongs to an image, or ``None``.

    The layouts are those of :mod:`vmfseg.phantom.release_layout`: a folder ``factors`` at the root.
    """
    path = Path(image)
    for ending, other in (("_sa.nii.gz", "_sa_factors.nii.gz"), ("-image.nii.gz", "-factors.nii.gz")):
        if path.name.endswith(ending):
            name = path.name[: -len(ending)] + other
            for folder in path.parents[:4]:
                if (folder / "factors" / name).is_file():
                    return folder / "factors" / name
    return None


def as_samples(views: Sequence[SliceView], *, tissues: bool = False) -> list[ActivationSample]:
    """Return the slices as the interpretability measures take them, with the true classes or the true tissues.

    Slices without kernels or without the truth that is asked for are left out.
    """
    samples = []
    for view in views:
        labels = view.tissues if tissues else view.truth
        if labels is not None and view.activations is not None:
            samples.append(
                ActivationSample(
                    activations=view.activations.astype(np.float64),
                    labels=labels.astype(np.int64),
                    subject=view.subject,
                    domain=view.domain,
                    image=view.image,
                    features=view.features,
                    annotated=None if tissues else view.annotated,
                )
            )
    return samples


def _drawn(label: torch.Tensor, num_classes: int, row: Mapping[str, Any]) -> list[tuple[int, ...]] | None:
    """Return for each slice the foreground classes that were drawn in it, or ``None`` where all were."""
    if row.get("annotated") is None and row.get("slices") is None:
        return None
    table = annotated_slices(label, num_classes, row.get("annotated"), row.get("slices"))
    return [tuple(int(value) for value in column.nonzero()[:, 0] if value) for column in table.T]


def _load(row: Mapping[str, Any]) -> dict[Hashable, Any]:
    load = LoadVolumed()
    return load({key: value for key, value in row.items() if value is not None})


def _label_chain(model: Model) -> Compose:
    """Return the deterministic preprocessing of image and label, without the reading of files."""
    steps = []
    for index, definition in enumerate(model.preprocessing):
        if str(definition.get("_target_", "")).rsplit(".", 1)[-1] == "LoadVolumed":
            continue
        step = build(definition, f"preprocessing::{index}", trust=model.trust)
        if not isinstance(step, RandomizableTrait):
            if isinstance(step, MapTransform):
                step.allow_missing_keys = True
            steps.append(step)
    return Compose(steps)


def _parts(predictor: Predictor, slices: torch.Tensor) -> dict[str, Array]:
    """Return the parts of the network for all slices, without those that it has not."""
    network: Any = predictor.network
    device = next(network.parameters()).device
    found: dict[str, list[torch.Tensor]] = {}
    with eval_mode(network):
        for batch in slices.split(predictor.batch_size):
            parts = network_parts(network, batch.to(device))
            for name in _PARTS:
                if getattr(parts, name, None) is not None:
                    found.setdefault(name, []).append(getattr(parts, name).float().cpu())
    return {name: torch.cat(values).numpy() for name, values in found.items()}


def _label_slices(data: Mapping[Any, Any]) -> Array:
    values: Array = np.rint(np.asarray(data["label"])[0]).astype(np.uint8)
    return values
