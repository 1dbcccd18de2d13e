# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import json

import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner

from vmfseg.cli.evaluate_command import evaluate_folders
from vmfseg.cli.main import app
from vmfseg.utils import VmfError

AFFINE = np.array([[-1.25, 0.1, 0, 30], [0.1, 1.25, 0, -20], [0, 0, 8.0, 5], [0, 0, 0, 1]])
SPACING = (np.hypot(1.25, 0.1), np.hypot(1.25, 0.1), 8.0)
SHAPE = (32, 30, 6)


def heart(shift: int = 0, lv: float = 5.0) -> np.ndarray:
    x, y, _ = np.indices(SHAPE)
    radius = np.hypot(x - 14 - shift, y - 15)
    volume = np.zeros(SHAPE, np.uint8)
    volume[(np.hypot(x - 23 - shift, y - 15) < 6)] = 3
    volume[radius < 8] = 2
    volume[radius < lv] = 1
    return volume


def save(path, array, affine=AFFINE):
    path.parent.mkdir(exist_ok=True)
    nib.save(nib.Nifti1Image(array, affine), path)


@pytest.fixture
def folders(tmp_path):
    for subject, shift in (("a", 0), ("b", 1)):
        for phase, lv in (("ED", 6.0), ("ES", 4.0)):
            save(tmp_path / "gt" / f"{subject}_{phase}_gt.nii.gz", heart(0, lv))
            save(tmp_path / "pred" / f"{subject}_{phase}_pred.nii.gz", heart(shift, lv))
    (tmp_path / "table.csv").write_text("subject,domain\na,A\nb,B\n")
    return tmp_path


def run(folder, *arguments):
    command = ["evaluate", str(folder / "pred"), str(folder / "gt"), "-o", str(folder / "out"), *arguments]
    return CliRunner().invoke(app, command)


