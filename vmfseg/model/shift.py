# SPDX-License-Identifier: Apache-2.0
r"""Domain shift test: do scans look to the network like those of its source, subject by subject?

Of every subject a few statistics are kept, see :func:`vmfseg.model.prediction.volume_statistics`. With source
subjects of domain :math:`d`, their mean :math:`\mu_d`, the spread :math:`s` of subjects within domains, :math:`n` new
subjects with mean :math:`\bar x` and :math:`m_d` source subjects,

.. math:: Q_d = \frac{1}{\sum_k w_k} \sum_k w_k \frac{(\bar x_k - \mu_{dk})^2}{s_k^2 (1/n + 1/m_d)} .

What tells the known scanners apart will tell a new one apart, too, and what varies from subject to subject will not: a
statistic counts by the spread :math:`b` of the source domains' own means, :math:`w_k = \frac14 + b_k / s_k` (with what
chance adds to :math:`b` taken off; equal weights with one source domain). A new scanner may also be new in a way of its
own, so a tenth of the false alarms that are allowed is for the single statistic that moved most.

How large both get without any shift is found by drawing subjects again from the source, with the uncertainty of
:math:`s` itself. The scanner is new if it differs from *every* source domain: the p-value is the largest over domains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vmfseg.model.prediction import volume_statistics
from vmfseg.utils import VmfError, numpy_rng, read_json, write_json
from vmfseg.utils.io import StrPath

__all__ = ["SHIFT_FORMAT", "ShiftReference", "ShiftReport", "SubjectStatistics", "volume_statistics"]

SHIFT_FORMAT = "vmfseg-shift-1"
_DRAWS = 4000
_MIN_FREEDOM = 3
_FLOOR = 1e-4
_LEAST_WEIGHT = 0.25
_SINGLE = 0.1  # of the false alarms


@dataclass(frozen=True)
class SubjectStatistics:
    """Statistics of one subject.

    Attributes:
        values: by name.
        domain: scanner, vendor or site.
    """

    values: dict[str, float]
    domain: str = ""

    @classmethod
    def average(cls, volumes: Sequence[Mapping[str, float]], domain: str = "") -> SubjectStatistics:
        """Return the means over the volumes of a subject."""
        names = sorted({name for volume in volumes for name in volume})
        return cls({n: float(np.mean([v[n] for v in volumes if n in v])) for n in names}, domain)


@dataclass(frozen=True)
class ShiftReport:
    """Whether scans come from a scanner that the model does not know.

    Attributes:
        new: the verdict; ``None`` if there are too few source subjects to tell.
        p_value: how often source subjects differ as much by chance.
        alpha: at which the verdict is made.
        subjects: how many new subjects.
        nearest: the source domain that they resemble most.
        distance: :math:`Q` to that domain; about 1 without a shift.
        moved: the statistics that did most for the distance to that domain, by how many standard errors they moved.
    """

    new: bool | None
    p_value: float
    alpha: float
    subjects: int
    nearest: str
    distance: float
    moved: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class ShiftReference:
    """What source scans look like to the network.

    Attributes:
        names: of the statistics.
        values: one row for each source subject.
        domains: of the subjects.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> def scanner(shift, count, domain=""):
        ...     return [SubjectStatistics({"a": float(x), "b": float(y)}, domain)
        ...             for x, y in rng.normal(shift, 1, (count, 2))]
        >>> source = ShiftReference.from_subjects(scanner(0, 8, "A") + scanner(5, 8, "B"))
        >>> source.compare(scanner(5, 6)).new, source.compare(scanner(-6, 6)).new
        (False, True)
    """

    names: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    domains: tuple[str, ...]

    @classmethod
    def from_subjects(cls, subjects: Sequence[SubjectStatistics]) -> ShiftReference:
        """Take the statistics that all subjects have."""
        shared = set.intersection(*(set(subject.values) for subject in subjects)) if subjects else set()
        names = tuple(sorted(shared))
        rows = tuple(tuple(subject.values[name] for name in names) for subject in subjects)
        return cls(names, rows, tuple(subject.domain for subject in subjects))

    @classmethod
    def load(cls, path: StrPath) -> ShiftReference:
        """Read ``shift.json`` of a bundle.

        Raises:
            VmfError: VMF341 if the file holds something else.
        """
        content = read_json(path)
        try:
            if content["format"] != SHIFT_FORMAT:
                raise ValueError(f"format {content['format']}")
            rows = tuple(tuple(float(value) for value in row) for row in content["values"])
            reference = cls(tuple(content["names"]), rows, tuple(content["domains"]))
            table = np.array(reference.values, dtype=np.float64).reshape(len(rows), -1)
            if table.shape != (len(reference.domains), len(reference.names)) or not np.isfinite(table).all():
                raise ValueError("the table has gaps")
        except (KeyError, TypeError, ValueError) as error:
            raise VmfError("VMF341", subject=str(path), found=str(error)) from error
        return reference

    def save(self, path: StrPath, **facts: Any) -> None:
        """Write ``shift.json``, with ``facts`` beside the statistics; it names domains and no subject."""
        write_json(path, {"format": SHIFT_FORMAT, **asdict(self), **facts})

    def compare(self, subjects: Sequence[SubjectStatistics], alpha: float = 0.05, seed: int = 0) -> ShiftReport:
        """Test whether new subjects differ from every source domain.

        Args:
            subjects: scans of one scanner, one entry a subject; one that comes twice counts once, it is no second
                witness.
            alpha: how often a known scanner may be called new.
            seed: of the draws.

        Raises:
            ValueError: no subject, no statistic in common, or ``alpha`` outside (0, 1).
        """
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must lie between 0 and 1, got {alpha}. 0.05 allows one false alarm in twenty.")
        subjects = list({tuple(sorted(subject.values.items())): subject for subject in subjects}.values())
        names = [name for name in self.names if all(name in subject.values for subject in subjects)]
        if not subjects or not names:
            raise ValueError(
                f"subjects must share statistics with the source, got {len(subjects)} subjects, none common."
            )
        columns = [self.names.index(name) for name in names]
        table = np.array(self.values, dtype=np.float64)[:, columns]
        new = np.array([[subject.values[name] for name in names] for subject in subjects])
        domains = np.array(self.domains)
        groups = list(dict.fromkeys(self.domains))
        means = {group: table[domains == group].mean(axis=0) for group in groups}
        residuals = table - np.array([means[group] for group in self.domains])
        freedom = len(table) - len(groups)
        if freedom < _MIN_FREEDOM:
            return ShiftReport(None, 1.0, alpha, len(subjects), "", 0.0, {})
        spread = np.maximum(np.sqrt((residuals**2).sum(axis=0) / freedom), _FLOOR)
        weights = _weights(np.array(list(means.values())), spread, len(table) / len(groups))
        rng = numpy_rng(seed, "shift")
        tests = {}
        for group in groups:
            count = int((domains == group).sum())
            error = spread * np.sqrt(1 / len(new) + 1 / count)
            moved = (new.mean(axis=0) - means[group]) / error
            distance = float(moved**2 @ weights)
            null = _null(residuals / spread * np.sqrt(len(table) / freedom), len(new), count, freedom, rng)
            together = _share(null**2 @ weights, distance) / (1 - _SINGLE)
            alone = _share(np.abs(null).max(axis=1), float(np.abs(moved).max())) / _SINGLE
            tests[group] = (min(1.0, together, alone), distance, moved)
        nearest = max(groups, key=lambda group: (tests[group][0], -tests[group][1]))
        p_value, distance, moved = tests[nearest]
        largest = np.argsort(-np.abs(moved) * np.sqrt(weights))[:5]
        return ShiftReport(
            new=p_value < alpha,
            p_value=p_value,
            alpha=alpha,
            subjects=len(subjects),
            nearest=nearest,
            distance=round(distance, 3),
            moved={names[k]: round(float(moved[k]), 2) for k in largest},
        )


def _weights(means: npt.NDArray[np.float64], spread: npt.NDArray[np.float64], count: float) -> npt.NDArray[np.float64]:
    """Return the weight of each statistic; they sum to one."""
    between = means.var(axis=0, ddof=1) if len(means) > 1 else np.zeros_like(spread)
    weights = _LEAST_WEIGHT + np.sqrt(np.maximum(between / spread**2 - 1 / count, 0.0))
    return np.asarray(weights / weights.sum())


def _share(null: npt.NDArray[np.float64], found: float) -> float:
    """Return how many of the draws are at least as large as what was found."""
    return float((1 + (null >= found).sum()) / (1 + len(null)))


def _null(
    residuals: npt.NDArray[np.float64], new: int, known: int, freedom: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return by how many standard errors statistics move without a shift, draw by draw.

    New and known subjects are both taken from the source's residuals.
    """
    picks = rng.integers(0, len(residuals), (_DRAWS, new + known))
    drawn = residuals[picks]
    difference = drawn[:, :new].mean(axis=1) - drawn[:, new:].mean(axis=1)
    scale = freedom / rng.chisquare(freedom, _DRAWS)
    return np.asarray(difference * np.sqrt(scale / (1 / new + 1 / known))[:, None])
