# SPDX-License-Identifier: Apache-2.0
r"""Cardiac function: volumes at end-diastole and end-systole, ejection fraction, agreement with the truth.

.. math:: \mathrm{EF} = 100 \cdot \frac{\mathrm{EDV} - \mathrm{ESV}}{\mathrm{EDV}} \ \% .

A subject enters where both phases of it were scored and annotated, exactly one volume each. A predicted cavity that is
empty at end-diastole has no ejection fraction; it is counted (``n_undefined``), not left out silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .scores import ScoreRow

__all__ = ["CAVITIES", "CardiacRow", "cardiac_function", "cardiac_summary", "ejection_fraction"]

#: Class names that are blood pools of the heart; others have no ejection fraction.
CAVITIES = ("LV", "RV")

_MEASURES = ("edv_ml", "esv_ml", "ef_percent")


@dataclass(frozen=True)
class CardiacRow:
    """Volumes and ejection fraction of one cavity in one subject, predicted and true."""

    subject: str
    domain: str
    cavity: str
    edv_ml_pred: float
    edv_ml_true: float
    esv_ml_pred: float
    esv_ml_true: float
    ef_percent_pred: float | None
    ef_percent_true: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def ejection_fraction(edv_ml: float, esv_ml: float) -> float | None:
    """Return the ejection fraction in percent, or ``None`` if the end-diastolic volume is zero.

    Example:
        >>> ejection_fraction(150.0, 60.0), ejection_fraction(0.0, 60.0)
        (60.0, None)
    """
    return None if edv_ml == 0 else 100 * (edv_ml - esv_ml) / edv_ml


def cardiac_function(rows: Sequence[ScoreRow], cavities: Sequence[str] = CAVITIES) -> list[CardiacRow]:
    """Pair the phases ``"ED"`` and ``"ES"`` of every subject.

    Args:
        rows: scores of volumes, from :func:`vmfseg.metrics.evaluate_cases`.
        cavities: class names to treat as cavities.

    Returns:
        One row per subject and cavity for which both phases are there.
    """
    groups: dict[tuple[str, str, str], dict[str, list[ScoreRow]]] = {}
    for row in rows:
        if row.class_name in cavities and row.phase in ("ED", "ES") and row.volume_true_ml is not None:
            phases = groups.setdefault((row.domain, row.subject, row.class_name), {"ED": [], "ES": []})
            phases[row.phase].append(row)
    result = []
    for (domain, subject, cavity), phases in sorted(groups.items()):
        if [len(phases["ED"]), len(phases["ES"])] != [1, 1]:
            continue
        ed, es = phases["ED"][0], phases["ES"][0]
        true = float(ed.volume_true_ml or 0), float(es.volume_true_ml or 0)
        result.append(
            CardiacRow(
                subject=subject,
                domain=domain,
                cavity=cavity,
                edv_ml_pred=ed.volume_pred_ml,
                edv_ml_true=true[0],
                esv_ml_pred=es.volume_pred_ml,
                esv_ml_true=true[1],
                ef_percent_pred=ejection_fraction(ed.volume_pred_ml, es.volume_pred_ml),
                ef_percent_true=ejection_fraction(*true),
            )
        )
    return result


def cardiac_summary(rows: Sequence[CardiacRow]) -> dict[str, Any]:
    """Return agreement per cavity and measure: means, bias (predicted minus true) with sample SD, mean absolute error.

    Example:
        >>> row = CardiacRow("s1", "A", "LV", 140.0, 150.0, 60.0, 60.0, ejection_fraction(140, 60), 60.0)
        >>> cardiac_summary([row])["LV"]["edv_ml"]["bias"]
        -10.0
    """
    summary: dict[str, Any] = {}
    for cavity in sorted({row.cavity for row in rows}):
        chosen = [row for row in rows if row.cavity == cavity]
        summary[cavity] = {measure: _agreement(chosen, measure) for measure in _MEASURES}
    return summary


def _agreement(rows: Sequence[CardiacRow], measure: str) -> dict[str, Any]:
    pairs = [(getattr(row, f"{measure}_pred"), getattr(row, f"{measure}_true")) for row in rows]
    values = np.asarray([pair for pair in pairs if None not in pair], dtype=np.float64).reshape(-1, 2)
    difference = values[:, 0] - values[:, 1]
    count = len(values)
    return {
        "n": count,
        "n_undefined": len(pairs) - count,
        "mean_pred": float(values[:, 0].mean()) if count else None,
        "mean_true": float(values[:, 1].mean()) if count else None,
        "bias": float(difference.mean()) if count else None,
        "sd_of_difference": float(difference.std(ddof=1)) if count > 1 else None,
        "mean_absolute_error": float(np.abs(difference).mean()) if count else None,
    }
