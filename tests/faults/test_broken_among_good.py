# SPDX-License-Identifier: Apache-2.0
"""Broken scans among good ones: each is left out by its name and code, and the good ones are measured."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from test_bad_images import REFUSED, image

sys.path.append(str(Path(__file__).parents[1] / "model"))
from inference_bundle import tiny_network, write_tiny_bundle

from vmfseg.model import Predictor
from vmfseg.model.adaptation import find_own_scans, suitability


def test_adaptation_leaves_every_bad_image_out_and_measures_the_good_one(tmp_path):
    predictor = Predictor.from_bundle(write_tiny_bundle(tmp_path, tiny_network()), "cpu")
    (tmp_path / "scans").mkdir()
    image(tmp_path / "scans", "good.nii.gz")
    made = {}
    for number, case in enumerate(REFUSED):
        (folder := tmp_path / "scans" / str(number)).mkdir()
        path = case.values[0](folder)
        if path.is_file():  # no pipes and folders
            made[str(path)] = case.values[1]
    assert len(made) > 45
    scans = [scan for scan in find_own_scans([tmp_path / "scans"]) if scan.name in made or "good" in scan.name]
    found = suitability(predictor, scans)
    assert set(found.log_likelihood) == {"good"}
    assert set(found.left_out) == {scan.name for scan in scans if "good" not in scan.name}
    assert len(found.left_out) > 40
    for name, reason in found.left_out.items():
        assert re.match(made[name], reason), (name, reason)
