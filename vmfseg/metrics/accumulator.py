# SPDX-License-Identifier: Apache-2.0
"""Accumulator of segmentation scores, volume by volume, in one process or in many."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.utils import check_choice

from .labelmaps import check_label_map, foreground_labels, mask_unannotated
from .reference import ReferenceRow, reference_volume
from .reports import PROTOCOLS, summarize, write_metrics
from .scores import Case, ScoreRow, evaluate_cases

__all__ = ["SegmentationScores"]


class SegmentationScores:
    """Scores of many volumes, for the loops of engines, handlers and scripts.

    Call :meth:`update` once per volume, then :meth:`compute`. With several processes, gather the plain lists of
    :meth:`state` and :meth:`merge` them: volumes that a distributed sampler repeated to fill its last round are
    recognized and counted once.

    Args:
        labels: name of every class by voxel value.
        protocol: ``"clean"``, or ``"paper"`` to add the reference's figures (:mod:`vmfseg.metrics.reference`).

    Example:
        >>> truth = np.zeros((16, 16, 4), np.uint8)
        >>> truth[4:10, 4:10, 1:3] = 1
        >>> scores = SegmentationScores({1: "LV"})
        >>> scores.update(truth, truth, (1.25, 1.25, 8.0), subject="s1", domain="A", phase="ED")
        >>> other = SegmentationScores({1: "LV"})
        >>> other.update(0 * truth, truth, (1.25, 1.25, 8.0), subject="s2", domain="A", phase="ED")
        >>> scores.merge(other.state())
        >>> lv = scores.compute()["overall"]["classes"]["LV"]["dice"]
        >>> lv["mean"], lv["n"], lv["n_missed"]
        (0.5, 2, 1)
    """

    def __init__(self, labels: Mapping[int, str], protocol: str = "clean") -> None:
        check_choice("protocol", protocol, PROTOCOLS)
        self.labels = foreground_labels(labels)
        self.protocol = protocol
        self._volumes: dict[tuple[str, str, str, int], list[ScoreRow]] = {}
        self._reference: dict[tuple[str, str, str, int], ReferenceRow] = {}

    @property
    def rows(self) -> list[ScoreRow]:
        """All rows, sorted by domain, subject, phase, frame and label: the order of arrival does not matter."""
        return [row for key in sorted(self._volumes) for row in self._volumes[key]]

    @property
    def reference_rows(self) -> list[ReferenceRow]:
        """The reference's figures per volume; empty unless the protocol is ``"paper"``."""
        return [self._reference[key] for key in sorted(self._reference)]

    def update(
        self,
        pred: Any,
        truth: Any,
        spacing: Sequence[float],
        subject: str,
        domain: str = "all",
        phase: str | None = None,
        annotated: Iterable[int] | npt.NDArray[np.bool_] | None = None,
        frame: int | None = None,
        slice_axis: int = -1,
        slices: Any = None,
    ) -> None:
        """Score one volume and keep the rows.

        Shape: ``HWD`` or ``1HWD`` integer label maps on the native grid.

        Args:
            pred: predicted label map.
            truth: true label map.
            spacing: voxel size in mm.
            subject: the person or animal.
            domain: scanner, vendor or site.
            phase: ``"ED"``, ``"ES"`` or ``None``.
            annotated: classes that were annotated, see :func:`vmfseg.metrics.evaluate_volume`.
            frame: index of the frame in a 4-D file.
            slice_axis: the axis across slices, for ``slices`` and for the reference's figures.
            slices: slices that were annotated, see :func:`vmfseg.metrics.evaluate_volume`.

        Raises:
            ValueError: for maps that cannot be scored, and if this volume was scored already.
        """
        chosen = (
            None if annotated is None else np.asarray(annotated if hasattr(annotated, "dtype") else list(annotated))
        )
        case = Case(pred, truth, spacing, subject, domain, phase, frame, chosen, slices, slice_axis)
        rows = evaluate_cases([case], self.labels)
        key = rows[0].volume_key
        if key in self._volumes:
            raise ValueError(
                f"subject, domain, phase and frame must name a volume once, got {key} again. Give each its own names."
            )
        if self.protocol == "paper":
            masked_pred, masked_truth = (
                mask_unannotated(check_label_map(name, array), self.labels, slices, slice_axis)[0]
                for name, array in (("pred", pred), ("truth", truth))
            )
            self._reference[key] = reference_volume(
                masked_pred,
                masked_truth,
                self.labels,
                chosen,
                subject=subject,
                domain=domain,
                phase=phase,
                frame=frame,
                slice_axis=slice_axis,
            )
        self._volumes[key] = rows

    def state(self) -> list[dict[str, Any]]:
        """Return everything collected as a list of plain dictionaries (picklable, JSON-able) for another process."""
        scores = [{"kind": "score", **row.as_dict()} for row in self.rows]
        return scores + [{"kind": "reference", **row.as_dict()} for row in self.reference_rows]

    def merge(self, *states: Iterable[Mapping[str, Any]]) -> None:
        """Add the :meth:`state` of other accumulators (ranks). Equal repetitions of a volume count once.

        Raises:
            ValueError: if a volume comes with different scores.
        """
        for state in states:
            volumes: dict[tuple[str, str, str, int], list[ScoreRow]] = {}
            for values in state:
                if values["kind"] == "score":
                    row = ScoreRow.from_dict(values)
                    volumes.setdefault(row.volume_key, []).append(row)
                else:
                    figures = ReferenceRow.from_dict(values)
                    self._reference[figures.volume_key] = figures
            for key, rows in volumes.items():
                if self._volumes.setdefault(key, rows) != rows:
                    raise ValueError(f"states must agree on a volume they share, got two scores of {key}. Rename one.")

    def reset(self) -> None:
        """Forget everything."""
        self._volumes.clear()
        self._reference.clear()

    def compute(self) -> dict[str, Any]:
        """Return the summary of :func:`vmfseg.metrics.summarize`; ``["mean_dice"]`` is the headline."""
        return summarize(self.rows, self.labels, self.protocol, self.reference_rows)

    def write(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Path, Path]:
        """Write ``metrics.json`` and ``metrics.csv``, see :func:`vmfseg.metrics.write_metrics`."""
        return write_metrics(folder, self.rows, self.compute(), overwrite=overwrite)
