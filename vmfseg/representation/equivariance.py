# SPDX-License-Identifier: Apache-2.0
r"""Compositional equivariance, measured: does :math:`F(M \cdot S \circ X) = M \cdot S \circ F(X)` hold?

:math:`F` gives the activations :math:`P` of an image, :math:`M` moves it (flip, turn, shift, rotation, scaling),
:math:`S` separates a part (everything outside a mask is filled). The error is the mean total variation
:math:`\tfrac12 \sum_j |P_j - P'_j|` over :math:`\Omega`, the moved lattice mask eroded by one position and free of
positions that entered or left the frame:

.. math::
    E_{eq}(M) &= \overline{\mathrm{TV}}\bigl(F(M X), M' F(X)\bigr) \qquad
    E_{sep}(S) = \overline{\mathrm{TV}}\bigl(F(S X), F(X)\bigr) \\
    E_{ce}(M, S) &= \overline{\mathrm{TV}}\bigl(F(M S X), M' S F(X)\bigr) \qquad
    \text{interaction} = E_{ce} - E_{eq} - E_{sep}

and the score is :math:`\mathrm{CE} = 1 - E / E_{chance}`, where :math:`E_{chance}` compares with the same activations
after permuting the positions of :math:`\Omega` within the image. Three guards: a collapsed representation is trivially
equivariant, so CE is undefined where :math:`E_{chance} < 0.1` and a table cannot be made without the matched Dice of
:mod:`~vmfseg.representation.interpretability`;
what :math:`S` fills with dominates the error, so two fills are always measured;
interpolation itself costs, so rotations and scalings carry the round trip of :math:`P` as their floor.

The paper argues for this property (Sec. 3) and does not measure it; the definitions are this project's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from vmfseg.metrics.labelmaps import foreground_labels
from vmfseg.utils import torch_rng

from .motions import Motion, default_motions

__all__ = ["CHANCE_LIMIT", "FILLS", "EquivarianceRow", "format_equivariance", "measure_equivariance", "separate"]

#: Below this chance error the activations hardly vary inside the mask and equivariance says nothing.
CHANCE_LIMIT = 0.1
FILLS = ("local_mean", "zero")

_RING = 8


@dataclass(frozen=True)
class EquivarianceRow:
    """One test: a motion, a mask and a fill. ``None`` means undefined.

    Args:
        test: ``"eq"`` (motion only), ``"sep"`` (separation only) or ``"ce"`` (both).
        motion: name of the motion, ``"identity"`` for ``sep``.
        family: exact, aliasing, interpolated or identity.
        mask: ``"foreground"`` or a class.
        fill: what is outside of the mask; ``None`` for ``eq``.
        n_images: images with at least two positions to compare.
        error: mean total variation.
        chance: the same after permuting positions.
        score: CE, 1 perfect, 0 chance.
        floor: error of the interpolation alone; an error at or below it shows nothing.
        agreement: share of positions with the same winning channel.
        interaction: error minus the errors of its two parts, for ``ce``.
        channel_errors: the error by channel; they sum to ``error``.
    """

    test: str
    motion: str
    family: str
    mask: str
    fill: str | None
    n_images: int
    error: float | None
    chance: float | None
    score: float | None
    floor: float
    agreement: float | None
    interaction: float | None
    channel_errors: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "channel_errors": list(self.channel_errors)}


@torch.no_grad()
def measure_equivariance(
    represent: Callable[[torch.Tensor], torch.Tensor],
    images: torch.Tensor,
    label_maps: torch.Tensor,
    labels: Mapping[int, str],
    *,
    motions: Sequence[Motion] | None = None,
    seed: int = 0,
) -> list[EquivarianceRow]:
    """Measure errors and scores of all motions, masks and fills.

    Shape: images ``BCHW``, label maps ``B1HW`` (or ``BHW``); ``represent`` maps ``BCHW`` to ``BJhw`` that sum to one
    over ``J``. Put the network into evaluation mode first.

    Args:
        represent: for instance ``lambda x: net(x, return_parts=True).activations``.
        images: images, best one slice a subject.
        label_maps: integer labels of the same size.
        labels: name of every class by voxel value.
        motions: default :func:`vmfseg.representation.motions.default_motions`.
        seed: of the permutations of the chance error.

    Raises:
        ValueError: if sizes do not fit.
    """
    names = foreground_labels(labels)
    maps = label_maps[:, None] if label_maps.ndim == 3 else label_maps
    if images.ndim != 4 or maps.shape != (len(images), 1, *images.shape[2:]):
        raise ValueError(
            f"images and label_maps must have shapes (B, C, H, W) and (B, 1, H, W), got {tuple(images.shape)} and "
            f"{tuple(label_maps.shape)}. Give one label map an image."
        )
    masks = {"foreground": torch.isin(maps, torch.tensor(list(names), device=maps.device, dtype=maps.dtype))}
    masks |= {name: maps == label for label, name in names.items()}
    represent = _remember(represent)
    rows: list[EquivarianceRow] = []
    separated: dict[tuple[str, str], EquivarianceRow] = {}
    identity = Motion("identity", "identity", lambda x, stride: x)
    for name, mask in masks.items():
        for fill in FILLS:
            row = _test(represent, images, mask.float(), identity, name, fill, seed)
            separated[name, fill] = row
            rows.append(row)
    for motion in default_motions() if motions is None else motions:
        for name, mask in masks.items():
            moved = _test(represent, images, mask.float(), motion, name, None, seed)
            rows.append(moved)
            for fill in FILLS:
                rows.append(
                    _test(represent, images, mask.float(), motion, name, fill, seed, (moved, separated[name, fill]))
                )
    return rows


def separate(images: torch.Tensor, mask: torch.Tensor, fill: str) -> torch.Tensor:
    """Keep ``images`` inside ``mask``; outside put zero, or the mean of a ring of 8 pixels around the mask.

    Shape: images ``BCHW``, mask ``B1HW`` with values 0 and 1.

    Example:
        >>> separate(torch.ones(1, 1, 4, 4), torch.eye(4)[None, None], "zero").sum()
        tensor(4.)
    """
    if fill == "zero":
        return images * mask
    ring = F.max_pool2d(mask, 2 * _RING + 1, stride=1, padding=_RING) - mask
    weight = torch.where(ring.sum(dim=(2, 3), keepdim=True) > 0, ring, torch.ones_like(ring))
    mean = (images * weight).sum(dim=(2, 3), keepdim=True) / weight.sum(dim=(2, 3), keepdim=True)
    return images * mask + mean * (1 - mask)


def format_equivariance(rows: Sequence[EquivarianceRow], matched_dice: float | None) -> str:
    """Return a plain table of the scores. The matched Dice is not optional: without meaning, equivariance is nothing.

    Args:
        rows: from :func:`measure_equivariance`.
        matched_dice: of the same network on the same kind of data, or ``None`` if no channel matches anything.
    """
    dice = "undefined: no channel matches a class" if matched_dice is None else f"{matched_dice:.3f}"
    header = ("test", "motion", "mask", "fill", "n", "error", "chance", "floor", "CE")
    table = [list(header)]
    for row in rows:
        figures = [_text(value) for value in (row.error, row.chance, row.floor)]
        below = row.floor > 0 and row.error is not None and row.error <= row.floor
        score = "undefined" if row.score is None else f"{row.score:.3f}" + (" (at floor)" if below else "")
        table.append([row.test, row.motion, row.mask, row.fill or "-", str(row.n_images), *figures, score])
    widths = [max(len(line[k]) for line in table) for k in range(len(header))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in table]
    return "\n".join([f"matched Dice {dice}; CE is undefined where chance < {CHANCE_LIMIT}", "", *lines])


def _test(
    represent: Callable[[torch.Tensor], torch.Tensor],
    images: torch.Tensor,
    mask: torch.Tensor,
    motion: Motion,
    name: str,
    fill: str | None,
    seed: int,
    parts: tuple[EquivarianceRow, EquivarianceRow] | None = None,
) -> EquivarianceRow:
    images, mask = (F.pad(x, (motion.margin,) * 4) for x in (images, mask))
    inside = images if fill is None else separate(images, mask, fill)
    before = represent(images)
    stride = images.shape[2] // before.shape[2]
    moved, expected = represent(motion.action(inside, 1)), motion.action(before, stride)
    area = F.avg_pool2d(mask, stride) if stride > 1 else mask
    eroded = -F.max_pool2d(-F.pad((area > 0.5).float(), (1,) * 4), 3, stride=1)
    frame = motion.action(torch.ones_like(eroded), stride)
    omega = (motion.action(eroded, stride) > 1 - 1e-4) & (frame > 1 - 1e-4)
    floor = 0.0
    if motion.inverse is not None:
        back = motion.inverse(expected, stride)
        floor = _average(_variation(back, before), (eroded > 0) & (motion.inverse(frame, stride) > 1 - 1e-4))
    errors, chances, agreements, channels = [], [], [], []
    for index in range(len(images)):
        here = omega[index, 0]
        if int(here.sum()) < 2:
            continue
        p, q = moved[index][:, here], expected[index][:, here]
        order = torch.randperm(p.shape[1], generator=torch_rng(seed, name, index)).to(p.device)
        difference = (p - q).abs().mean(dim=1) / 2
        channels.append(difference)
        errors.append(float(difference.sum()))
        chances.append(float((p - q[:, order]).abs().sum(dim=0).mean() / 2))
        agreements.append(float((p.argmax(dim=0) == q.argmax(dim=0)).float().mean()))
    error, chance = _mean(errors), _mean(chances)
    defined = error is not None and chance is not None and chance >= CHANCE_LIMIT
    known = parts is not None and error is not None and all(part.error is not None for part in parts)
    return EquivarianceRow(
        test="eq" if fill is None else ("sep" if parts is None else "ce"),
        motion=motion.name,
        family=motion.family,
        mask=name,
        fill=fill,
        n_images=len(errors),
        error=error,
        chance=chance,
        score=1 - (error or 0.0) / (chance or 1.0) if defined else None,
        floor=floor,
        agreement=_mean(agreements),
        interaction=(error or 0.0) - sum(part.error or 0.0 for part in parts) if known and parts else None,
        channel_errors=tuple(torch.stack(channels).mean(dim=0).tolist()) if channels else (),
    )


def _remember(represent: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Keep the last few answers: the same images are asked for with every mask and fill."""
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def ask(images: torch.Tensor) -> torch.Tensor:
        for index, (known, answer) in enumerate(kept):
            if torch.equal(known, images):
                kept.append(kept.pop(index))  # used last, dropped last
                return answer
        answer = represent(images)
        kept.append((images, answer))
        del kept[:-4]
        return answer

    return ask


def _variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p - q).abs().sum(dim=1, keepdim=True) / 2


def _average(values: torch.Tensor, where: torch.Tensor) -> float:
    return float(values[where].mean()) if bool(where.any()) else 0.0


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
