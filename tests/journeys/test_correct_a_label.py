# SPDX-License-Identifier: Apache-2.0
"""A journey: serve a model, correct a label in the browser, submit, fine-tune, and get a better Dice on that case."""

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor

pytest.importorskip("fastapi", reason="the extra serve is not installed")
sys.path.append(str(Path(__file__).parent.parent / "serving"))
from browser_driver import Browser, find_browser
from page_driver import PAGE, Page
from serving_tools import ServerProcess, read_nifti

from vmfseg.serving.routes.page import ASSETS
from vmfseg.transforms.spatial import ToSliceStack

logger = logging.getLogger(__name__)
REPOSITORY = Path(__file__).parents[2]
NETWORK = (
    '{"_target_": "vmfseg.networks.VMFNet", "channels": [8, 16, 16], "num_kernels": 6, "hidden_channels": 8,'
    ' "out_channels": 4}'
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_browser() is None, reason="no browser found; on Debian: apt-get install chromium"),
    pytest.mark.skipif(not (ASSETS / "index.html").is_file(), reason="the page is not built: make web"),
]


def environment(place):
    """Return the environment of the commands; phantoms that are there already are used."""
    return {"VMFSEG_CACHE": str(place / "cache"), **os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def vmfseg(place, *words):
    """Run a command as a user types it."""
    command = [sys.executable, "-m", "vmfseg.cli.main", *map(str, words)]
    done = subprocess.run(command, cwd=place, env=environment(place), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with a bundle that was trained too briefly, one scan of the unseen scanner, and its truth."""
    place = tmp_path_factory.mktemp("journey")
    shutil.copytree(REPOSITORY / "bundles" / "vmfnet_mnms", place / "hearts")
    small = ["--network_def", NETWORK, "--image_size", 32, "--pixdim", 5, "--max_iterations", 50]
    vmfseg(place, "train", "hearts", *small, "--phantom", '{"subjects": 8}')
    cache = Path(environment(place)["VMFSEG_CACHE"])
    subject = sorted(cache.glob("phantom-mnms-*subjects8*/Testing/*/*_sa.nii.gz"))[0]
    image, truth = nib.load(subject), nib.load(str(subject).replace("_sa", "_sa_gt"))
    middle = image.shape[2] // 2
    coarse = (slice(None, None, 4), slice(None, None, 4), slice(middle - 1, middle + 2))
    steps = image.header.get_zooms()[:3] * np.array([4, 4, 1])
    (place / "studies").mkdir()
    drawn = next(frame for frame in range(truth.shape[3]) if np.asarray(truth.dataobj[..., frame]).any())
    for values, path in ((image, place / "studies" / "patient.nii.gz"), (truth, place / "truth.nii.gz")):
        voxels = torch.from_numpy(np.asarray(values.dataobj[..., drawn])[coarse].astype(np.float32))
        # the slices as the network sees them, now along the axes of the patient: strokes are easy to place by hand
        stack = ToSliceStack()(MetaTensor(voxels[None], affine=image.affine @ np.diag([4, 4, 1, 1])))[0]
        nib.save(nib.Nifti1Image(stack.numpy().astype(np.int16), np.diag([*steps, 1])), path)
    return place


@pytest.fixture(scope="module")
def server(place):
    """Return the server, started as a user does."""
    log = place / "server.log"
    command = [sys.executable, "-m", "vmfseg.cli.main", "serve", "hearts", "--studies", "studies", "--port", "0"]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, cwd=place, stdout=stream, stderr=subprocess.STDOUT, env=environment(place))
    try:
        yield ServerProcess(process, log, place / "studies", place)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def prediction(server):
    answer = server.infer(image="patient", output="image", model="hearts", params='{"result_extension": ".nii"}')
    assert answer.status_code == 200, answer.text
    return np.asarray(read_nifti(answer.content).dataobj)


def mean_dice(labels, truth):
    """Return the mean over the structures."""
    return np.mean(
        [2 * ((labels == k) & (truth == k)).sum() / ((labels == k).sum() + (truth == k).sum()) for k in (1, 2, 3)]
    )


def runs(wrong):
    """Return (start, end) of every run of true values."""
    edges = np.diff(np.concatenate([[0], wrong.astype(int), [0]]))
    return list(zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1, strict=True))


def correct(here, scan, predicted, truth):
    """Draw over everything that is wrong, line by line, as one would with a fine brush; return the strokes."""
    strokes = 0
    for slice_number in range(truth.shape[2]):
        here.slide("slice", slice_number)
        for value in np.unique(truth):
            here.press("[data-tool=brush]" if value else "[data-tool=eraser]")
            if value:
                here.press(f"#classes [data-value='{value}']")
            here.slide("size", 1)
            for y in range(truth.shape[1]):
                row = (truth[:, y, slice_number] == value) & (predicted[:, y, slice_number] != value)
                for start, end in runs(row):
                    here.drag(here.places(scan, [(start, y), (end, y)]))
                    strokes += 1
    return strokes


def test_a_corrected_label_makes_the_model_better_on_its_case(place, server):
    scan = nib.load(place / "studies" / "patient.nii.gz")
    truth = np.asarray(nib.load(place / "truth.nii.gz").dataobj).astype(np.uint8)
    before = prediction(server)
    browser = Browser(place / "profile", (900, 640))
    try:
        here = Page(browser, server.url)
        here.choose("patient")
        here.run()
        strokes = correct(here, scan, before, truth)
        here.press("submit")
        browser.wait(f"{PAGE}('message').innerText.startsWith('Submitted')")
        kept = np.asarray(nib.load(place / "studies" / "labels" / "final" / "patient.nii.gz").dataobj)
        np.testing.assert_array_equal(kept, truth)

        browser.evaluate(f"{PAGE}('training').querySelector('details').open = true; {PAGE}('steps').value = 60")
        assert here.text("train") == "Fine-tune on 1 label"
        here.press("train")
        told = browser.wait(f"/Done|failed|Stopped/.exec({PAGE}('train-state').innerText)?.[0]", 3600)
        assert told == "Done", server.get("/train/").json()
        assert browser.problems() == []
    finally:
        browser.close()
    first, second = mean_dice(before, truth), mean_dice(prediction(server), truth)
    logger.info("%d strokes, mean Dice on the case %.3f before, %.3f after", strokes, first, second)
    assert second > first + 0.02
    assert re.search(r"\+run1$", server.get("/info/").json()["models"]["hearts"]["version"])
