# SPDX-License-Identifier: Apache-2.0
"""One stream of labeled and unlabeled batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Any

import torch

from vmfseg.data.epochs import EpochCounter
from vmfseg.data.loader import SliceLoader

__all__ = ["InterleavedLoader"]


class InterleavedLoader(EpochCounter):
    r"""Yield a labeled batch, then ``ratio`` unlabeled ones, and so on.

    An unlabeled batch has no key ``label``; the loss decides which terms apply. Each stream goes on where it stopped,
    over the ends of epochs: with :math:`s` steps an epoch, step :math:`i` of epoch :math:`e` takes labeled batch
    :math:`es + i` and unlabeled batches from :math:`(es + i)\,\text{ratio}` on, and a stream that is used up starts
    its next, newly shuffled pass. So the shorter one never ends the epoch (the reference crashes there), everything
    is seen before anything is repeated, and the order is a pure function of the loaders' seeds and the epoch.

    With ``joint=True`` a step yields one batch with both: ``image`` ``(B_l + B_u, 1, H, W)``, the labeled samples
    first; ``label`` ``(B_l, 1, H, W)``; ``labeled`` ``(B_l + B_u,)`` bool. ``presence`` covers the labeled samples,
    or all if the unlabeled loader shows presence labels. All other keys cover all samples.

    Args:
        labeled: defines the epoch: one pass over it, unless ``steps_per_epoch`` is given.
        unlabeled: the other stream, or ``None``: then only labeled batches come. Masks that its rows may have are not
            shown.
        ratio: unlabeled batches for each labeled one.
        steps_per_epoch: labeled batches in an epoch; ``None`` takes ``len(labeled)``.
        joint: yield both in one batch.

    Raises:
        ValueError: if an argument is out of range.

    Example:
        >>> from monai.transforms import Lambda
        >>> from vmfseg.data import SliceDataset
        >>> zeros = torch.zeros(1, 8, 8, 4)
        >>> fake = Lambda(lambda row: {k: v if k == "subject" else zeros for k, v in row.items()})
        >>> few = SliceDataset([{"image": "a", "label": "a", "subject": "a"}], fake)
        >>> many = SliceDataset([{"image": str(i), "subject": str(i)} for i in range(6)], fake)
        >>> stream = InterleavedLoader(SliceLoader(few), SliceLoader(many), ratio=2, steps_per_epoch=2)
        >>> ["label" in batch for batch in stream]
        [True, False, False, True, False, False]
    """

    def __init__(
        self,
        labeled: SliceLoader,
        unlabeled: SliceLoader | None = None,
        ratio: int = 1,
        steps_per_epoch: int | None = None,
        joint: bool = False,
    ) -> None:
        for name, loader in (("labeled", labeled), ("unlabeled", unlabeled)):
            if not isinstance(loader, SliceLoader) and not (name == "unlabeled" and loader is None):
                raise ValueError(
                    f"{name} must be a SliceLoader, got {type(loader).__name__}. "
                    "Only that one can begin at any batch, which resuming needs."
                )
        if labeled.supervision == "none":
            raise ValueError("labeled must show labels, got a loader without. Check its rows and its supervision.")
        if ratio < 1:
            raise ValueError(f"ratio must be at least 1, got {ratio}. Use unlabeled=None for labeled batches only.")
        if steps_per_epoch is not None and steps_per_epoch < 1:
            raise ValueError(f"steps_per_epoch must be at least 1, got {steps_per_epoch}.")
        if joint and unlabeled is not None and labeled.dataset.image_sizes != unlabeled.dataset.image_sizes:
            raise ValueError(
                f"joint batches must have one image size, got {sorted(labeled.dataset.image_sizes)} and "
                f"{sorted(unlabeled.dataset.image_sizes)}. Use the same transforms for both."
            )
        self.labeled, self.unlabeled, self.joint = labeled, unlabeled, joint
        self.ratio = ratio if unlabeled is not None else 0
        self.steps = len(labeled) if steps_per_epoch is None else steps_per_epoch

    def __len__(self) -> int:
        return self.steps if self.joint else self.steps * (1 + self.ratio)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        epoch, start = self._begin()
        period = 1 if self.joint else 1 + self.ratio
        with_label = -(-start // period)  # labeled batches before the start
        without = start * self.ratio if self.joint else start - with_label
        first = epoch * self.steps
        other = self.labeled if self.unlabeled is None else self.unlabeled  # with ratio 0 nothing is taken from it
        with (
            closing(self.labeled.stream(first + with_label, self.steps - with_label)) as labeled,
            closing(other.stream(first * self.ratio + without, self.steps * self.ratio - without)) as unlabeled,
        ):
            for position in range(start, len(self)):
                if self.joint:
                    yield self._join(next(labeled), [self._hide(next(unlabeled)) for _ in range(self.ratio)])
                elif position % period == 0:
                    yield next(labeled)
                else:
                    yield self._hide(next(unlabeled))

    def _hide(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Take away the mask of an unlabeled batch, and the presence label unless it is asked for."""
        hidden = {"label"}
        if self.unlabeled is not None and self.unlabeled.supervision != "presence":
            hidden.add("presence")
        return {key: value for key, value in batch.items() if key not in hidden}

    def _join(self, labeled: dict[str, Any], unlabeled: Sequence[dict[str, Any]]) -> dict[str, Any]:
        parts = [labeled, *unlabeled]
        joined: dict[str, Any] = {}
        for key, value in labeled.items():
            columns = [part[key] for part in parts if key in part]
            joined[key] = torch.cat(columns) if isinstance(value, torch.Tensor) else list(chain(*columns))
        joined["labeled"] = torch.arange(len(joined["image"])) < len(labeled["image"])
        return joined
