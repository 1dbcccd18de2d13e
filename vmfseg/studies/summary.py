# SPDX-License-Identifier: Apache-2.0
r"""Figures of a study: mean and spread over seeds per target and on average, and paired differences over subjects.

*Over seeds*: a cell is the mean over seeds with the sample standard deviation. The average over targets is taken seed
by seed, over those seeds that have all targets, so its spread is one over seeds too.

*Paired differences*: with :math:`d_i` the Dice of subject :math:`i` by one method (mean over its volumes, classes and
the seeds that both methods have) minus that by the baseline, over the subjects of all targets: the mean of the
:math:`d_i`, its 95 % percentile interval over 10 000 bootstrap samples of subjects, and Wilcoxon's signed-rank test,
with Holm's correction over the methods of a table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import wilcoxon

from vmfseg.studies.published import published_dice, published_distance
from vmfseg.studies.records import Record
from vmfseg.studies.study_file import Study
from vmfseg.utils import numpy_rng

__all__ = ["AVERAGE", "Comparison", "Line", "Spread", "Table", "paired_difference", "summarize_study"]

AVERAGE = "average"
_SAMPLES = 10_000


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of ``n`` values; ``sd`` is ``None`` for a single one."""

    mean: float
    sd: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of some values, ``None`` for none.

        Example:
            >>> Spread.of([1.0, 3.0])
            Spread(mean=2.0, sd=1.4142135623730951, n=2)
        """
        if not values:
            return None
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), sd, len(values))


@dataclass(frozen=True)
class Line:
    """One method of a table.

    Attributes:
        name: of the method, with what the grid changes in it.
        dice: by target and for :data:`AVERAGE`.
        distance: likewise, see :class:`vmfseg.studies.records.Record`.
        published: Dice in the paper, 0 to 1, where it has the cell.
        published_distance: the paper's "HD".
        classes: Dice by class over targets and seeds.
        validation: Dice on source validation.
        cpu_seconds: of a run.
        resumed: runs that were stopped at least once.
        done: runs with figures.
        planned: runs in all.
    """

    name: str
    dice: dict[str, Spread]
    distance: dict[str, Spread]
    published: dict[str, float]
    published_distance: dict[str, float]
    classes: dict[str, Spread]
    validation: Spread | None
    cpu_seconds: Spread | None
    resumed: int
    done: int
    planned: int


@dataclass(frozen=True)
class Comparison:
    """A method against the baseline, subject by subject; see the head of this module."""

    name: str
    baseline: str
    n: int
    mean: float
    low: float
    high: float
    better: int
    p: float | None
    p_holm: float | None = None


@dataclass(frozen=True)
class Table:
    """Figures of one protocol and one fraction of labels."""

    protocol: str
    fraction: float
    targets: tuple[str, ...]
    lines: tuple[Line, ...]
    comparisons: tuple[Comparison, ...]

    def best(self, column: str, distance: bool = False) -> set[str]:
        """Return the names of the methods with the best mean of a column; those that tie in print share it."""
        figures = {line.name: (line.distance if distance else line.dice).get(column) for line in self.lines}
        means = {name: round(spread.mean, 3 if distance else 4) for name, spread in figures.items() if spread}
        if not means:
            return set()
        top = min(means.values()) if distance else max(means.values())
        return {name for name, mean in means.items() if mean == top}


def summarize_study(study: Study, records: Sequence[Record]) -> list[Table]:
    """Return the tables of a study, protocol by protocol, fraction by fraction."""
    groups: dict[tuple[str, float], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.cell.protocol, record.cell.fraction].append(record)
    return [
        _table(study, protocol, fraction, groups[protocol, fraction])
        for protocol in study.protocols
        for fraction in study.fractions
    ]


def _table(study: Study, protocol: str, fraction: float, records: Sequence[Record]) -> Table:
    rows: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        rows[record.row].append(record)
    lines = tuple(_line(study, fraction, name, mine) for name, mine in rows.items())
    bases = [name for name, mine in rows.items() if mine[0].cell.method == study.baseline]
    found = []
    for name, mine in rows.items():
        changes = mine[0].cell.changes
        base = next((b for b in bases if rows[b][0].cell.changes == changes), None)
        if base is not None and base != name:
            comparison = _compare(name, mine, base, rows[base])
            found += [comparison] if comparison is not None else []
    return Table(protocol, fraction, study.targets, lines, tuple(_holm(found)))


def _line(study: Study, fraction: float, name: str, records: Sequence[Record]) -> Line:
    done = [record for record in records if record.state == "done" and record.dice is not None]
    method = records[0].cell.method
    classes: dict[str, list[float]] = defaultdict(list)
    for record in done:
        for label, dice in record.classes.items():
            classes[label].append(dice)
    return Line(
        name=name,
        dice=_columns(study.targets, done, "dice"),
        distance=_columns(study.targets, [r for r in done if r.distance is not None], "distance"),
        published=published_dice(study.published, fraction, method),
        published_distance=published_distance(study.published, fraction, method),
        classes={label: spread for label, values in classes.items() if (spread := Spread.of(values))},
        validation=Spread.of([record.validation for record in done if record.validation is not None]),
        cpu_seconds=Spread.of([float(record.spent["cpu_seconds"]) for record in done]),
        resumed=sum(record.spent.get("attempts", 1) > 1 for record in done),
        done=len(done),
        planned=len(records),
    )


def _columns(targets: Sequence[str], records: Sequence[Record], figure: str) -> dict[str, Spread]:
    values = {(r.cell.target, r.cell.seed): float(getattr(r, figure)) for r in records}
    seeds = sorted({seed for _, seed in values})
    columns = {target: [values[target, seed] for seed in seeds if (target, seed) in values] for target in targets}
    whole = [seed for seed in seeds if all((target, seed) in values for target in targets)]
    columns[AVERAGE] = [float(np.mean([values[target, seed] for target in targets])) for seed in whole]
    return {name: spread for name, found in columns.items() if (spread := Spread.of(found))}


def _compare(name: str, mine: Sequence[Record], base: str, theirs: Sequence[Record]) -> Comparison | None:
    """Compare two methods on the subjects, targets and seeds that both have."""
    scores = [
        {(r.cell.target, r.cell.seed): r.subjects for r in records if r.state == "done"} for records in (mine, theirs)
    ]
    differences: dict[tuple[str, str], list[float]] = defaultdict(list)
    for target, seed in scores[0].keys() & scores[1].keys():
        first, second = scores[0][target, seed], scores[1][target, seed]
        for subject in first.keys() & second.keys():
            differences[target, subject].append(first[subject] - second[subject])
    if not differences:
        return None
    return paired_difference(name, base, [float(np.mean(differences[key])) for key in sorted(differences)])


def paired_difference(name: str, base: str, differences: Sequence[float]) -> Comparison:
    """Return mean, bootstrap interval and test of the differences of single subjects.

    Example:
        >>> paired_difference("a", "b", [0.01, 0.03, 0.02, 0.04, 0.05, 0.06]).p
        0.03125
    """
    values = np.asarray(differences, dtype=float)
    draws = numpy_rng(0, "study", "bootstrap").integers(0, len(values), (_SAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    p = float(wilcoxon(values).pvalue) if np.any(values != 0) else None
    better = int((values > 0).sum())
    return Comparison(name, base, len(values), float(values.mean()), float(low), float(high), better, p)


def _holm(found: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with p values corrected for their number."""
    tested = sorted((c for c in found if c.p is not None), key=lambda c: c.p or 0.0)
    corrected: dict[str, float] = {}
    largest = 0.0
    for rank, comparison in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * (comparison.p or 0.0)))
        corrected[comparison.name] = largest
    return [Comparison(**{**vars(c), "p_holm": corrected.get(c.name)}) for c in found]
