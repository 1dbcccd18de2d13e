# SPDX-License-Identifier: Apache-2.0
"""The four parts of the data of a run, as rows that MONAI's transforms take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vmfseg.data.datalist import Datalist
from vmfseg.data.row_schema import Row
from vmfseg.data.splits import Split, weakly_labeled
from vmfseg.utils.io import sha256_bytes

__all__ = ["Experiment", "without_label"]


@dataclass(frozen=True)
class Experiment:
    """Data of a run: what is learnt from, what chooses the model, what it is judged by.

    Attributes:
        datalist: all rows.
        split: labelled, unlabelled, source-validation and target rows, disjoint by subject.
        is_phantom: whether the data was made, not measured.
    """

    datalist: Datalist
    split: Split
    is_phantom: bool = False

    @property
    def labeled(self) -> list[dict[str, Any]]:
        """Rows with masks to learn from, as MONAI's transforms take them."""
        return self._dicts(self.split.labeled)

    @property
    def unlabeled(self) -> list[dict[str, Any]]:
        """Rows whose masks are not used (the labelled images themselves where there is nothing else)."""
        return self._dicts(self.split.unlabeled) or [without_label(row) for row in self.labeled]

    @property
    def images(self) -> list[dict[str, Any]]:
        """All source images for training, without masks: for pre-training and for the kernels."""
        rows = [without_label(row) for row in self.labeled]
        seen = {(str(row["image"]), row.get("frame")) for row in rows}
        return rows + [row for row in self.unlabeled if (str(row["image"]), row.get("frame")) not in seen]

    @property
    def weak(self) -> list[dict[str, Any]]:
        """Rows of which only presence labels are used."""
        return self._dicts(tuple(weakly_labeled(self.datalist, self.split)))

    @property
    def validation(self) -> list[dict[str, Any]]:
        """Rows of other source subjects, which choose the model."""
        return self._dicts(self.split.validation) or self.labeled

    @property
    def target(self) -> list[dict[str, Any]]:
        """Rows of the unseen domain, which choose nothing."""
        return self._dicts(self.split.target)

    @property
    def domains(self) -> list[str]:
        """Names of the source domains, sorted."""
        return sorted({row.domain for row in (*self.split.labeled, *self.split.unlabeled)})

    @property
    def labels(self) -> dict[int, str]:
        """Class names by value."""
        return {int(k): v for k, v in self.datalist.labels.items()}

    @property
    def num_classes(self) -> int:
        """How many classes, background included."""
        return max(self.labels) + 1

    @property
    def fingerprint(self) -> dict[str, str]:
        """What of the data decides a result: the split and the checksums of all files."""
        sums = sorted(
            f"{row.image_sha256}{row.label_sha256}{row.frame}{self.datalist.slices_of(row) or ''}{row.present or ''}"
            for row in self.datalist.rows
        )
        return {"split": self.split.hash, "data": sha256_bytes("\n".join(sums).encode())}

    def describe(self) -> str:
        """Return one line with the number of subjects of each part."""
        counts = {part: len(self.split.subjects(part)) for part in ("labeled", "unlabeled", "validation", "target")}
        source = sorted({row.domain for row in self.split.labeled})
        target = sorted({row.domain for row in self.split.target})
        return (
            f"data: source domains {', '.join(source)} ({counts['labeled']} labelled, "
            f"{counts['unlabeled']} unlabelled, {counts['validation']} validation subjects), "
            + (f"unseen domain {', '.join(target)} ({counts['target']} subjects)" if target else "no unseen domain")
        )

    def remarks(self) -> list[str]:
        """Return a line for each part that is empty, saying what stands in for it."""
        lines = []
        if not self.split.unlabeled:
            lines.append("data: no unlabelled subject is left; the labelled images, without masks, stand in for them")
        if not self.split.validation:
            lines.append("data: no validation subject is left; the labelled images choose the model")
        return lines

    def _dicts(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        dicts = self.datalist.to_dicts(rows)
        return [{key: value for key, value in row.items() if value is not None} for row in dicts]


def without_label(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without its mask and what is said about it."""
    return {key: value for key, value in row.items() if key not in ("label", "label_map", "annotated", "slices")}
