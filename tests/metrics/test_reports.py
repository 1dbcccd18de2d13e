# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from metric_oracles import random_blob

from vmfseg import __version__
from vmfseg.metrics import Case, SegmentationScores, evaluate_cases, summarize, write_metrics
from vmfseg.metrics.scores import METRICS
from vmfseg.metrics.tables import format_table
from vmfseg.utils import VmfError

SHAPE = (24, 22, 6)
SPACINGS = {"A": (1.25, 1.25, 8.0), "B": (0.9, 0.9, 10.0)}


def cases() -> list[Case]:
    """Seven volumes of two domains: one RV missed, one not annotated, one absent altogether."""
    result = []
    for number, (domain, subject, phase) in enumerate(
        [
            ("A", "a1", "ED"),
            ("A", "a1", "ES"),
            ("A", "a2", "ED"),
            ("A", "a2", "ES"),
            ("B", "b1", "ED"),
            ("B", "b1", "ES"),
            ("B", "b2", None),
        ]
    ):
        where = np.indices(SHAPE)
        truth = random_blob(number, SHAPE) * (1 + (where[0] > 8) + (where[1] > 11))
        if phase == "ES":
            truth = np.where((truth == 1) & (where[2] > 3), 0, truth)
        pred = np.roll(truth, 1 + number % 2, axis=0)
        if subject == "a2":
            pred = np.where(pred == 3, 0, pred)
        if subject == "b2":
            pred, truth = np.where(pred == 3, 0, pred), np.where(truth == 3, 0, truth)
        annotated = [1, 2] if (subject, phase) == ("b1", "ES") else None
        result.append(
            Case(
                pred.astype(np.uint8),
                truth.astype(np.uint8),
                SPACINGS[domain],
                subject,
                domain,
                phase,
                annotated=annotated,
            )
        )
    return result


@pytest.fixture(scope="module")
def rows():
    return evaluate_cases(cases(), {1: "LV", 2: "MYO", 3: "RV"})


@pytest.fixture(scope="module")
def summary(rows):
    return summarize(rows, {1: "LV", 2: "MYO", 3: "RV"})


def test_overall_is_the_weighted_mean_of_the_domains(summary):
    for name, entry in summary["overall"]["classes"].items():
        for metric in METRICS:
            parts = [domain["classes"][name][metric] for domain in summary["domains"].values()]
            assert entry[metric]["n"] == sum(part["n"] for part in parts)
            weighted = sum(part["n"] * part["mean"] for part in parts) / entry[metric]["n"]
            assert entry[metric]["mean"] == pytest.approx(weighted, abs=1e-9)
            for count in ("n_missed", "n_spurious", "n_excluded", "n_not_annotated"):
                assert entry[metric][count] == sum(part[count] for part in parts)


def test_statistics_equal_numpy_over_the_rows(rows, summary):
    for domain in ("A", "B"):
        for name in ("LV", "MYO", "RV"):
            values = [r.hd95_mm for r in rows if r.domain == domain and r.class_name == name and r.hd95_mm is not None]
            entry = summary["domains"][domain]["classes"][name]["hd95_mm"]
            assert entry["mean"] == pytest.approx(np.mean(values))
            assert entry["median"] == pytest.approx(np.median(values))
            assert entry["sd"] == (pytest.approx(np.std(values, ddof=1)) if len(values) > 1 else None)


def test_failures_stand_beside_the_means(summary):
    rv = {domain: group["classes"]["RV"]["dice"] for domain, group in summary["domains"].items()}
    assert (rv["A"]["n"], rv["A"]["n_missed"], rv["A"]["n_excluded"]) == (4, 2, 0)
    assert (rv["B"]["n"], rv["B"]["n_missed"], rv["B"]["n_excluded"], rv["B"]["n_not_annotated"]) == (1, 0, 2, 1)


def test_mean_dice_is_the_mean_over_classes_of_the_means_over_volumes(rows, summary):
    per_class = [
        np.mean([row.dice for row in rows if row.class_name == name and row.dice is not None])
        for name in ("LV", "MYO", "RV")
    ]
    assert summary["mean_dice"] == pytest.approx(np.mean(per_class), abs=1e-12)


