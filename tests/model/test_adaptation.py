# SPDX-License-Identifier: Apache-2.0
"""Adaptation without labels: which scans, which measures, which verdict."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vmfseg.model import Predictor
from vmfseg.model.adaptation import Suitability, find_own_scans, own_datalist, suitability, verdict
from vmfseg.model.quality import QualityModel


@pytest.fixture
def predictor(bundle):
    made = Predictor.from_bundle(bundle, "cpu")
    one = {"entropy": 0.1}
    made.quality = QualityModel(one, one, {"entropy": -0.1}, 0.8, 0.05)
    return made


def test_repeats_are_told_by_their_names(save_scan, tmp_path):
    for name in ("a_run1", "a_run-2", "b", "c", "c_rep2", "x/d", "y/d"):
        save_scan(f"scans/{name}.nii.gz")
    found = {scan.image[0].removeprefix(str(tmp_path / "scans")): scan.subject for scan in find_own_scans([tmp_path])}
    assert found["/a_run1.nii.gz"] == found["/a_run-2.nii.gz"] == "a"
    assert found["/c.nii.gz"] == found["/c_rep2.nii.gz"] == "c"
    assert found["/b.nii.gz"] == "b"
    assert found["/x/d.nii.gz"] != found["/y/d.nii.gz"], "two people with files of one name"


def test_a_table_names_subjects_and_its_labels_are_not_read(save_scan, tmp_path):
    for name in ("one", "two"):
        save_scan(f"{name}.nii.gz")
    rows = [{"image": f"{name}.nii.gz", "domain": "A", "subject": "s"} for name in ("one", "two")]
    (tmp_path / "scans.json").write_text(json.dumps(rows))
    assert [scan.subject for scan in find_own_scans([tmp_path / "scans.json"])] == ["s", "s"]


def test_frames_of_a_cine_are_spread_and_become_rows(save_scan, tmp_path):
    save_scan("cine.nii.gz", (30, 26, 5, 10))
    save_scan("short.nii.gz", (30, 26, 5, 3))
    save_scan("still.nii.gz")
    scans = find_own_scans([tmp_path])
    assert [scan.frames for scan in scans] == [(0, 2, 5, 8), (0, 1, 2), (None,)]
    rows = own_datalist(scans, {0: "background", 1: "LV"}).rows
    assert [row.frame for row in rows] == [0, 2, 5, 8, 0, 1, 2, None]
    assert not any(row.is_labeled for row in rows)


def test_a_broken_scan_is_named_and_the_others_are_measured(predictor, save_scan, tmp_path):
    good = save_scan("good.nii.gz")
    (tmp_path / "cut.nii.gz").write_bytes(good.read_bytes()[:400])
    (tmp_path / "text.nii").write_text("no image")
    found = suitability(predictor, find_own_scans([tmp_path]))
    assert set(found.predicted_dice) == set(found.log_likelihood) == {"good"}
    assert {name.rsplit("/", 1)[1] for name in found.left_out} == {"cut.nii.gz", "text.nii"}
    assert all(reason.startswith("VMF2") for reason in found.left_out.values())
    frame = predictor.predict(good).quality["frames"][0]
    assert found.predicted_dice["good"] == pytest.approx(frame["predicted_dice"], abs=1e-4)
    assert found.log_likelihood["good"] == pytest.approx(frame["signals"]["log_likelihood"], abs=1e-5)


def test_agreement_is_the_dice_of_two_label_maps(predictor, save_scan, tmp_path):
    first, second = (save_scan(f"p_run{k}.nii.gz", seed=k) for k in (1, 2))
    save_scan("q_run1.nii.gz")
    save_scan("q_run2.nii.gz", (30, 26, 4))  # another grid: no agreement to be had
    found = suitability(predictor, find_own_scans([tmp_path]))
    one, other = (predictor.predict(path).labels for path in (first, second))
    overlaps = [
        2 * np.sum((one == value) & (other == value)) / (np.sum(one == value) + np.sum(other == value))
        for value in (1, 2, 3)
        if np.any(one == value) or np.any(other == value)
    ]
    assert found.agreement == {"p": pytest.approx(np.mean(overlaps))}


def measures(dice=(0.7, 0.8), likelihood=(1.0, 2.0), agreement=0.9, phantom=0.8) -> Suitability:
    return Suitability(
        dict(zip("ab", dice, strict=True)), dict(zip("ab", likelihood, strict=True)), {"a": agreement}, phantom
    )


@pytest.mark.parametrize(
    ("after", "helped"),
    [
        pytest.param(measures(dice=(0.75, 0.8)), True, id="predicted Dice rises"),
        pytest.param(measures(), False, id="nothing changes"),
        pytest.param(measures(dice=(0.75, 0.7)), False, id="predicted Dice falls on the mean"),
        pytest.param(measures(dice=(0.8, 0.9), likelihood=(0.0, 1.0)), False, id="likelihood falls everywhere"),
        pytest.param(measures(dice=(0.8, 0.9), likelihood=(0.5, 2.4)), True, id="likelihood falls within its error"),
        pytest.param(measures(dice=(0.8, 0.9), agreement=0.85), False, id="repeats agree less"),
        pytest.param(measures(dice=(0.8, 0.9), phantom=0.7), False, id="the phantom is forgotten"),
        pytest.param(measures(dice=(0.8, 0.9), agreement=0.895, phantom=0.78), True, id="little is lost elsewhere"),
    ],
)
def test_the_verdict_asks_for_a_gain_without_a_loss(after, helped):
    good, reasons = verdict(measures(), after)
    assert good is helped
    assert len(reasons) == 4
