# SPDX-License-Identifier: Apache-2.0
"""Does a trained model know when it fails, and does it know a scanner that it has never seen?

A bundle that was trained by its default command (vendors A, B and C of the phantom) is asked

* for its predicted Dice on scans of vendor D and on source validation, over five levels of five corruptions: the mean
  over the volumes should fall from level to level, as the true Dice does;
* which of the scans of vendor D, clean and corrupted, it has segmented with a Dice below 0.7 (AUROC). Clean scans alone
  have no failures in them, so that the corrupted ones are needed for a figure;
* whether vendor D is new and whether subjects of A, B and C are not. For these the phantom is made again with another
  seed: hearts that neither training nor calibration saw, on the known scanners. 40 bootstraps draw subjects of each
  vendor in turn, with replacement; at most 5 % may raise the alarm. Also, each source vendor is left out of the
  reference and judged against the others, by which the statistics were chosen.

Everything that the answers are made with was learnt on source data (quality.json, shift.json beside the weights). Run

    python benchmarks/trust.py BUNDLE [--output FILE]

after ``vmfseg train BUNDLE``; it exits with 1 if a figure is missed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from vmfseg.data import prepare_experiment
from vmfseg.model import Predictor
from vmfseg.model.calibration import QualityCase, quality_cases
from vmfseg.model.corruption import CORRUPTIONS, LEVELS
from vmfseg.model.quality import QualityModel
from vmfseg.model.shift import ShiftReference, SubjectStatistics
from vmfseg.model.survey import group_subjects, survey
from vmfseg.utils import atomic_write, numpy_rng

FAILED = 0.7
BOOTSTRAPS = 40
DRAWN = 4  # subjects in a bootstrap


def auroc(scores: np.ndarray, failed: np.ndarray) -> float:
    """Return how often a failed case has a lower score than one that is not; ties count half."""
    bad, good = scores[failed][:, None], scores[~failed][None]
    return float((bad < good).mean() + 0.5 * (bad == good).mean())


def levels(model: QualityModel, cases: list[QualityCase], kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean predicted and the mean true Dice from level 0 on."""
    groups = [[c for c in cases if c.level == k and (c.kind == kind or not k)] for k in range(LEVELS + 1)]
    score = [np.mean([model.predict(model.judged(case.frame)) for case in group]) for group in groups]
    return np.array(score), np.array([np.mean([case.dice for case in group]) for group in groups])


def judge_quality(predictor: Predictor, rows: dict[str, list[dict[str, Any]]]) -> tuple[list[str], list[str]]:
    """Return the lines about quality, and what is missed."""
    model, lines, missed = predictor.quality, [], []
    if model is None:
        raise SystemExit("the bundle has no quality.json of its weights; train it with its calibration stage")
    lines.append(
        f"predicted Dice, right to {model.error:.3f} on subjects left out of the fit ({model.volumes} volumes)"
    )
    lines.append(
        "weights of the signals: " + ", ".join(f"{name} {value:+.3f}" for name, value in model.weights.items())
    )
    for name, chosen in rows.items():
        cases = quality_cases(predictor, chosen, every_level=True)
        lines += ["", f"{name}: predicted Dice (true Dice) at levels 0 to {LEVELS}, mean of {len(chosen)} volumes"]
        for kind in CORRUPTIONS:
            score, truth = levels(model, cases, kind)
            falls = bool((np.diff(score[1:]) < 0).all())
            text = "  ".join(f"{s:.3f} ({t:.2f})" for s, t in zip(score, truth, strict=True))
            clean = "" if score[1] < score[0] else "; level 1 above level 0"
            lines.append(f"  {kind:7} {text}  {'falls' if falls else 'DOES NOT FALL'}{clean}")
            if not falls:
                missed.append(f"{name}, {kind}")
        score = np.array([model.predict(model.judged(case.frame)) for case in cases])
        truth = np.array([case.dice for case in cases])
        failed = truth < FAILED
        area = auroc(score, failed)
        error = float(np.sqrt(np.mean((score - truth) ** 2)))
        lines.append(
            f"  Dice < {FAILED}: {int(failed.sum())} of {len(cases)} volumes, AUROC {area:.3f}, RMSE {error:.3f}"
        )
        lights = np.array([model.light(model.judged(case.frame)) for case in cases])
        counts = [f"{light} {int((failed & (lights == light)).sum())} of {int((lights == light).sum())}"
                  for light in ("green", "amber", "red")]  # fmt: skip
        lines.append(f"  failed among {', '.join(counts)}")
        if not area >= 0.8:
            missed.append(f"{name}, AUROC")
    return lines, missed


