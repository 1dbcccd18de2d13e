# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest

from vmfseg.model.prediction import FramePrediction, volume_statistics
from vmfseg.model.shift import ShiftReference, SubjectStatistics
from vmfseg.utils import VmfError

NAMES = [f"kernel {k}" for k in range(8)] + ["log_likelihood", "entropy"]


def scanner(rng, center, count, domain="", heavy=False):
    noise = rng.standard_t(4, (count, len(NAMES))) if heavy else rng.normal(size=(count, len(NAMES)))
    mixed = noise @ (np.eye(len(NAMES)) + 0.4)  # statistics go together
    rows = center + 0.1 * mixed
    return [SubjectStatistics(dict(zip(NAMES, map(float, row), strict=True)), domain) for row in rows]


def centers(rng):
    return rng.normal(0, 1, (4, len(NAMES)))


@pytest.mark.parametrize("heavy", [False, True], ids=["normal", "heavy-tailed"])
@pytest.mark.parametrize("count", [2, 6])
def test_known_scanners_are_seldom_called_new(heavy, count):
    rng = np.random.default_rng(5)
    alarms = trials = 0
    for _ in range(40):
        places = centers(rng)
        reference = ShiftReference.from_subjects(
            [s for d in range(3) for s in scanner(rng, places[d], 6, "ABC"[d], heavy)]
        )
        report = reference.compare(scanner(rng, places[trials % 3], count, heavy=heavy))
        alarms += bool(report.new)
        trials += 1
    assert alarms <= 0.05 * trials + 2


def test_new_scanners_are_found_and_the_nearest_domain_is_named():
    rng = np.random.default_rng(6)
    places = centers(rng)
    reference = ShiftReference.from_subjects([s for d in range(3) for s in scanner(rng, places[d], 6, "ABC"[d])])
    assert reference.compare(scanner(rng, places[3], 6)).new
    known = reference.compare(scanner(rng, places[1], 6))
    assert (known.new, known.nearest) == (False, "B")
    moved = places[1].copy()
    moved[3] += 3.0
    report = reference.compare(scanner(rng, moved, 6))
    assert report.new
    assert next(iter(report.moved)) == "kernel 3"
    assert report.p_value < 0.01


@pytest.mark.parametrize(
    ("telling", "idle", "new"),
    [
        pytest.param(1.5, 0.0, True, id="what-tells-scanners-apart"),
        pytest.param(0.0, 1.5, False, id="what-varies-between-subjects"),
        pytest.param(0.0, 9.0, True, id="far-off-in-its-own-way"),
    ],
)
def test_a_statistic_counts_by_how_well_it_tells_known_scanners_apart(telling, idle, new):
    rng = np.random.default_rng(8)

    def subjects(level, other, domain=""):
        rows = rng.normal(0, 1, (8, 12)) + other
        rows[:, 0] += level - other
        return [SubjectStatistics({f"s{k}": float(v) for k, v in enumerate(row)}, domain) for row in rows]

    reference = ShiftReference.from_subjects(
        [s for d, x in zip("ABC", (0, 20, 40), strict=True) for s in subjects(x, 0, d)]
    )
    rest = subjects(40 + 1.5 * telling, 0)
    rest = [SubjectStatistics({**s.values, "s5": s.values["s5"] + idle}) for s in rest]
    assert reference.compare(rest).new is new


def test_a_subject_that_comes_twice_is_one_subject():
    rng = np.random.default_rng(9)
    places = centers(rng)
    reference = ShiftReference.from_subjects([s for d in range(3) for s in scanner(rng, places[d], 6, "ABC"[d])])
    data = scanner(rng, places[0], 3)
    assert reference.compare(data * 4) == reference.compare(data)
    assert reference.compare(data * 4).subjects == 3


def test_few_source_subjects_give_no_verdict():
    rng = np.random.default_rng(7)
    places = centers(rng)
    reference = ShiftReference.from_subjects([s for d in range(2) for s in scanner(rng, places[d], 2, "AB"[d])])
    assert reference.compare(scanner(rng, places[3], 6)).new is None


def test_results_are_repeatable_and_the_file_round_trips(tmp_path):
    rng = np.random.default_rng(8)
    reference = ShiftReference.from_subjects(scanner(rng, 0, 9, "A"))
    reference.save(tmp_path / "shift.json")
    loaded = ShiftReference.load(tmp_path / "shift.json")
    assert loaded == reference
    data = scanner(rng, 0, 4)
    assert loaded.compare(data) == reference.compare(data)


@pytest.mark.parametrize(
    "content",
    [{}, {"format": "other"}, {"format": "vmfseg-shift-1", "names": ["a"], "values": [[1, 2]], "domains": []}],
)
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "shift.json").write_text(json.dumps(content))
    with pytest.raises(VmfError, match="VMF341"):
        ShiftReference.load(tmp_path / "shift.json")


def test_wrong_arguments_are_named():
    reference = ShiftReference.from_subjects(scanner(np.random.default_rng(0), 0, 9, "A"))
    with pytest.raises(ValueError, match="alpha must lie between 0 and 1, got 2"):
        reference.compare(scanner(np.random.default_rng(1), 0, 3), alpha=2)
    with pytest.raises(ValueError, match="subjects must share statistics"):
        reference.compare([])


def test_statistics_of_a_volume():
    frame = FramePrediction(
        np.zeros((2, 2, 2), np.uint8), {"entropy": 0.2, "present": 1.0, "image_mean": 0.3}, [0.25, 0.75]
    )
    assert volume_statistics(frame) == pytest.approx(
        {"entropy": 0.2, "image_mean": 0.3, "kernel 0": np.pi / 6, "kernel 1": np.pi / 3}
    )
