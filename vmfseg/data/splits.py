# SPDX-License-Identifier: Apache-2.0
r"""Splits by subject: one domain left out, a fraction of the sources labelled, no leakage.

**Labelled subjects.** In every group (vendor and centre) the subjects with labels are sorted by their code; the first
:math:`\lceil n k \rceil` of :math:`n` are labelled for a fraction :math:`k` (``protocol="clean"``), or
:math:`\lceil n k + 1 \rceil` as the reference code does (``protocol="reference"``, one more in every group). For M&Ms:

======  ==================  =============  ==================  =============  =====
target  2 % reference       2 % clean      5 % reference       5 % clean      100 %
======  ==================  =============  ==================  =============  =====
A       3+3+2+2 = 10        6              5+4+4+4 = 17        13             225
B       3+2+2 = 7           4              6+4+4 = 14          11             195
C       3+3+3+2 = 11        7              6+5+4+4 = 19        15             270
D       3+3+3+2 = 11        7              6+5+4+4 = 19        15             270
======  ==================  =============  ==================  =============  =====

**Validation subjects** choose the checkpoint. They come from the source domains, whole subjects at a time: in each
group :math:`\lceil v m \rceil` (at least one) for :math:`m` labelled subjects and ``validation_fraction`` :math:`v`,
drawn by seed from the subjects with labels that are *not* in the labelled training set, so the counts above stay exact.
The size follows the labelled set, because a study with few labels has few labels for validation as well. Where too few
subjects are left (always at 100 %), the last ones of the labelled set move over to validation, but the labelled set
keeps at least one subject of each group; ``validation_fraction=0`` gives the exact counts there too.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from vmfseg.data.datalist import SPLITS, Datalist, Row
from vmfseg.utils import VmfError, check_choice, did_you_mean, numpy_rng
from vmfseg.utils.io import sha256_bytes

__all__ = ["Protocol", "Split", "check_target", "labeled_fraction", "leave_one_domain_out", "weakly_labeled"]

Protocol = Literal["clean", "reference"]


@dataclass(frozen=True)
class Split:
    """Rows for training with and without labels, for choosing the checkpoint, and for the final test.

    The constructor refuses leakage: target and validation subjects appear nowhere else, no target domain is a source
    domain, unlabelled rows carry no label, and labelled subjects are not unlabelled ones as well unless
    ``shared_subjects`` says so.

    Args:
        labeled: training rows with labels.
        unlabeled: training rows without.
        validation: source rows that choose the checkpoint.
        target: rows of the unseen domain.
        shared_subjects: whether labelled subjects may have unlabelled rows too: other frames, or the same ones.

    Raises:
        VmfError: VMF288 leakage, VMF292 no labelled rows.

    Example:
        >>> a = Row(image="a.nii.gz", label="la.nii.gz", domain="A", subject="a")
        >>> b = Row(image="b.nii.gz", label="lb.nii.gz", domain="B", subject="b")
        >>> Split(labeled=(a,), unlabeled=(b.without_label(),), validation=(), target=(b,))
        Traceback (most recent call last):
        vmfseg.utils.errors.VmfError: error VMF288: a target subject must not be in training or validation
        ...
    """

    labeled: tuple[Row, ...]
    unlabeled: tuple[Row, ...]
    validation: tuple[Row, ...]
    target: tuple[Row, ...]
    shared_subjects: bool = False

    def __post_init__(self) -> None:
        for name in SPLITS:
            object.__setattr__(self, name, tuple(getattr(self, name)))
        people = {name: {row.subject for row in getattr(self, name)} for name in SPLITS}
        sources = people["labeled"] | people["unlabeled"]
        _refuse_shared(
            "a target subject must not be in training or validation",
            people["target"] & (sources | people["validation"]),
        )
        _refuse_shared("a validation subject must not be in training", people["validation"] & sources)
        if not self.shared_subjects:
            _refuse_shared("a labelled subject must not be unlabelled as well", people["labeled"] & people["unlabeled"])
        domains = {row.domain for row in self.target}
        mixed = {row.domain for name in SPLITS[:3] for row in getattr(self, name)} & domains
        _refuse_shared("a target domain must not be a source domain", mixed)
        _refuse_shared(
            "unlabelled rows must not carry labels", {row.subject for row in self.unlabeled if row.is_labeled}
        )
        if not self.labeled or not all(row.is_labeled for row in (*self.labeled, *self.validation)):
            raise VmfError(
                "VMF292",
                subject="split",
                rule="training and validation need rows with labels",
                found=f"{len(self.labeled)} training rows" if not self.labeled else "a row without a label",
                fix="label at least one source subject, or raise labeled_fraction",
            )

    @property
    def hash(self) -> str:
        """SHA-256 of who is in which part: equal for equal splits, whatever the machine."""
        parts = {name: [[r.subject, r.image, r.frame] for r in getattr(self, name)] for name in SPLITS}
        return sha256_bytes(json.dumps(parts, sort_keys=True).encode())

    def subjects(self, part: str) -> tuple[str, ...]:
        """Return the subjects of a part (``"labeled"``, ``"unlabeled"``, ``"validation"``, ``"target"``), sorted."""
        check_choice("part", part, SPLITS)
        return tuple(sorted({row.subject for row in getattr(self, part)}))

    def counts(self) -> dict[str, int]:
        """Return the number of subjects of each part."""
        return {name: len(self.subjects(name)) for name in SPLITS}

    def apply(self, datalist: Datalist) -> Datalist:
        """Return the datalist with these rows only, each marked with its part."""
        return datalist.with_rows(replace(row, split=name) for name in SPLITS for row in getattr(self, name))

    @classmethod
    def from_datalist(cls, datalist: Datalist) -> Split:
        """Return the split that the rows' ``split`` fields describe; rows without one are left out."""
        parts = {name: [replace(row, split=None) for row in datalist.rows if row.split == name] for name in SPLITS}
        shared = {row.subject for row in parts["labeled"]} & {row.subject for row in parts["unlabeled"]}
        parts["unlabeled"] = [row.without_label() for row in parts["unlabeled"]]
        rows = {name: tuple(part) for name, part in parts.items()}
        return cls(**rows, shared_subjects=bool(shared))


