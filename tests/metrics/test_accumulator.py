# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest
from metric_oracles import random_blob

from vmfseg.metrics import SegmentationScores

SPACING = (1.25, 1.25, 8.0)
LABELS = {1: "LV", 2: "RV"}


def volume(seed: int) -> tuple[np.ndarray, np.ndarray]:
    truth = random_blob(seed, (20, 18, 4)) * (1 + (np.indices((20, 18, 4))[0] > 9))
    return np.roll(truth, 1, axis=0), truth


def filled(seeds: list[int], protocol: str = "clean") -> SegmentationScores:
    scores = SegmentationScores(LABELS, protocol)
    for seed in seeds:
        scores.update(*volume(seed), SPACING, subject=f"s{seed}", domain="AB"[seed % 2], phase="ED")
    return scores


@pytest.mark.parametrize("protocol", ["clean", "paper"])
def test_merged_ranks_equal_one_process_even_with_padding(protocol):
    whole = filled([0, 1, 2, 3, 4], protocol)
    first, second = filled([4, 0, 2], protocol), filled([1, 3, 0], protocol)  # the sampler repeats 0 to even out
    first.merge(json.loads(json.dumps(second.state())))
    assert first.rows == whole.rows
    assert first.compute() == whole.compute()


def test_order_of_volumes_does_not_matter():
    assert filled([0, 1, 2]).compute() == filled([2, 0, 1]).compute()


def test_a_volume_scored_twice_is_refused():
    scores = filled([0])
    with pytest.raises(ValueError, match=r"must name a volume once, got \('A', 's0', 'ED', -1\) again"):
        scores.update(*volume(0), SPACING, subject="s0", domain="A", phase="ED")
    scores.update(*volume(0), SPACING, subject="s0", domain="A", phase="ES")
    scores.update(*volume(0), SPACING, subject="s0", domain="A", phase="ED", frame=3)
    assert scores.compute()["overall"]["n_volumes"] == 3
    assert scores.compute()["overall"]["n_subjects"] == 1


def test_ranks_that_disagree_are_refused():
    scores, other = filled([0]), SegmentationScores(LABELS)
    other.update(*volume(1), SPACING, subject="s0", domain="A", phase="ED")
    with pytest.raises(ValueError, match="states must agree on a volume they share"):
        scores.merge(other.state())


def test_a_volume_that_cannot_be_scored_leaves_no_trace():
    scores = filled([0])
    before = scores.state()
    with pytest.raises(ValueError, match="spacing must give 3"):
        scores.update(*volume(1), None, subject="s1")
    assert scores.state() == before


def test_reset_forgets():
    scores = filled([0, 1], "paper")
    scores.reset()
    assert scores.state() == []


def test_annotation_by_iterator_reaches_both_protocols():
    scores = SegmentationScores(LABELS, "paper")
    scores.update(*volume(0), SPACING, subject="s0", annotated=iter([1]))
    assert [row.status for row in scores.rows] == ["scored", "not_annotated"]
    assert len(scores.reference_rows) == 1


def test_write_puts_both_files(tmp_path):
    json_path, csv_path = filled([0, 1]).write(tmp_path)
    assert (json_path.name, csv_path.name) == ("metrics.json", "metrics.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.csv", "metrics.json"]
