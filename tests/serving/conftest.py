# SPDX-License-Identifier: Apache-2.0
"""A real server in a process of its own, on a free port, with a small bundle and a folder of studies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
sys.path.append(str(Path(__file__).parent.parent / "model"))
from browser_driver import Browser, find_browser
from inference_bundle import tiny_network, write_tiny_bundle
from serving_tools import ServerProcess, ServerThread, oblique, tree, voxels

from vmfseg.model import Predictor
from vmfseg.serving import ImageIndex, Service, ServiceOptions
from vmfseg.serving.routes import page
from vmfseg.serving.served_models import ServedModel

MODEL = "vmfnet_mnms"


@pytest.fixture(scope="session")
def bundle(tmp_path_factory) -> Path:
    """Return the folder of a bundle that tests read only."""
    return write_tiny_bundle(tmp_path_factory.mktemp("bundles"), tiny_network())


def write_studies(root: Path) -> Path:
    """Fill a folder: two plain scans, one oblique, one cine, one in a subfolder."""
    plain = np.diag([1.3, 1.3, 8.0, 1.0])
    (root / "site").mkdir(parents=True)
    for name, affine, shape, seed in (
        ("scan0", plain, (30, 26, 5), 0),
        ("scan1", plain, (28, 30, 4), 1),
        ("tilted", oblique(), (30, 26, 5), 2),
        ("cine", plain, (24, 26, 3, 4), 3),
        ("site/scan0", plain, (30, 26, 3), 4),
    ):
        nib.save(nib.Nifti1Image(voxels(shape, seed), affine), root / f"{name}.nii.gz")
    return root


@pytest.fixture(scope="session")
def server(tmp_path_factory, bundle) -> Iterator[ServerProcess]:
    """Return a server that all tests share, as users start it; what a test adds must not disturb others."""
    place, studies = tmp_path_factory.mktemp("server"), write_studies(tmp_path_factory.mktemp("store") / "studies")
    (place / "tmp").mkdir()
    log = place / "log.txt"
    command = [sys.executable, "-m", "vmfseg.cli.main", "serve", str(bundle), "--studies", str(studies)]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, "--port", "0", "--max-upload", "4"],
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=place,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(place / "tmp"), "COLUMNS": "200"},
        )
    try:
        yield ServerProcess(process, log, studies, place / "tmp")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert not list((place / "tmp").glob("vmfseg-*")), "the server left its temporary folder behind"


@pytest.fixture(scope="session")
def predictor(bundle) -> Predictor:
    """Return the model that the servers serve."""
    return Predictor.from_bundle(bundle, "cpu")


@pytest.fixture
def own_server(predictor, tmp_path) -> Iterator[Callable[..., ServerThread]]:
    """Return a function that starts a server for this test alone, with options."""
    started: list[ServerThread] = []

    def run(**options: object) -> ServerThread:
        root = tmp_path / "studies"
        studies = ImageIndex(root if root.is_dir() else write_studies(root))
        models = {MODEL: ServedModel(MODEL, predictor)}
        started.append(ServerThread(Service(models, studies, ServiceOptions(**options))))
        return started[-1]

    yield run
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    """Return a browser that the tests of a file share."""
    if find_browser() is None:
        pytest.skip("no browser found; on Debian: apt-get install chromium")
    opened = Browser(tmp_path_factory.mktemp("browser") / "profile", (900, 640))
    yield opened
    opened.close()


@pytest.fixture
def built() -> None:
    """Skip where the page is not built."""
    if not (page.ASSETS / "index.html").is_file():
        pytest.skip("the page is not built: make web")


@pytest.fixture
def untouched(server) -> Iterator[None]:
    """Check that a test leaves nothing behind and the server alive."""
    before = tree(server.studies)
    yield
    assert server.get("/health").status_code == 200
    deadline = time.monotonic() + 10
    while server.leftovers() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.leftovers() == []
    assert tree(server.studies) == before


@pytest.fixture(scope="session")
def label_client(tmp_path_factory):
    """Return MONAI Label's own client class, from its wheel; the package itself is far too large to install."""
    folder = tmp_path_factory.mktemp("monailabel")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "monailabel==0.8.5", "-d", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index does not answer, so MONAI Label's client cannot be fetched")
    wheels = list(folder.glob("monailabel-*.whl"))
    if done.returncode or not wheels:
        pytest.skip(f"MONAI Label's client cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
    shutil.unpack_archive(str(wheels[0]), folder / "package", "zip")
    sys.path.append(str(folder / "package"))
    from monailabel.client import MONAILabelClient

    return MONAILabelClient
