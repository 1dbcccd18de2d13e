# SPDX-License-Identifier: Apache-2.0
"""Verbs that come after a training execute nothing of a bundle, whatever its configs, notes and manifest hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner

sys.path.append(str(Path(__file__).parents[1] / "model"))
from inference_bundle import edit_manifest, tiny_network, write_tiny_bundle

from vmfseg.cli.main import app
from vmfseg.utils.errors import find_vmf_error

CANARY = "canary_of_the_verbs"
CODE = f"$__import__('pathlib').Path('{CANARY}').touch()"
RUNNER = CliRunner(env={"COLUMNS": "100", "TERM": "dumb"})
VERBS = {
    "segment": ["scan.nii.gz", "-o", "out", "--device", "cpu"],
    "export": ["--to", "torchscript"],
    "explain": ["scan.nii.gz", "-o", "explained.png"],
    "shift": ["scan.nii.gz"],
    "info": [],
    "report": [],
}
NEEDS_MODEL = ("segment", "export", "explain", "shift")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder with a scan and a trained bundle whose configs would run code."""
    monkeypatch.chdir(tmp_path)
    voxels = np.random.default_rng(0).integers(0, 900, (30, 26, 3)).astype(np.int16)
    nib.save(nib.Nifti1Image(voxels, np.diag([2.0, 2.0, 8.0, 1.0])), tmp_path / "scan.nii.gz")
    root = write_tiny_bundle(tmp_path, tiny_network())
    for name in ("train.json", "inference.json", "evaluate.json"):
        path = root / "configs" / name
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, "bundle_root": CODE, "device": CODE, "x": {"_target_": "os.abort"}}))
    note = root / "configs" / "metadata.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "x#_target_": "os.abort", "task": CODE}))
    (root / "configs" / "logging.conf").write_text(
        f"[loggers]\nkeys=root\n[handlers]\nkeys=h\n[formatters]\nkeys=\n[logger_root]\nhandlers=h\n"
        f"[handler_h]\nclass=FileHandler\nargs=('{CANARY}',)\n"
    )
    return root


def call(verb, root, *arguments):
    return RUNNER.invoke(app, [verb, str(root), *VERBS.get(verb, []), *arguments])


@pytest.mark.parametrize("verb", VERBS)
def test_hostile_configs_are_not_even_read_as_code(verb, place):
    result = call(verb, place)
    assert not Path(CANARY).exists()
    if verb in ("segment", "export", "explain", "info"):
        assert result.exit_code == 0, result.output
    else:  # no statistics of the source, no figures of a run
        assert find_vmf_error(result.exception) is not None


def test_bundle_check_finds_them_and_executes_nothing(place):
    result = RUNNER.invoke(app, ["bundle", "check", str(place)])
    assert result.exit_code != 0
    assert not Path(CANARY).exists()


@pytest.mark.parametrize("verb", NEEDS_MODEL)
@pytest.mark.parametrize(
    "entries",
    [
        {"network": {"_target_": "pathlib.Path.touch", "self": CANARY}},
        {"network": {"_target_": "builtins.exec", "object": f"open('{CANARY}', 'w')"}},
        {"preprocessing": [{"_target_": "SaveImaged", "keys": "image", "output_dir": CANARY}]},
        {"postprocessing": [{"_target_": "Lambdad", "keys": "pred", "func": CODE}]},
    ],
    ids=["network", "code", "saver", "lambda"],
)
def test_hostile_manifests_are_refused(verb, entries, place):
    edit_manifest(place, **entries)
    result = call(verb, place)
    assert not Path(CANARY).exists()
    if verb == "export" and "network" not in entries:  # it builds no transform
        return
    error = find_vmf_error(result.exception)
    assert error is not None, result.output
    assert error.exit_code in (4, 5)
