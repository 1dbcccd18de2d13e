# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
from dataclasses import replace

import pytest

from vmfseg.data import Datalist, labeled_fraction, leave_one_domain_out
from vmfseg.data.datalist import Row
from vmfseg.data.splits import Split, weakly_labeled
from vmfseg.utils import VmfError

GROUPS = {"A/1": 95, "B/2": 74, "B/3": 51, "C/4": 50, "D/5": 50}  # the labelled subjects of M&Ms
LABELS = {0: "background", 1: "LV", 2: "MYO", 3: "RV"}


def mnms(extra_frames: int = 0) -> Datalist:
    """Return rows like those of the full release, in random order; 25 unlabelled GE subjects included."""
    rows = []
    for group, count in GROUPS.items():
        for number in range(count):
            subject = f"{group[0]}{group[2]}{number:03d}"
            frames = [("ED", 0), ("ES", 1), *((None, 2 + k) for k in range(extra_frames))]
            rows += [
                Row(
                    image=f"{subject}_sa.nii.gz",
                    label=f"{subject}_sa_gt.nii.gz" if phase else None,
                    domain=group[0],
                    group=group,
                    subject=subject,
                    frame=frame,
                    phase=phase,
                )
                for phase, frame in frames
            ]
    for number in range(25):
        subject = f"C4u{number:03d}"
        rows.append(Row(image=f"{subject}_sa.nii.gz", domain="C", group="C/4", subject=subject, frame=0))
    random.Random(0).shuffle(rows)
    return Datalist("mnms", "/data", LABELS, rows)


DATA = mnms()
COUNTS = [  # target, fraction, protocol, labelled subjects by group (methods.md, 4.3)
    pytest.param("A", 0.02, "reference", [3, 3, 2, 2], id="A-2-reference"),
    pytest.param("A", 0.02, "clean", [2, 2, 1, 1], id="A-2-clean"),
    pytest.param("A", 0.05, "reference", [5, 4, 4, 4], id="A-5-reference"),
    pytest.param("A", 0.05, "clean", [4, 3, 3, 3], id="A-5-clean"),
    pytest.param("B", 0.02, "reference", [3, 2, 2], id="B-2-reference"),
    pytest.param("B", 0.02, "clean", [2, 1, 1], id="B-2-clean"),
    pytest.param("B", 0.05, "reference", [6, 4, 4], id="B-5-reference"),
    pytest.param("B", 0.05, "clean", [5, 3, 3], id="B-5-clean"),
    pytest.param("C", 0.02, "reference", [3, 3, 3, 2], id="C-2-reference"),
    pytest.param("C", 0.02, "clean", [2, 2, 2, 1], id="C-2-clean"),
    pytest.param("C", 0.05, "reference", [6, 5, 4, 4], id="C-5-reference"),
    pytest.param("C", 0.05, "clean", [5, 4, 3, 3], id="C-5-clean"),
    pytest.param("D", 0.02, "reference", [3, 3, 3, 2], id="D-2-reference"),
    pytest.param("D", 0.02, "clean", [2, 2, 2, 1], id="D-2-clean"),
    pytest.param("D", 0.05, "reference", [6, 5, 4, 4], id="D-5-reference"),
    pytest.param("D", 0.05, "clean", [5, 4, 3, 3], id="D-5-clean"),
    pytest.param("A", 1.0, "reference", [74, 51, 50, 50], id="A-100"),
    pytest.param("B", 1.0, "reference", [95, 50, 50], id="B-100"),
]
TOTALS = {("A", 0.02): (10, 6), ("B", 0.02): (7, 4), ("C", 0.02): (11, 7), ("D", 0.02): (11, 7)}
TOTALS |= {("A", 0.05): (17, 13), ("B", 0.05): (14, 11), ("C", 0.05): (19, 15), ("D", 0.05): (19, 15)}


