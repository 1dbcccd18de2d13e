# SPDX-License-Identifier: Apache-2.0
"""``vmfseg package``: what goes into a container, what stays at home, and a recipe that needs no network."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vmfseg import __version__
from vmfseg.bundle.check import inspect_bundle
from vmfseg.bundle.compile import write_bundle
from vmfseg.cli.main import app
from vmfseg.model import Model
from vmfseg.networks import VMFNet
from vmfseg.utils import VmfError

sys.path.append(str(Path(__file__).parents[1]))
from installed_wheel import build_wheel

RUNNER = CliRunner()


@pytest.fixture
def bundle(tmp_path) -> Path:
    """Return a trained bundle of a few kilobytes, with slices of patients beside its weights."""
    write_bundle("vmfnet_scgm", tmp_path / "bundles")
    options = {"channels": [4, 8, 8], "num_kernels": 4, "hidden_channels": 4, "out_channels": 3}
    labels = {0: "background", 1: "GM", 2: "WM"}
    definition = {"_target_": "vmfseg.networks.VMFNet", **options}
    model = Model.of_slices(definition, labels, 0.5, (32, 32), name="vmfnet_scgm", version="0.1.0")
    folder = tmp_path / "bundles" / "vmfnet_scgm"
    model.save(folder / "models", VMFNet(seed=0, **options).state_dict())
    (folder / "models" / "calibration.safetensors").write_bytes((folder / "models" / "model.safetensors").read_bytes())
    return folder


@pytest.fixture
def wheel(tmp_path) -> Path:
    path = tmp_path / "dist" / f"vmfseg-{__version__}-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vmfseg/__init__.py", "")
    return path


def test_a_recipe_holds_bundle_wheel_pins_and_sums(bundle, wheel, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, ["package", "vmfnet_scgm", "-o", "box"], catch_exceptions=False)
    assert result.exit_code == 0
    box = tmp_path / "box"
    copied = box / "bundle" / "vmfnet_scgm"
    assert inspect_bundle(copied) == []
    assert Model.load(copied).build_network().state_dict().keys()
    assert not list(box.rglob("calibration*"))  # pixels of patients
    assert (box / "wheels" / wheel.name).read_bytes() == wheel.read_bytes()
    sums = dict(line.split("  ")[::-1] for line in (box / "SHA256SUMS").read_text().splitlines())
    files = {path.relative_to(box).as_posix() for path in box.rglob("*") if path.is_file()} - {"SHA256SUMS"}
    assert set(sums) == files
    for name, digest in sums.items():
        assert hashlib.sha256((box / name).read_bytes()).hexdigest() == digest
    pins = dict(line.split("==") for line in (box / "requirements.txt").read_text().splitlines())
    assert pins["vmfseg"] == __version__
    assert metadata.version("monai") == pins["monai"]
    assert {"torch", "nibabel", "itk", "typer"} <= set(pins)


def test_the_dockerfile_asks_no_network_and_runs_a_command_that_exists(bundle, wheel, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, options in (("segment", []), ("serve", ["--serve"])):
        assert RUNNER.invoke(app, ["package", str(bundle), "-o", name, *options]).exit_code == 0
        text = (tmp_path / name / "Dockerfile").read_text()
        assert not re.search(r"\{[A-Z]+\}", text + (tmp_path / name / "README.md").read_text())
        install = next(line for line in text.splitlines() if "pip install" in line)
        assert "--no-index" in shlex.split(install.removesuffix("\\"))
        assert "USER vmfseg" in text
        sources = [line.split()[1] for line in text.splitlines() if line.startswith("COPY")]
        assert all((tmp_path / name / source).exists() for source in sources)
        command = json.loads(next(line for line in text.splitlines() if line.startswith("CMD"))[4:])
        assert command[:2] == [name, "/opt/bundle/vmfnet_scgm"]
        shown = RUNNER.invoke(app, [command[0], "--help"], env={"COLUMNS": "200"}).output
        assert all(word in shown for word in command if word.startswith("--"))


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        pytest.param(lambda b: [path.unlink() for path in (b / "models").glob("model.*")], "VMF335", id="untrained"),
        pytest.param(lambda b: (b / "configs" / "evil.py").write_text("1"), "VMF411", id="code"),
    ],
)
def test_a_bundle_that_cannot_be_deployed_is_refused(bundle, wheel, tmp_path, monkeypatch, spoil, code):
    monkeypatch.chdir(tmp_path)
    spoil(bundle)
    result = RUNNER.invoke(app, ["package", str(bundle), "-o", "box"])
    assert isinstance(result.exception, VmfError)
    assert result.exception.code == code
    assert not (tmp_path / "box").exists()


def test_without_a_wheel_and_over_an_output_nothing_is_written(bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(app, ["package", str(bundle), "-o", "box"])
    assert "pip wheel --no-deps -w dist ." in str(result.exception)
    assert not (tmp_path / "box").exists()


@pytest.mark.slow
def test_the_real_wheel_is_found_offline_by_the_command_of_the_dockerfile(bundle, tmp_path, monkeypatch):
    """The container's first step, without a container: the wheel alone gives the version of the package."""
    (tmp_path / "dist").mkdir()
    build_wheel(tmp_path / "dist")
    monkeypatch.chdir(tmp_path)
    assert RUNNER.invoke(app, ["package", str(bundle), "-o", "box"], catch_exceptions=False).exit_code == 0
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--find-links", "box/wheels", "--no-deps"]
    subprocess.run([*install, "--target", "site", f"vmfseg=={__version__}"], check=True, cwd=tmp_path)
    code = "import vmfseg, pathlib; print(vmfseg.__version__, pathlib.Path(vmfseg.__file__).parents[1].name)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": "site"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [__version__, "site"]
    assert (tmp_path / "site" / "vmfseg" / "bundle" / "container" / "Dockerfile.txt").is_file()