def judge_shift(
    predictor: Predictor, target: list[dict[str, Any]], known: list[dict[str, Any]]
) -> tuple[list[str], list[str]]:
    """Return the lines about the alarm, and what is missed."""
    reference = ShiftReference.load(predictor.model.weights.with_name("shift.json"))
    lines, missed = ["", f"shift alarm, {len(reference.domains)} source subjects, alpha 0.05"], []
    groups = group_subjects(survey(predictor, [*target, *known]))
    source = sorted(set(reference.domains))
    for name, subjects in sorted(groups.items()):
        report = reference.compare(subjects)
        verdict = "new" if report.new else "known"
        lines.append(
            f"  vendor {name}: {verdict}, p {report.p_value:.4f}, {report.subjects} subjects, nearest {report.nearest}"
        )
        if bool(report.new) == (name in source):
            missed.append(f"verdict on vendor {name}")
    table = dict(zip(reference.names, zip(*reference.values, strict=True), strict=True))
    rows = [SubjectStatistics({n: table[n][k] for n in table}, d) for k, d in enumerate(reference.domains)]
    for name in source:
        others = ShiftReference.from_subjects([row for row in rows if row.domain != name])
        report = others.compare([row for row in rows if row.domain == name])
        lines.append(f"  vendor {name} against the other source vendors alone: p {report.p_value:.4f}")
    for title, names, wanted in (
        ("known vendors", source, False),
        ("new vendor", sorted(set(groups) - set(source)), True),
    ):
        alarms = 0
        for k in range(BOOTSTRAPS):
            subjects = groups[names[k % len(names)]]
            picks = numpy_rng("trust", title, k).integers(0, len(subjects), DRAWN)
            alarms += bool(reference.compare([subjects[pick] for pick in picks], seed=k).new)
        lines.append(f"  {title}: alarm in {alarms} of {BOOTSTRAPS} bootstraps of {DRAWN} subjects")
        if not wanted and alarms > 0.05 * BOOTSTRAPS:
            missed.append("false alarms")
    return lines, missed


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", help="a trained bundle")
    parser.add_argument("--output", default="", help="file for the lines as they come out")
    args = parser.parse_args()
    predictor = Predictor.from_bundle(args.bundle, "cpu", batch_size=16)
    # the arguments of the default training: the split, and so what was held out, must be the same
    source = prepare_experiment("mnms", target_domain="D", labeled_fraction=0.25, phantom={"subjects": 24}, quiet=True)
    fresh = prepare_experiment("mnms", target_domain="D", seed=1, phantom={"subjects": 24}, quiet=True)
    rows = {"source validation": source.validation, "vendor D": source.target}
    lines, missed = judge_quality(predictor, rows)
    known = [{k: v for k, v in row.items() if k != "label"} for row in [*fresh.images, *fresh.validation]]
    more, missed_too = judge_shift(predictor, source.target, known)
    missed += missed_too
    text = "\n".join([f"bundle {predictor.model.name}, weights {predictor.digest[:12]}", *lines, *more, "",
                      "MISSED: " + "; ".join(missed) if missed else "all met"])  # fmt: skip
    print(text)
    if args.output:
        atomic_write(Path(args.output), text + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