@pytest.mark.parametrize(("target", "fraction", "protocol", "counts"), COUNTS)
def test_labelled_counts_are_those_of_the_paper_and_of_its_code(target, fraction, protocol, counts):
    split = leave_one_domain_out(DATA, target, labeled_fraction=fraction, protocol=protocol)
    groups = [group for group in GROUPS if group[0] != target]
    chosen = {group: sorted({r.subject for r in split.labeled if r.group == group}) for group in groups}
    assert [len(chosen[group]) for group in groups] == counts
    if fraction < 1:
        assert sum(counts) == TOTALS[target, fraction][protocol == "clean"]
    for group in groups:  # the first ones by code
        assert chosen[group] == [f"{group[0]}{group[2]}{number:03d}" for number in range(len(chosen[group]))]
    assert len(split.labeled) == 2 * sum(counts)


@pytest.mark.parametrize("protocol", ["clean", "reference"])
@pytest.mark.parametrize("target", "ABCD")
@pytest.mark.parametrize("fraction", [0.02, 0.5, 1.0])
def test_nothing_leaks(target, protocol, fraction):
    data = mnms(extra_frames=1)
    split = leave_one_domain_out(data, target, labeled_fraction=fraction, protocol=protocol, validation_fraction=0.2)
    domains = {name: {row.domain for row in getattr(split, name)} for name in ("labeled", "unlabeled", "validation")}
    assert target not in set().union(*domains.values())
    assert {row.domain for row in split.target} == {target}
    people = {name: set(split.subjects(name)) for name in ("labeled", "unlabeled", "validation", "target")}
    assert not people["validation"] & (people["labeled"] | people["unlabeled"])
    assert not people["target"] & (people["labeled"] | people["unlabeled"] | people["validation"])
    assert not any(row.is_labeled for row in split.unlabeled)
    assert all(row.is_labeled for row in (*split.labeled, *split.validation, *split.target))
    if protocol == "clean":
        assert not people["labeled"] & people["unlabeled"]
        source = {subject for subject in data.subjects if subject[0] != target}
        assert people["labeled"] | people["unlabeled"] | people["validation"] == source
    else:
        assert people["labeled"] <= people["unlabeled"]


def test_reference_pool_is_every_row_of_every_source_subject():
    data = mnms(extra_frames=2)
    split = leave_one_domain_out(data, "A", labeled_fraction=0.05, protocol="reference")
    assert len(split.unlabeled) == sum(row.domain != "A" for row in data.rows)
    assert split.validation == ()


def test_other_frames_of_labelled_subjects_are_used_on_demand():
    data = mnms(extra_frames=2)
    without = leave_one_domain_out(data, "B", labeled_fraction=1.0, validation_fraction=0.0)
    assert {row.subject for row in without.unlabeled} == {f"C4u{n:03d}" for n in range(25)}
    shared = leave_one_domain_out(data, "B", labeled_fraction=1.0, validation_fraction=0.0, shared_subjects=True)
    assert len(shared.unlabeled) == 25 + 2 * 195
    assert not {(r.image, r.frame) for r in shared.unlabeled} & {(r.image, r.frame) for r in shared.labeled}


def test_validation_takes_unused_labels_first_and_keeps_the_counts():
    split = leave_one_domain_out(DATA, "A", labeled_fraction=0.05)
    assert len(split.subjects("labeled")) == 13
    per_group = {group: {r.subject for r in split.validation if r.group == group} for group in GROUPS}
    assert {group: len(people) for group, people in per_group.items()} == {
        "A/1": 0,
        "B/2": 1,
        "B/3": 1,
        "C/4": 1,
        "D/5": 1,
    }
    assert not any(subject.startswith("C4u") for subject in split.subjects("validation"))
    full = leave_one_domain_out(DATA, "A", labeled_fraction=1.0, validation_fraction=0.1)
    assert full.counts()["labeled"] + full.counts()["validation"] == 225
    assert full.counts()["validation"] == 8 + 6 + 5 + 5


