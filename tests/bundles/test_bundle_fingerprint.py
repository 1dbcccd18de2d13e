# SPDX-License-Identifier: Apache-2.0
"""What of a config decides a stage, and so its hash."""

from __future__ import annotations

import pytest
from monai.bundle import ConfigParser

from vmfseg.bundle import config_closure
from vmfseg.bundle.fingerprint import closure

CONFIG = {
    "imports": ["$import vmfseg", "$import vmfseg.bundle"],
    "seed": 0,
    "num_workers": 4,
    "output_dir": "out",
    "kappa": 10,
    "net": {"_target_": "X", "kappa": "@kappa", "seed": "@seed"},
    "train": {"loader": {"seed": "@seed", "num_workers": "@num_workers"}, "trainer": {"net": "@net", "n": "@epochs"}},
    "epochs": "$@iterations // 2",
    "iterations": 10,
    "other": "@kappa",
    "asked": "$vmfseg.bundle.config_closure('train::trainer')",
}


def test_the_closure_follows_references_into_expressions():
    assert sorted(closure(CONFIG, ["train::trainer"])) == [
        "epochs",
        "iterations",
        "kappa",
        "net",
        "seed",
        "train::trainer",
    ]


@pytest.mark.parametrize("separator", ["::", "#"])
def test_keys_that_only_say_where_are_left_out(separator):
    found = closure(CONFIG, [f"train{separator}loader"])
    assert sorted(found) == ["seed", "train::loader"]
    moved = {**CONFIG, "num_workers": 0, "output_dir": "elsewhere"}
    assert closure(moved, ["train::loader"]) == found


@pytest.mark.parametrize(("key", "value"), [("kappa", 30), ("iterations", 12), ("seed", 1)])
def test_what_decides_changes_it(key, value):
    assert closure({**CONFIG, key: value}, ["train::trainer"]) != closure(CONFIG, ["train::trainer"])


def test_what_does_not_matter_does_not():
    assert closure({**CONFIG, "other": 1}, ["train::trainer"]) == closure(CONFIG, ["train::trainer"])


def test_inside_a_config_it_sees_the_config_with_its_overrides():
    parser = ConfigParser({**CONFIG})
    parser["kappa"] = 77
    found = parser.get_parsed_content("asked")
    assert found["kappa"] == 77
    assert found["net"]["kappa"] == "@kappa"


def test_outside_of_a_config_it_is_empty():
    assert config_closure("train") == {}
