# SPDX-License-Identifier: Apache-2.0
"""The wheel of this repository, and environments that hold it and borrow every other package from the present one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import torch

REPOSITORY = Path(__file__).parents[1]


def build_wheel(folder: Path) -> Path:
    """Build the wheel without a network, from a copy, so that the repository stays as it is, and return its file."""
    source = folder / "source"
    source.mkdir()
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    for name in ("vmfseg", "bundles"):
        left_out = shutil.ignore_patterns("__pycache__", "output", "eval")
        shutil.copytree(REPOSITORY / name, source / name, ignore=left_out)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(folder)]
    subprocess.run([*command, str(source)], check=True, cwd=folder, env={**os.environ, "PIP_NO_INDEX": "1"})
    (wheel,) = folder.glob("vmfseg-*.whl")
    return wheel


def make_environment(folder: Path) -> Path:
    """Make an environment without the repository and return the folder of its scripts."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    return folder / ("Scripts" if os.name == "nt" else "bin")


def install(wheel: Path, scripts: Path) -> None:
    """Install the wheel into an environment, as ``pip install`` does."""
    pip = [sys.executable, "-m", "pip", "--python", str(scripts / "python"), "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*pip, str(wheel)], check=True, cwd=wheel.parent)


def plain_environment(cache: Path) -> dict[str, str]:
    """Return the variables of a process that does not find the repository by them."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {**kept, "VMFSEG_CACHE": str(cache), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
