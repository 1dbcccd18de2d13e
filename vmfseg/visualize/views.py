# SPDX-License-Identifier: Apache-2.0
"""What a network sees and says of a slice: the matter of all pictures and of the interpretability measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vmfseg.data import LoadVolumed
from vmfseg.networks import VMFNet
from vmfseg.representation import ActivationSample
from vmfseg.transforms import slice_space_transforms

__all__ = ["SliceView", "as_samples", "tissue_file", "view_volume", "worst_slice"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class SliceView:
    """One slice in the network's space.

    Attributes:
        image: ``HW``, what the network sees.
        activations: ``Jhw``, how much each kernel explains each position.
        features: ``Fhw``.
        pred: ``HW`` label map by the largest logit.
        truth: ``HW`` label map, or ``None``.
        reconstruction: ``HW``, or ``None`` where the network makes none.
        tissues: ``HW`` true tissue of every pixel, for the phantom, or ``None``.
        subject: the person.
        domain: scanner, vendor or site.
        phase: ``"ED"``, ``"ES"`` or empty.
        index: number of the slice in its volume.
        annotated: voxel values of the classes that were drawn, ``None`` for all.
    """

    image: Array
    activations: Array
    features: Array
    pred: Array
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
        """Pixels whose class is wrong; 0 without a truth."""
        return 0 if self.truth is None else int((self.pred != self.truth).sum())


def view_volume(
    network: VMFNet,
    row: Mapping[str, Any],
    pixdim: float,
    image_size: int,
    *,
    tissues: bool = True,
    batch_size: int = 16,
) -> list[SliceView]:
    """Show all slices of a volume to the network.

    Args:
        network: in evaluation mode.
        row: paths and names, as :class:`vmfseg.data.Experiment` gives them.
        pixdim: in-plane spacing in mm.
        image_size: in-plane size in pixels.
        tissues: load the phantom's true tissues, where they are beside the image.
        batch_size: slices at once.
    """
    chain: list[Callable[[Any], Any]] = [LoadVolumed(), slice_space_transforms(pixdim, image_size)]
    data = _apply(chain, {key: value for key, value in row.items() if key != "tissues"})
    factors = tissue_file(str(row["image"])) if tissues else None
    if factors is not None:
        # as a row of its own: maps of label values do not concern tissues
        only = {"image": row["image"], "label": str(factors), "frame": row.get("frame")}
        data["tissues"] = _apply(chain, only)["label"]
    image = torch.as_tensor(data["image"].as_tensor())[0].permute(2, 0, 1)[:, None].float()
    with torch.no_grad():
        parts: list[Any] = [network(batch, return_parts=True) for batch in image.split(batch_size)]
    joined = {
        name: torch.cat([getattr(part, name) for part in parts]).float().numpy()
        for name in ("logits", "activations", "features", "reconstruction")
        if getattr(parts[0], name) is not None
    }
    reconstruction = joined.get("reconstruction")
    drawn = row.get("annotated")
    views = []
    for k in range(len(image)):
        views.append(
            SliceView(
                image=image[k, 0].numpy(),
                activations=joined["activations"][k],
                features=joined["features"][k],
                pred=joined["logits"][k].argmax(axis=0).astype(np.uint8),
                truth=_slice(data, "label", k),
                reconstruction=None if reconstruction is None else reconstruction[k, 0],
                tissues=_slice(data, "tissues", k),
                subject=str(row.get("subject", "")),
                domain=str(row.get("domain", "all")),
                phase=str(row.get("phase") or ""),
                index=k,
                annotated=None if drawn is None else tuple(int(label) for label in drawn),
            )
        )
    return views


def worst_slice(views: Sequence[SliceView]) -> SliceView:
    """Return the slice with most wrong pixels, or, without a truth, with most foreground."""
    return max(views, key=lambda view: (view.wrong, int((view.pred > 0).sum()), -view.index))


def tissue_file(image: str) -> Path | None:
    """Return the phantom's file of true tissues that belongs to an image, or ``None``.

    The layouts are those of :mod:`vmfseg.phantom.writer`: a folder ``factors`` at the root.
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

    Slices without the truth that is asked for are left out.
    """
    samples = []
    for view in views:
        labels = view.tissues if tissues else view.truth
        if labels is not None:
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


def _apply(chain: Sequence[Callable[[Any], Any]], row: Mapping[str, Any]) -> dict[str, Any]:
    data: Any = {key: value for key, value in row.items() if value is not None}
    for step in chain:
        data = step(data)
    return dict(data)


def _slice(data: Mapping[str, Any], key: str, index: int) -> Array | None:
    return np.asarray(data[key].as_tensor()[0, :, :, index]) if key in data else None