def test_the_file_says_what_was_measured(summary):
    assert (summary["format"], summary["vmfseg_version"], summary["protocol"]) == (
        "vmfseg-metrics-1",
        __version__,
        "clean",
    )
    assert {entry["n_volumes"]: tuple(entry["spacing"]) for entry in summary["spacing_mm"]} == {
        4: SPACINGS["A"],
        3: SPACINGS["B"],
    }
    assert summary["definitions"]["hd95_mm"]["unit"] == "mm"
    assert "image in mm" in summary["policy"]
    assert set(summary["phases"]) == {"ED", "ES"}
    assert summary["labels"] == {"1": "LV", "2": "MYO", "3": "RV"}


def test_written_files_hold_no_nan_and_every_row(rows, summary, tmp_path):
    json_path, csv_path = write_metrics(tmp_path / "out", rows, summary)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert json.loads(json_path.read_text(), parse_constant=refuse) == summary
    with csv_path.open() as stream:
        table = list(csv.DictReader(stream))
    assert len(table) == len(rows) == 21
    assert len({(line["domain"], line["subject"], line["phase"], line["class_name"]) for line in table}) == 21
    chosen = next(line for line in table if (line["subject"], line["phase"], line["class_name"]) == ("a2", "ES", "RV"))
    assert (chosen["status"], float(chosen["dice"]), chosen["spacing_mm"]) == ("missed", 0.0, "1.25 1.25 8")
    assert "nan" not in csv_path.read_text().lower()


def test_existing_files_stay_without_overwrite(rows, summary, tmp_path):
    write_metrics(tmp_path, rows, summary)
    before = (tmp_path / "metrics.json").read_bytes()
    with pytest.raises(VmfError, match="VMF503"):
        write_metrics(tmp_path, rows[:3], summary)
    assert (tmp_path / "metrics.json").read_bytes() == before
    write_metrics(tmp_path, rows[:3], summary, overwrite=True)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 4


def test_a_summary_of_nothing_is_still_valid_json():
    empty = summarize([], {1: "LV"})
    assert empty["mean_dice"] is None
    assert json.loads(json.dumps(empty, allow_nan=False)) == empty
    assert "mean Dice undefined" in format_table(empty, plain=True)


def test_plain_table_shows_domains_classes_and_failures(summary):
    text = format_table(summary, plain=True)
    assert "\x1b" not in text
    lines = {tuple(line.split()[:2]): line for line in text.splitlines() if line.startswith(("A ", "B ", "all "))}
    assert len(lines) == 9
    rv = summary["domains"]["A"]["classes"]["RV"]
    assert f"{rv['dice']['mean']:.3f} ± {rv['dice']['sd']:.3f}" in lines["A", "RV"]
    assert lines["A", "RV"].split()[-3:] == ["2", "0", "0"]
    assert "LV predicted minus true: EDV" in text


def test_rich_table_has_the_same_figures(summary):
    plain, rich = format_table(summary, plain=True), format_table(summary)
    assert "\x1b[" in rich
    for name in ("LV", "MYO", "RV"):
        assert f"{summary['overall']['classes'][name]['hd95_mm']['mean']:.2f}" in rich
    assert rich.splitlines()[0] == plain.splitlines()[0]


def test_paper_protocol_names_its_figures_honestly():
    scores = SegmentationScores({1: "LV", 2: "MYO", 3: "RV"}, protocol="paper")
    for case in cases():
        scores.update(case.pred, case.truth, case.spacing, case.subject, case.domain, case.phase, case.annotated)
    result = scores.compute()
    assert result["protocol"] == "paper"
    figures = result["reference_figures"]
    assert set(figures["domains"]["A"]) == {"n_subjects", "slice_micro_dice", "mask_set_distance"}
    assert figures["domains"]["A"]["n_subjects"] == 2
    text = format_table(result, plain=True)
    assert "no distance" in text
    assert "hausdorff" not in text.lower()
    assert "reference_figures" not in summarize(scores.rows, scores.labels)


def test_unknown_protocol_is_refused():
    with pytest.raises(ValueError, match=r"got 'papr'\. Did you mean 'paper'"):
        summarize([], {1: "LV"}, protocol="papr")