def test_two_folders_are_scored_per_domain(folders):
    result = run(folders, "--classes", "LV,MYO,RV", "--domains", str(folders / "table.csv"))
    assert result.exit_code == 0, result.output
    assert "4 volumes of 2 subjects, mean Dice" in result.output
    summary = json.loads((folders / "out" / "metrics.json").read_text())
    assert summary["domains"]["A"]["mean_dice"] == 1.0
    assert summary["domains"]["B"]["classes"]["LV"]["hd_mm"]["mean"] == pytest.approx(SPACING[0])
    assert summary["spacing_mm"][0]["spacing"] == pytest.approx(SPACING)
    truth = [int((heart(0, lv) == 1).sum()) for lv in (6.0, 4.0)]
    subject = summary["cardiac"]["subjects"][0]
    assert subject["ef_percent_true"] == pytest.approx(100 * (truth[0] - truth[1]) / truth[0])
    with (folders / "out" / "metrics.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 12


def test_json_output_is_the_file(folders):
    result = run(folders, "--classes", "LV,MYO,RV", "--protocol", "paper", "--json")
    assert json.loads(result.stdout) == json.loads((folders / "out" / "metrics.json").read_text())
    assert "reference_figures" in json.loads(result.stdout)


def test_results_are_not_overwritten_unasked(folders):
    assert run(folders, "--classes", "LV,MYO,RV").exit_code == 0
    before = (folders / "out" / "metrics.json").read_bytes()
    result = run(folders, "--classes", "a,b,c")
    assert isinstance(result.exception, VmfError)
    assert (result.exception.code, result.exception.exit_code) == ("VMF503", 6)
    assert (folders / "out" / "metrics.json").read_bytes() == before
    assert run(folders, "--classes", "a,b,c", "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    ("content", "names"),
    [
        pytest.param({"0": "background", "1": "LV", "2": "MYO", "3": "RV"}, ["LV", "MYO", "RV"], id="by-value"),
        pytest.param({"labels": {"background": 0, "LV": 1, "MYO": 2, "RV": 3}}, ["LV", "MYO", "RV"], id="nnunet"),
    ],
)
def test_labels_from_a_file(folders, content, names):
    (folders / "names.json").write_text(json.dumps(content))
    assert run(folders, "--labels", str(folders / "names.json")).exit_code == 0
    assert list(json.loads((folders / "out" / "metrics.json").read_text())["labels"].values()) == names


def test_labels_beside_the_truth_are_found_and_values_serve_without_names(folders):
    scores, _ = evaluate_folders(folders / "pred", folders / "gt")
    assert scores.labels == {1: "1", 2: "2", 3: "3"}
    (folders / "gt" / "labels.json").write_text('{"1": "LV", "2": "MYO", "3": "RV"}')
    scores, _ = evaluate_folders(folders / "pred", folders / "gt")
    assert scores.labels == {1: "LV", 2: "MYO", 3: "RV"}


def test_a_prediction_stored_in_another_orientation_scores_the_same(folders):
    before, _ = evaluate_folders(folders / "pred", folders / "gt")
    path = folders / "pred" / "b_ED_pred.nii.gz"
    image = nib.load(path)
    turned = image.as_reoriented(np.array([[1, -1], [2, 1], [0, -1]]))
    assert turned.shape != image.shape
    nib.save(nib.Nifti1Image(np.asarray(turned.dataobj), turned.affine), path)
    after, inputs = evaluate_folders(folders / "pred", folders / "gt")
    assert after.rows == before.rows
    assert inputs["warnings"] == []


@pytest.mark.parametrize(
    ("voxels", "outcome"),
    [(1e-4, "silent"), (0.3, "warned"), (0.5, "warned"), (1.0, "refused")],
    ids=["noise", "third", "half", "one"],
)
def test_grids_are_compared_at_the_corners(folders, voxels, outcome):
    moved = AFFINE.copy()
    moved[:3, 3] += voxels * AFFINE[:3, 0]
    save(folders / "pred" / "b_ED_pred.nii.gz", heart(1), moved)
    if outcome == "refused":
        with pytest.raises(VmfError, match=r"b_ED_pred.nii.gz[\s\S]*1 voxels") as caught:
            evaluate_folders(folders / "pred", folders / "gt")
        assert (caught.value.code, caught.value.exit_code) == ("VMF277", 3)
        return
    _, inputs = evaluate_folders(folders / "pred", folders / "gt")
    assert [line.startswith("b_ED_pred.nii.gz: corners") for line in inputs["warnings"]] == [True] * (
        outcome == "warned"
    )


def test_other_shape_is_refused(folders):
    save(folders / "pred" / "a_ED_pred.nii.gz", heart()[:-1])
    with pytest.raises(VmfError, match="VMF273"):
        evaluate_folders(folders / "pred", folders / "gt")


def test_files_without_partner_are_named_and_counted_on_demand(folders):
    (folders / "pred" / "b_ES_pred.nii.gz").rename(folders / "pred" / "c_ES_pred.nii.gz")
    result = run(folders, "--classes", "LV,MYO,RV")
    assert "1 truth file(s) without prediction (NOT in the means" in result.stderr
    assert "b_ES_gt.nii.gz" in result.stderr
    assert "c_ES_pred.nii.gz" in result.stderr
    skipped = json.loads((folders / "out" / "metrics.json").read_text())
    assert skipped["overall"]["n_volumes"] == 3
    run(folders, "--classes", "LV,MYO,RV", "--count-missing", "--overwrite")
    counted = json.loads((folders / "out" / "metrics.json").read_text())
    assert counted["overall"]["classes"]["RV"]["dice"]["n_missed"] == 1
    assert counted["mean_dice"] < skipped["mean_dice"]


def test_cine_files_are_scored_at_the_frames_of_the_table(tmp_path):
    cine = np.stack([heart(0, 6.0), 0 * heart(), heart(0, 4.0), 0 * heart()], axis=-1)
    save(tmp_path / "gt" / "a_sa_gt.nii.gz", cine)
    save(tmp_path / "pred" / "a_sa_pred.nii.gz", np.stack([heart(k % 2, 6.0 - k) for k in range(4)], axis=-1))
    (tmp_path / "table.csv").write_text("subject,domain,ED,ES\na,A,0,2\n")
    run(tmp_path, "--classes", "LV,MYO,RV", "--domains", str(tmp_path / "table.csv"))
    summary = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert (set(summary["phases"]), summary["mean_dice"]) == ({"ED", "ES"}, 1.0)
    scores, inputs = evaluate_folders(tmp_path / "pred", tmp_path / "gt")
    assert sorted({row.frame for row in scores.rows}) == [0, 2]
    assert "2 of 4 frames have a truth" in inputs["warnings"][0]
    (tmp_path / "table.csv").write_text("subject,domain,ED,ES\na,A,0,4\n")
    result = run(tmp_path, "--overwrite", "--domains", str(tmp_path / "table.csv"))
    assert result.exception.code == "VMF235"


def test_classes_not_annotated_are_excluded_by_the_table(folders):
    for phase in ("ED", "ES"):
        truth = heart(0, 5.0)
        save(folders / "gt" / f"b_{phase}_gt.nii.gz", np.where(truth == 3, 0, truth))
    (folders / "table.csv").write_text("subject,domain,annotated\na,A,\nb,B,LV 2\n")
    run(folders, "--classes", "LV,MYO,RV", "--domains", str(folders / "table.csv"))
    rv = json.loads((folders / "out" / "metrics.json").read_text())["overall"]["classes"]["RV"]["dice"]
    assert (rv["n"], rv["n_spurious"], rv["n_excluded"], rv["n_not_annotated"]) == (2, 0, 2, 2)


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        pytest.param(["--classes", "LV,MYO"], "VMF270", "got 3 (", id="unnamed-label"),
        pytest.param(["--classes", "a", "--labels", "b.json"], "VMF162", "give one of the two", id="both"),
        pytest.param(["--labels", "missing.json"], "VMF301", "cannot be read", id="missing-labels"),
    ],
)
def test_wrong_labels_are_refused(folders, arguments, code, word):
    result = run(folders, *arguments)
    assert result.exception.code == code
    assert word in str(result.exception)
    assert not (folders / "out").exists()


