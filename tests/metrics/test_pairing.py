# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from vmfseg.metrics.pairing import SubjectInfo, case_name, pair_files, read_domains
from vmfseg.utils import VmfError


def fill(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("A0S9V9_sa_gt.nii.gz", "A0S9V9_sa"),
        ("A0S9V9_sa.nii.gz", "A0S9V9_sa"),
        ("x_ED_Pred.NII.GZ", "x_ED"),
        ("x-seg.mha", "x"),
        ("x.segments.nii", "x.segments"),
        ("seg.nii.gz", "seg"),
        ("labels.json", None),
        (".x_pred.nii.gz", None),
    ],
)
def test_case_names(name, case):
    assert case_name(name) == case


def test_files_pair_by_case_and_the_rest_is_named(tmp_path):
    pred = fill(tmp_path / "p", "a_ED_pred.nii.gz", "a_ES.nii.gz", "b_sa_seg.nii", "extra.nii.gz", "notes.txt")
    truth = fill(tmp_path / "t", "a_ED_gt.nii.gz", "a_ES_label.nii.gz", "b_sa_gt.nii.gz", "c.nii.gz", "labels.json")
    found = pair_files(pred, truth)
    assert [(p.case, p.subject, p.phase) for p in found.pairs] == [
        ("a_ED", "a", "ED"),
        ("a_ES", "a", "ES"),
        ("b_sa", "b", None),
    ]
    assert [p.truth.name for p in found.without_pred] == ["c.nii.gz"]
    assert [p.name for p in found.without_truth] == ["extra.nii.gz"]


def test_the_image_beside_its_label_is_not_taken_for_the_label(tmp_path):
    pred = fill(tmp_path / "p", "x_ED.nii.gz")
    truth = fill(tmp_path / "t", "x_ED.nii.gz", "x_ED_label.nii.gz")
    assert pair_files(pred, truth).pairs[0].truth.name == "x_ED_label.nii.gz"


def test_two_single_files_are_a_pair_whatever_their_names(tmp_path):
    folder = fill(tmp_path / "p", "one.nii.gz", "two.nii.gz")
    (pair,) = pair_files(folder / "one.nii.gz", folder / "two.nii.gz").pairs
    assert (pair.pred.name, pair.truth.name, pair.subject) == ("one.nii.gz", "two.nii.gz", "two")


@pytest.mark.parametrize(
    ("pred", "truth", "code", "word"),
    [
        pytest.param(["a_pred.nii.gz"], ["b_gt.nii.gz"], "VMF298", "a_pred.nii.gz and b_gt.nii.gz", id="no-pair"),
        pytest.param([], ["b_gt.nii.gz"], "VMF298", "0 and 1 files", id="empty-folder"),
        pytest.param(["a_pred.nii.gz", "a_seg.nii.gz"], ["a.nii"], "VMF299", "two files claim the case a", id="two"),
        pytest.param(["a.nii.gz", "a.nii"], ["a.nii"], "VMF299", "a.nii, a.nii.gz", id="two-suffixes"),
    ],
)
def test_names_that_do_not_pair_are_refused(tmp_path, pred, truth, code, word):
    with pytest.raises(VmfError, match=word) as caught:
        pair_files(fill(tmp_path / "p", *pred), fill(tmp_path / "t", *truth))
    assert (caught.value.code, caught.value.exit_code) == (code, 3)


def test_missing_folder_and_mixed_kinds_are_refused(tmp_path):
    folder = fill(tmp_path / "p", "a.nii.gz")
    for other in (tmp_path / "nowhere", folder / "a.nii.gz"):
        with pytest.raises(VmfError, match="VMF160"):
            pair_files(folder, other)


def test_tables_with_own_and_with_official_columns(tmp_path):
    own, official = tmp_path / "own.csv", tmp_path / "official.csv"
    own.write_text("subject,domain,annotated\na,A,LV MYO\nb,B,\n")
    assert read_domains(own) == {"a": SubjectInfo("A", (), "LV MYO"), "b": SubjectInfo("B")}
    official.write_text(
        "\ufeff,External code,VendorName,Vendor,Centre,ED,ES\n0,A0S9V9,Siemens,A,1,0,9\n", encoding="utf-8"
    )
    assert read_domains(official) == {"A0S9V9": SubjectInfo("A", (("ED", 0), ("ES", 9)))}
    own.write_text("Subject;Domain\na;A\n")
    assert read_domains(own)["a"].domain == "A"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("subjct,domain\na,A\n", "must have a column 'subject'", id="column"),
        pytest.param("subject,domain\na,A\na,B\n", "one domain", id="contradiction"),
        pytest.param("subject,domain\na,\n", "one domain", id="empty-domain"),
        pytest.param("subject,domain,ED\na,A,first\n", "frame numbers", id="frame"),
        pytest.param("", "no rows", id="empty"),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(VmfError, match=message) as caught:
        read_domains(path)
    assert caught.value.code == "VMF161"


def test_unreadable_table_is_refused(tmp_path):
    with pytest.raises(VmfError, match="VMF161"):
        read_domains(tmp_path / "missing.csv")


def test_what_segment_writes_beside_its_labels_is_left_out(tmp_path):
    beside = ["a_probabilities.nii.gz", "a_activations.nii.gz", "a_quality.json", "a_overlay.png", "summary.csv"]
    found = pair_files(fill(tmp_path / "p", "a_seg.nii.gz", *beside), fill(tmp_path / "t", "a_gt.nii.gz"))
    assert [(pair.pred.name, pair.truth.name) for pair in found.pairs] == [("a_seg.nii.gz", "a_gt.nii.gz")]
    assert found.without_truth == ()


def test_folders_of_mnms_are_searched(tmp_path):
    truth = tmp_path / "OpenDataset"
    for code, part in (("A0S9V9", "Training/Labeled"), ("B1T2W3", "Testing")):
        fill(truth / part / code, f"{code}_sa.nii.gz", f"{code}_sa_gt.nii.gz")
    fill(truth / "Training" / "Unlabeled" / "C1D2E3", "C1D2E3_sa.nii.gz")  # an image, no truth
    found = pair_files(fill(tmp_path / "p", "A0S9V9_sa_seg.nii.gz", "B1T2W3_sa_seg.nii.gz"), truth)
    assert [pair.subject for pair in found.pairs] == ["A0S9V9", "B1T2W3"]
    assert found.without_pred == ()


def test_a_datalist_is_a_table_of_domains(tmp_path):
    (tmp_path / "drawn.json").write_text('{"slices": [1, 2]}')
    lines = ["image,label,domain,subject,annotated,slices", "x/s_1.nii.gz,s_1_gt.nii.gz,A,person,1;2,0-3"]
    lines.append("s_2_sa.nii.gz,,B,other,,drawn.json")
    (tmp_path / "datalist.csv").write_text("\n".join(lines))
    table = read_domains(tmp_path / "datalist.csv")
    assert table == {"s_1": SubjectInfo("A", (), "1;2", "0-3"), "s_2": SubjectInfo("B", (), None, {"slices": [1, 2]})}