def test_seed_moves_validation_but_not_the_labelled_subjects():
    splits = [leave_one_domain_out(DATA, "A", labeled_fraction=0.05, seed=seed) for seed in (0, 0, 1)]
    assert splits[0].hash == splits[1].hash != splits[2].hash
    assert splits[0].subjects("labeled") == splits[2].subjects("labeled")
    drawn = [labeled_fraction(DATA, 0.05, selection="random", seed=seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [len(people) for people in drawn[2].values()] == [5, 4, 3, 3, 3]


@pytest.mark.parametrize("protocol", ["clean", "reference"])
def test_split_survives_the_datalist(protocol, tmp_path):
    split = leave_one_domain_out(DATA, "C", labeled_fraction=0.02, protocol=protocol)
    split.apply(DATA).save(tmp_path / "datalist.json")
    again = Split.from_datalist(Datalist.load(tmp_path / "datalist.json", check_files=False))
    assert again.hash == split.hash
    assert again.counts() == split.counts()


def test_weak_rows_are_labelled_rows_of_training_subjects_only():
    split = leave_one_domain_out(DATA, "D", labeled_fraction=0.02)
    rows = weakly_labeled(DATA, split)
    assert all(row.is_labeled and row.domain != "D" for row in rows)
    assert {row.subject for row in rows}.isdisjoint(split.subjects("validation"))
    assert len({row.subject for row in rows}) == 95 + 74 + 51 + 50 - len(split.subjects("validation"))


def row(name: str, domain: str, label: bool = True) -> Row:
    return Row(image=f"{name}.nii", label=f"{name}_l.nii" if label else None, domain=domain, subject=name)


LEAKS = [  # labelled, unlabelled, validation, target, message
    pytest.param([row("a", "A")], [row("t", "B", False)], [], [row("t", "B")], "target subject", id="T83-transductive"),
    pytest.param([row("a", "A")], [row("u", "B", False)], [], [row("t", "B")], "target domain", id="target-domain"),
    pytest.param([row("a", "A")], [], [row("a", "A")], [row("t", "B")], "validation subject", id="T81-validation"),
    pytest.param([row("a", "A")], [row("a", "A", False)], [], [row("t", "B")], "unlabelled as well", id="T81-both"),
    pytest.param([row("a", "A")], [row("u", "A")], [], [row("t", "B")], "must not carry labels", id="label-kept"),
]


@pytest.mark.parametrize(("labeled", "unlabeled", "validation", "target", "message"), LEAKS)
def test_leaking_split_cannot_be_built(labeled, unlabeled, validation, target, message):
    with pytest.raises(VmfError, match=f"VMF288: .*{message}"):
        Split(labeled, unlabeled, validation, target)


def small(**kwargs) -> Datalist:
    rows = [replace(row(f"{d}{i}", d), **kwargs) for d in ("siteA", "siteB") for i in range(3)]
    return Datalist("demo", "/data", LABELS, rows)


ERRORS = [
    pytest.param(small(), "sietA", {}, "(?s)VMF290.*Did you mean 'siteA'", id="unknown-target"),
    pytest.param(
        small().with_rows(r for r in small().rows if r.domain == "siteA"), "siteA", {}, "VMF291", id="T85-one-domain"
    ),
    pytest.param(small(label=None), "siteA", {}, "VMF292", id="T85-no-labels"),
    pytest.param(small(annotated=(1, 2)), "siteA", {}, "(?s)VMF293.*none annotates RV", id="T85-class-absent"),
    pytest.param(small(), "siteA", {"labeled_fraction": 0.0}, "must be above 0 and at most 1, got 0.0", id="fraction"),
    pytest.param(small(), "siteA", {"labeled_fraction": 5}, "Write 5 % as 0.05", id="percent"),
    pytest.param(small(), "siteA", {"validation_fraction": -1}, "validation_fraction must be between", id="validation"),
    pytest.param(small(), "siteA", {"protocol": "referens"}, "Did you mean 'reference'", id="protocol"),
]


@pytest.mark.parametrize(("data", "target", "kwargs", "message"), ERRORS)
def test_impossible_split_is_refused(data, target, kwargs, message):
    with pytest.raises(ValueError, match=message):
        leave_one_domain_out(data, target, **kwargs)


def test_single_subject_of_a_group_stays_in_training():
    rows = [row("a", "A"), row("b", "B"), row("t", "C")]
    split = leave_one_domain_out(Datalist("demo", "/data", {0: "background", 1: "LV"}, rows), "C")
    assert split.counts() == {"labeled": 2, "unlabeled": 0, "validation": 0, "target": 1}
