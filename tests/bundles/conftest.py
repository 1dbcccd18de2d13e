# SPDX-License-Identifier: Apache-2.0
"""Tiny phantoms, and bundles run as users run them: in a process of their own, from a folder that is not theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vmfseg.phantom import make_phantom

sys.path.append(str(Path(__file__).parents[1]))
from forked_runs import ForkedRun

BUNDLES = Path(__file__).parents[2] / "bundles"
#: A network and a grid small enough for seconds; 64 is the least that the presence heads take.
NETWORK = {"network_def::channels": [4, 8, 8], "network_def::hidden_channels": 4, "network_def::num_kernels": 4}
TINY = {**NETWORK, "image_size": 64, "calibration::stage::max_volumes": 3}
SHORT = {"max_iterations": 2, "epoch_length": 2}


def short(name: str) -> dict[str, int]:
    """Return the keys that make the training of a bundle short."""
    stages = {"pretraining_iterations": 2} if name.startswith(("weak", "unsupervised")) else {}
    return {**SHORT, **stages}


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of a tiny heart and a tiny cord phantom."""
    root = tmp_path_factory.mktemp("phantoms")
    return {
        "mnms": make_phantom(root / "mnms", "mnms", subjects=5, frames=2, size=48, workers=1),
        "scgm": make_phantom(root / "scgm", "scgm", subjects=8, size=48, workers=1),
    }


@pytest.fixture(scope="session")
def run_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function that runs a config from an empty folder, with an empty home and cache, which stay empty."""
    fonts = tmp_path_factory.mktemp("matplotlib")  # MONAI imports it, and it looks for fonts when it is new

    def run(*arguments: str, program: tuple[str, ...] = (), **keys: object) -> str:
        place = tmp_path_factory.mktemp("elsewhere")
        home = tmp_path_factory.mktemp("home")
        words = [word for key, value in keys.items() for word in (f"--{key}", str(value).replace(" ", ""))]
        environment = {"HOME": str(home), "VMFSEG_CACHE": str(home / "cache"), "MPLCONFIGDIR": str(fonts)}
        if program:
            command = [*program, "monai.bundle", "run", *arguments, *words]
            values = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
            done = subprocess.run(
                command, cwd=place, env=values, capture_output=True, text=True, timeout=600, check=False
            )
        else:
            done = ForkedRun("monai.bundle", ["run", *arguments, *words], place, environment).wait()
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        assert not list(place.iterdir()), "something was written to the current folder"
        assert not [path for path in home.rglob("*") if path.is_file()], "something was written to the home folder"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives a fresh copy of a bundle: zipped, moved, unpacked, without outputs."""

    def copy(name: str) -> Path:
        place = tmp_path_factory.mktemp("moved")
        shutil.copytree(BUNDLES / name, place / name, ignore=shutil.ignore_patterns("output", "eval", "model*.*"))
        (place / name / "models").mkdir(exist_ok=True)
        archive = shutil.make_archive(str(place / "bundle"), "zip", place, name)
        shutil.rmtree(place / name)
        shutil.unpack_archive(archive, place / "un zipped")
        return place / "un zipped" / name

    return copy


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread, as the other processes of a test run do."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
