# SPDX-License-Identifier: Apache-2.0
"""The four parts of the data of a run, as rows that MONAI's transforms take; with or without a phantom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vmfseg.data.datalist import SPLITS, Datalist, Row
from vmfseg.data.splits import Split, check_target, weakly_labeled
from vmfseg.utils.io import sha256_bytes

__all__ = ["Experiment", "PhantomExperiment", "own_parts", "without_label"]


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


@dataclass(frozen=True)
class PhantomExperiment(Experiment):
    """Drawn subjects that choose and calibrate the model, and a user's own scans that are learnt from beside them.

    ``datalist`` and ``split`` are those of the drawn subjects. ``labeled``, ``unlabeled`` and ``target`` are rows of
    the user alone, and empty where there are none: the labelled stream is a :class:`~vmfseg.data.PhantomLoader`.

    Attributes:
        own: all rows of the user, or ``None``.
        parts: rows of the user by part of the split.
    """

    own: Datalist | None = None
    parts: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)

    @property
    def labeled(self) -> list[dict[str, Any]]:
        """Rows of the user with masks to learn from."""
        return self._own("labeled")

    @property
    def unlabeled(self) -> list[dict[str, Any]]:
        """Rows of the user without masks."""
        return self._own("unlabeled")

    @property
    def validation(self) -> list[dict[str, Any]]:
        """Rows that choose the model: drawn subjects, or those of the user that are marked for it."""
        return self._own("validation") or self._dicts(self.split.validation) or self._dicts(self.split.labeled)

    @property
    def images(self) -> list[dict[str, Any]]:
        """Images of drawn subjects, which say what the source looks like."""
        return [without_label(row) for row in self._dicts(self.split.labeled)]

    @property
    def target(self) -> list[dict[str, Any]]:
        """Rows of the user's domain that is left out and judged."""
        return self._own("target")

    @property
    def fingerprint(self) -> dict[str, str]:
        """What of the data decides a result, the user's rows included."""
        if self.own is None:
            return super().fingerprint
        rows = [
            f"{part} {row.subject} {row.image} {row.frame} {row.image_sha256} {row.label_sha256} "
            f"{row.annotated} {self.own.slices_of(row) or ''}"
            for part in SPLITS
            for row in self.parts.get(part, ())
        ]
        return {**super().fingerprint, "own": sha256_bytes("\n".join(rows).encode())}

    def describe(self) -> str:
        """Return one line: what teaches, what chooses the model."""
        chosen = len({row.subject for row in self.parts.get("validation", ()) or self.split.validation})
        whose = "own" if self.parts.get("validation") else "drawn"
        if self.own is None:
            return f"data: phantom slices drawn without end; {chosen} drawn subjects choose the model"
        counts = {part: len({row.subject for row in self.parts.get(part, ())}) for part in SPLITS}
        target = sorted({row.domain for row in self.parts.get("target", ())})
        return (
            f"data: phantom slices drawn without end, and own scans ({counts['labeled']} labelled, "
            f"{counts['unlabeled']} unlabelled subjects); {chosen} {whose} subjects choose the model, "
            + (f"unseen domain {', '.join(target)} ({counts['target']} subjects)" if target else "no unseen domain")
        )

    def remarks(self) -> list[str]:
        """Return nothing: no part stands in for another."""
        return []

    def _own(self, part: str) -> list[dict[str, Any]]:
        rows = () if self.own is None else self.own.to_dicts(self.parts.get(part, ()))
        return [{key: value for key, value in row.items() if value is not None} for row in rows]


def own_parts(own: Datalist, target_domain: str = "") -> dict[str, tuple[Row, ...]]:
    """Divide a user's rows: those with labels teach, those without are unlabelled, a named domain is left out.

    A row's own ``split`` comes first. No subject is held out beyond that: drawn subjects choose the model. A domain has
    its subjects to itself (:class:`~vmfseg.data.Datalist` sees to it), so nothing of the target is learnt from.

    Args:
        own: the rows.
        target_domain: whose rows are judged; empty for none.

    Raises:
        VmfError: VMF290 no such domain, VMF291 no other one.

    Example:
        >>> rows = [Row(image="a.nii", label="la.nii", domain="A", subject="a"),
        ...         Row(image="b.nii", domain="A", subject="b"), Row(image="c.nii", domain="C", subject="c")]
        >>> parts = own_parts(Datalist("own", ".", {0: "background", 1: "LV"}, tuple(rows)), "C")
        >>> {part: [row.subject for row in rows] for part, rows in parts.items()}
        {'labeled': ['a'], 'unlabeled': ['b'], 'validation': [], 'target': ['c']}
    """
    if target_domain:
        check_target(own, target_domain)
    parts: dict[str, list[Row]] = {part: [] for part in SPLITS}
    for row in own.rows:
        usual = "labeled" if row.is_labeled else "unlabeled"
        part = "target" if target_domain and row.domain == target_domain else row.split or usual
        parts[part].append(row.without_label() if part == "unlabeled" else row)
    parts["target"] = [row for row in parts["target"] if row.is_labeled] or parts["target"]
    return {part: tuple(rows) for part, rows in parts.items()}