def labeled_fraction(
    rows: Datalist | Iterable[Row],
    fraction: float,
    *,
    protocol: Protocol = "clean",
    selection: Literal["first", "random"] = "first",
    seed: int = 0,
) -> dict[str, tuple[str, ...]]:
    """Choose the subjects whose labels are used, in every group.

    Args:
        rows: rows to choose from; only subjects with labels count.
        fraction: fraction of the subjects of each group, above 0 and up to 1.
        protocol: ``"clean"`` or ``"reference"``, see above.
        selection: ``"first"`` by subject code, as the reference does, or ``"random"`` by seed.
        seed: seed of a random selection.

    Returns:
        subjects by group, both sorted.

    Example:
        >>> rows = [Row(image=f"{i}.nii", label=f"l{i}.nii", domain="A", subject=f"s{i:02d}") for i in range(50)]
        >>> labeled_fraction(rows, 0.02), labeled_fraction(rows, 0.02, protocol="reference")
        ({'A': ('s00',)}, {'A': ('s00', 's01')})
    """
    check_choice("protocol", protocol, ["clean", "reference"])
    check_choice("selection", selection, ["first", "random"])
    if not 0 < fraction <= 1:
        raise ValueError(f"labeled_fraction must be above 0 and at most 1, got {fraction}. Write 5 % as 0.05.")
    groups: dict[str, set[str]] = defaultdict(set)
    for row in rows.rows if isinstance(rows, Datalist) else rows:
        if row.is_labeled:
            groups[row.group].add(row.subject)
    chosen = {}
    for group in sorted(groups):
        subjects = sorted(groups[group])
        extra = 1 if protocol == "reference" else 0
        count = min(len(subjects), math.ceil(round(len(subjects) * fraction + extra, 9)))
        if selection == "random":
            order = numpy_rng(seed, "labeled", group).permutation(len(subjects))
            subjects = [subjects[i] for i in order]
        chosen[group] = tuple(sorted(subjects[:count]))
    return chosen


