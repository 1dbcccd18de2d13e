# SPDX-License-Identifier: Apache-2.0
"""A journey: from the wheel in an empty environment to the first label map, with the model that is shipped."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from vmfseg.phantom import draw_subject

sys.path.append(str(Path(__file__).parents[1]))
from installed_wheel import REPOSITORY, build_wheel, install, make_environment, plain_environment

logger = logging.getLogger(__name__)
pytestmark = pytest.mark.skipif(
    not (REPOSITORY / "bundles" / "hearts" / "models" / "model.safetensors").is_file(), reason="no model is shipped"
)


# The kernel counts the memory of the process that forks to its child. So a small process starts the command and
# asks for its peak, instead of this one, which holds what earlier tests loaded.
WATCH = """
import resource, subprocess, sys, json
code = subprocess.run(sys.argv[2:], stderr=subprocess.STDOUT).returncode
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as file:
    json.dump([usage.ru_utime + usage.ru_stime, usage.ru_maxrss], file)
sys.exit(code)
"""


def measured(command, folder):
    """Run a command; return what it prints, its seconds, its seconds of CPU, and the memory at its peak in GB."""
    start = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-c", WATCH, folder.parent / "usage.json", *map(str, command)],
        cwd=folder,
        env=plain_environment(folder / "cache"),
        capture_output=True,
        encoding="utf-8",
    )
    seconds = time.monotonic() - start
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    cpu, peak = json.loads((folder.parent / "usage.json").read_text())
    return run.stdout, seconds, cpu, peak * (1 if sys.platform == "darwin" else 1024) / 1e9


@pytest.fixture
def scan(request, tmp_path):
    """Return a cine in an empty folder, and its truth at end-diastole with the slices where it is known."""
    target = tmp_path / "work" / "scan.nii.gz"
    target.parent.mkdir()
    if request.param == "real":
        files = request.getfixturevalue("real") / "sunnybrook"
        shutil.copy(files / "sunnybrook_SC-HF-NI-04_cine.nii.gz", target)
        frame = json.loads((files / "sunnybrook_SC-HF-NI-04_cine.json").read_text())["ed"]
        drawn = json.loads((files / "sunnybrook_SC-HF-NI-04_ED_annotated.json").read_text())["slices"]
        truth = np.asarray(nib.load(files / "sunnybrook_SC-HF-NI-04_ED_label.nii.gz").dataobj)
        return target, truth, frame, drawn
    draw_subject("hearts", 0, seed=3).save(tmp_path)
    image, label = (nib.load(next(tmp_path.glob(f"*_ED{end}.nii.gz"))).slicer[:, :, 5:9] for end in ("", "_label"))
    nib.save(image, target)
    truth = np.asarray(label.dataobj)
    return target, truth, None, list(range(truth.shape[2]))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize(
    "scan", ["phantom", pytest.param("real", marks=[pytest.mark.real_data, pytest.mark.slow])], indirect=True
)
def test_from_the_wheel_to_a_label_map(scan, wheel, tmp_path):
    image, truth, frame, drawn = scan
    start = time.monotonic()
    scripts = make_environment(tmp_path / "env")
    install(wheel, scripts)
    command = [scripts / "vmfseg", "segment", "hearts", image.name, "-o", "labels"]
    told, seconds, cpu, memory = measured(command, image.parent)
    spent = time.monotonic() - start
    logger.info("wheel %.1f MB, empty environment to label map %.1f s", wheel.stat().st_size / 1e6, spent)
    logger.info("the command alone: %.1f s, %.1f s of CPU, peak memory %.2f GB", seconds, cpu, memory)
    assert wheel.stat().st_size < 25e6
    assert memory < 2
    assert "scan_seg.nii.gz" in told
    labels, source = nib.load(image.parent / "labels" / "scan_seg.nii.gz"), nib.load(image)
    assert labels.shape == source.shape
    np.testing.assert_allclose(labels.affine, source.affine, atol=1e-5)
    voxels = np.asarray(labels.dataobj)
    found, true = ((one[:, :, drawn] == 1) for one in (voxels if frame is None else voxels[..., frame], truth))
    assert 2 * (found & true).sum() / (found.sum() + true.sum()) > 0.8, "the left ventricle"
    quality = json.loads((image.parent / "labels" / "scan_quality.json").read_text())
    assert quality["light"] in ("green", "amber", "red")
    assert 0 < quality["looked_at"] <= 1
    assert (image.parent / "labels" / "summary.html").is_file()
