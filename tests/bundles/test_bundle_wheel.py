# SPDX-License-Identifier: Apache-2.0
"""The wheel carries the bundles and their models: from an empty folder to a label map, without training."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import nibabel as nib
import pytest
from conftest import BUNDLES
from installed_wheel import build_wheel, install, make_environment, plain_environment

from vmfseg.phantom import draw_subject

REPOSITORY = BUNDLES.parent
SHIPPED = [name for name in ("hearts", "cords") if (BUNDLES / name / "models" / "manifest.json").is_file()]


def test_committed_models_are_shipped_ones_and_small():
    done = subprocess.run(
        ["git", "ls-files", "bundles/*/models"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("no git here")
    files = [REPOSITORY / line for line in done.stdout.splitlines() if not line.endswith(".gitkeep")]
    assert sum(file.stat().st_size for file in files) <= 25e6
    for folder in {file.parent for file in files}:
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["shipped"], "users' models stay out of the repository"
        assert manifest["data"]["is_phantom"] is True
        names = {file.name for file in files if file.parent == folder}
        assert names == {"manifest.json", *manifest["sha256"]}


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Return the scripts folder of an environment with the wheel and this one's packages, but not the repository."""
    place = tmp_path_factory.mktemp("wheel")
    scripts = make_environment(place / "env")
    install(build_wheel(place), scripts)
    return scripts


def run(installed: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(installed / "python"), "-I", "-m", "vmfseg.cli.main", *words],
        cwd=cwd, env=plain_environment(cwd / "cache"), capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hearts", "cords"])
def test_the_wheel_alone_segments(name, installed, tmp_path):
    if name not in SHIPPED:
        pytest.skip(f"no model of {name} is committed")
    draw_subject(name, 0, seed=3).save(tmp_path)
    scan = next(path for path in sorted(tmp_path.glob("*.nii.gz")) if "label" not in path.name)
    package = next(installed.parent.glob("lib/python*/site-packages/vmfseg"))
    before = sorted(str(path) for path in package.rglob("*") if "__pycache__" not in path.parts)
    done = run(installed, tmp_path, "segment", name, scan.name, "-o", "out")
    assert done.returncode == 0, done.stderr
    (labels,) = (tmp_path / "out").glob("*_seg.nii.gz")
    assert nib.load(labels).shape == nib.load(scan).shape
    assert nib.load(labels).get_fdata().max() > 0
    (quality,) = (tmp_path / "out").glob("*_quality.json")
    assert json.loads(quality.read_text())["predicted_dice"] is not None
    told = run(installed, tmp_path, "info", name, "--json")
    about = json.loads(told.stdout)
    assert about["model"]["as_noted"] is True
    assert Path(about["path"]).is_relative_to(package)
    assert sorted(str(path) for path in package.rglob("*") if "__pycache__" not in path.parts) == before
    weights = package / "bundles" / name / "models" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refused = run(installed, tmp_path, "segment", name, scan.name, "-o", "again")
    weights.write_bytes(content)
    assert refused.returncode == 5
    assert "VMF412" in refused.stderr


@pytest.mark.slow
def test_a_training_of_an_installed_bundle_writes_to_the_current_folder(installed, tmp_path):
    words = ["--max_iterations", "2", "--epoch_length", "2", "--val_interval", "1", "--image_size", "48"]
    words += ["--phantom", '{"subjects": 4, "workers": 1}', "--network_def::channels", "[4, 8, 8]"]
    package = next(installed.parent.glob("lib/python*/site-packages/vmfseg"))
    before = sorted(str(path) for path in package.rglob("*") if "__pycache__" not in path.parts)
    done = run(installed, tmp_path, "train", "cords", *words, "--calibration::stage::max_volumes", "2")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "cords" / "models" / "model.safetensors").is_file()
    assert sorted(str(path) for path in package.rglob("*") if "__pycache__" not in path.parts) == before
