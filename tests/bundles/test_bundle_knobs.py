# SPDX-License-Identifier: Apache-2.0
"""The settings of all bundles lie in the ranges that a training accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmfseg.bundle.config import config_files, read_config
from vmfseg.bundle.keys import check_knobs
from vmfseg.utils import VmfError

BUNDLES = sorted(path for path in (Path(__file__).parents[2] / "bundles").iterdir() if (path / "configs").is_dir())


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: path.name)
def test_settings_of_the_bundles_are_accepted(bundle):
    for file in config_files(bundle):
        check_knobs(read_config(file))


@pytest.mark.parametrize("value", [0, -5, 2.5, True, None, "many", float("nan"), float("inf"), 10**30])
def test_other_values_are_refused(value):
    with pytest.raises(VmfError, match="VMF100: max_iterations must be a whole number"):
        check_knobs({"max_iterations": value})


def test_references_and_unknown_names_are_left_alone():
    check_knobs({"max_iterations": "@other", "seed": "$1 + 1", "something": -5})