@pytest.mark.parametrize("content", ["[1, 2]", '{"a": "b"}', '{"a": null}'], ids=["list", "words", "null"])
def test_labels_that_map_nothing_are_refused(folders, content):
    (folders / "names.json").write_text(content)
    assert run(folders, "--labels", str(folders / "names.json")).exception.code == "VMF163"


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ("subject,domain\na,A\n", "1 missing: b"),
        ("subject,domain,annotated\na,A,\nb,B,LW\n", "Did you mean 'LV'"),
        ("subject,domain,ED\na,A,\u00b2\nb,B,1\n", "ED and ES must be frame numbers"),
        (f"subject,domain,ED\na,A,{'9' * 5001}\nb,B,1\n", "ED and ES must be frame numbers"),
    ],
    ids=["subject", "class", "power of two", "5001 digits"],
)
def test_tables_that_do_not_fit_are_refused(folders, table, word):
    (folders / "table.csv").write_text(table)
    result = run(folders, "--classes", "LV,MYO,RV", "--domains", str(folders / "table.csv"))
    assert result.exception.code == "VMF161"
    assert word in str(result.exception)


def test_slices_that_nobody_drew_do_not_count(tmp_path):
    """By the data's own table: annotated and slices as in training."""
    truth, pred = heart(0), heart(0)
    truth[..., 4:] = 0  # nobody drew there, the prediction goes on
    save(tmp_path / "gt" / "s1_label.nii.gz", truth)
    save(tmp_path / "gt" / "s1.nii.gz", np.random.default_rng(0).random(SHAPE).astype(np.float32))
    save(tmp_path / "pred" / "s1_seg.nii.gz", pred)
    save(tmp_path / "pred" / "s1_probabilities.nii.gz", np.zeros((*SHAPE, 4), np.float32))
    dice = {}
    for name, slices in (("all", ""), ("drawn", "0-3")):
        table = tmp_path / f"{name}.csv"
        table.write_text(f"image,label,domain,subject,annotated,slices\ns1.nii.gz,s1_label.nii.gz,A,p1,1;2,{slices}\n")
        result = run(tmp_path, "--classes", "LV,MYO,RV", "--domains", str(table), "--overwrite")
        assert result.exit_code == 0, result.output
        classes = json.loads((tmp_path / "out" / "metrics.json").read_text())["overall"]["classes"]
        assert classes["RV"]["dice"]["n_not_annotated"] == 1
        dice[name] = classes["LV"]["dice"]["mean"]
    assert dice == {"all": pytest.approx(2 * 4 / (4 + 6)), "drawn": 1.0}


@pytest.mark.parametrize("role", ["pred", "gt"])
def test_a_raw_scan_is_no_label_map(folders, role):
    scan = np.random.default_rng(0).integers(0, 900, SHAPE).astype(np.int16)
    save(folders / role / f"a_ED_{role}.nii.gz", scan)
    result = run(folders)
    assert result.exception.code == "VMF270", result.output
    assert f"a_ED_{role}.nii.gz" in result.exception.subject
    assert "is it the scan?" in result.exception.found


def test_negative_labels_are_refused_as_data(folders):
    save(folders / "pred" / "a_ED_pred.nii.gz", heart().astype(np.int16) - 1)
    result = run(folders)
    assert (result.exception.code, result.exception.exit_code) == ("VMF270", 3)