def leave_one_domain_out(
    datalist: Datalist,
    target: str,
    *,
    labeled_fraction: float = 1.0,
    validation_fraction: float | None = None,
    protocol: Protocol = "clean",
    selection: Literal["first", "random"] = "first",
    shared_subjects: bool = False,
    seed: int = 0,
) -> Split:
    """Split a datalist: one domain is the unseen target, the others are sources.

    The unlabelled pool is, with ``protocol="clean"``, every row of the source subjects that are in neither the labelled
    nor the validation set (``shared_subjects`` adds the remaining frames of labelled subjects); with
    ``protocol="reference"`` every row of every source subject, the labelled ones (without their labels) included.

    Args:
        datalist: all rows.
        target: the domain that is left out; its labelled rows become the test set.
        labeled_fraction: fraction of labelled subjects in every group.
        validation_fraction: validation subjects per labelled subject; default 0.2, with ``"reference"`` 0 (the
            reference has no validation set of its own).
        protocol: ``"clean"`` or ``"reference"``.
        selection: how labelled subjects are chosen, ``"first"`` by code or ``"random"`` by seed.
        shared_subjects: whether unlabelled frames of labelled subjects are in the unlabelled pool.
        seed: seed of the choice of validation subjects (and of a random selection).

    Raises:
        VmfError: VMF290 unknown target, VMF291 one domain only, VMF292 no labelled subject, VMF293 a class that no
            labelled subject annotates.

    Example:
        >>> rows = [Row(image=f"{d}{i}.nii", label=f"l{d}{i}.nii", domain=d, subject=f"{d}{i}")
        ...         for d in "ABC" for i in range(10)]
        >>> data = Datalist("demo", ".", {0: "background", 1: "LV"}, rows)
        >>> leave_one_domain_out(data, "C", labeled_fraction=0.2).counts()
        {'labeled': 4, 'unlabeled': 14, 'validation': 2, 'target': 10}
    """
    check_target(datalist, target)
    amount = (0.0 if protocol == "reference" else 0.2) if validation_fraction is None else validation_fraction
    if not 0 <= amount <= 1:
        raise ValueError(f"validation_fraction must be between 0 and 1, got {amount}. Use 0.2, or 0 for none.")
    source = [row for row in datalist.rows if row.domain != target]
    chosen = _select(source, labeled_fraction, protocol, selection, seed)
    train, validation = _hold_out(source, chosen, amount, seed)
    labeled = [row for row in source if row.subject in train and row.is_labeled]
    shared = shared_subjects or protocol == "reference"
    used = {(row.image, row.frame) for row in labeled}
    unlabeled = [
        row.without_label()
        for row in source
        if row.subject not in validation
        and (row.subject not in train or shared)
        and (protocol == "reference" or (row.image, row.frame) not in used)
    ]
    test = [row for row in datalist.rows if row.domain == target]
    split = Split(
        labeled=tuple(labeled),
        unlabeled=tuple(unlabeled),
        validation=tuple(row for row in source if row.subject in validation and row.is_labeled),
        target=tuple([row for row in test if row.is_labeled] or test),
        shared_subjects=shared,
    )
    _check_classes(datalist, split)
    return split


def weakly_labeled(datalist: Datalist, split: Split) -> list[Row]:
    """Return the labelled rows of all training subjects, for training with presence labels instead of masks.

    Weak supervision knows of every source slice which structures it shows. Those labels are derived from masks, so this
    returns the rows *with* masks of the labelled and unlabelled subjects, and those whose ``present`` says it without a
    mask; validation and target stay out.
    """
    people = set(split.subjects("labeled")) | set(split.subjects("unlabeled"))
    return [row for row in datalist.rows if row.subject in people and (row.is_labeled or row.present is not None)]


_select_subjects = labeled_fraction  # the parameter of the same name hides the function


def _select(
    rows: list[Row], fraction: float, protocol: Protocol, selection: Literal["first", "random"], seed: int
) -> dict[str, tuple[str, ...]]:
    chosen = _select_subjects(rows, fraction, protocol=protocol, selection=selection, seed=seed)
    if not chosen:
        raise VmfError(
            "VMF292",
            subject="datalist",
            rule="the source domains must have labelled subjects",
            found="none",
            fix="add labels, or choose another target domain",
        )
    return chosen


def _hold_out(
    source: list[Row], chosen: dict[str, tuple[str, ...]], amount: float, seed: int
) -> tuple[set[str], set[str]]:
    """Return the labelled training subjects and the validation subjects."""
    train = {subject for subjects in chosen.values() for subject in subjects}
    validation: set[str] = set()
    for group, subjects in chosen.items():
        wanted = math.ceil(round(amount * len(subjects), 9))
        rest = sorted({row.subject for row in source if row.group == group and row.is_labeled} - set(subjects))
        order = numpy_rng(seed, "validation", group).permutation(len(rest))
        picked = [rest[i] for i in order[:wanted]]
        spare = min(wanted - len(picked), len(subjects) - 1)
        picked += subjects[len(subjects) - spare :] if spare > 0 else ()
        validation.update(picked)
    return train - validation, validation


def check_target(datalist: Datalist, target: str) -> None:
    """Refuse a target that is no domain (VMF290), or the only one (VMF291)."""
    domains = datalist.domains
    if target not in domains:
        raise VmfError(
            "VMF290",
            subject=f"target_domain {target!r}",
            rule=f"the target must be a domain of {datalist.name}",
            found=f"its domains are {', '.join(domains)}",
            fix=did_you_mean(target, domains).strip() or "choose one of them",
        )
    if len(domains) < 2:
        raise VmfError("VMF291", subject=datalist.name, found=f"only {domains[0]}")


def _check_classes(datalist: Datalist, split: Split) -> None:
    every = set(datalist.labels) - {0}
    known = {value for row in split.labeled for value in (every if row.annotated is None else row.annotated)}
    if every - known:
        names = ", ".join(datalist.labels[value] for value in sorted(every - known))
        raise VmfError("VMF293", subject=datalist.name, found=f"none annotates {names}")


def _refuse_shared(rule: str, shared: set[str]) -> None:
    if shared:
        some = ", ".join(sorted(shared)[:5])
        raise VmfError(
            "VMF288",
            subject="split",
            rule=rule,
            found=f"{some}{', ...' if len(shared) > 5 else ''} ({len(shared)})",
            fix="split by subject with leave_one_domain_out",
        )
