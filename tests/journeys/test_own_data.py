# SPDX-License-Identifier: Apache-2.0
"""A journey: own scans with partial labels and slices that nobody drew; plan, verify, train, segment, score, report."""

from __future__ import annotations

import json

import nibabel as nib
import numpy as np
import pytest

pytestmark = pytest.mark.slow

HEADER = "image,label,domain,subject,annotated,slices"


def phantom_cord(rng, size, spacing, depth, drawn):
    """Return a stack with a bright canal, a cord in it and gray matter in the cord, and its label on ``drawn``."""
    x, y = (np.indices((size, size)) - (size - 1) / 2) * spacing
    label = np.where(np.hypot(x / 6, y / 4.5) < 1, 2, 0)
    label[np.hypot(x / 2.5, y / 1.5) < 1] = 1
    image = np.select([label == 1, label == 2, np.hypot(x, y) < 9], [70, 50, 110], 20.0)
    stack = image[..., None] + rng.normal(0, 5, (size, size, depth))
    labels = np.repeat(label[..., None], depth, axis=2)
    labels[..., drawn:] = 0
    return stack.astype(np.int16), labels.astype(np.uint8)


@pytest.fixture
def data(request, tmp_path):
    """Return a folder of cords, real or simple: one site of four drew 14 slices, one white matter only."""
    folder = tmp_path / "data"
    folder.mkdir()
    sites = {"chum": "chum_9604", "juntendo": "juntendo_9669", "milan": "milan_9709Ses1", "nwu": "nwu_9584"}
    rng = np.random.default_rng(0)
    for number, (site, name) in enumerate(sites.items()):
        if request.param == "real":
            real = request.getfixturevalue("real") / "spinal"
            image, label = (nib.load(real / f"{name}{end}.nii.gz") for end in ("", "_label"))
            voxels, labels, affine = np.asarray(image.dataobj), np.asarray(label.dataobj), image.affine
        else:
            spacing = 0.5 + 0.1 * number
            voxels, labels = phantom_cord(rng, 80, spacing, 18, 14 if site == "chum" else 18)
            affine = np.diag([spacing, spacing, 4.0, 1.0])
        if site == "nwu":
            labels = np.where(labels == 1, 0, labels)  # nobody drew the gray matter here
        nib.save(nib.Nifti1Image(voxels, affine), folder / f"{site}.nii.gz")
        nib.save(nib.Nifti1Image(labels.astype(np.uint8), affine), folder / f"{site}_label.nii.gz")
    (folder / "labels.json").write_text('{"1": "GM", "2": "WM"}')
    lines = [f"{s}.nii.gz,{s}_label.nii.gz,{s},{s},{'WM' if s == 'nwu' else ''}," for s in sites]
    (folder / "datalist.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    return folder


@pytest.mark.parametrize("data", ["simple", pytest.param("real", marks=pytest.mark.real_data)], indirect=True)
def test_from_a_folder_to_figures(data, shell, short):
    found = shell("verify", data)
    assert "VMF266" in found
    assert "write 0-13 in a column slices" in found
    table = data / "datalist.csv"
    table.write_text(table.read_text().replace("chum_label.nii.gz,chum,chum,,", "chum_label.nii.gz,chum,chum,,0-13"))
    assert "no errors, no warnings" in shell("verify", data)

    planned = shell("plan", data, "--target_domain", "chum", "--name", "mine")
    for word in ("spacing", "size", "labels", "width", "batch", "median of 3 domains", "declared"):
        assert word in planned
    assert (shell.folder / "mine_sites.png").read_bytes()[:4] == b"\x89PNG"
    config = json.loads((shell.folder / "bundles" / "mine" / "configs" / "train.json").read_text())
    assert config["labels"] == {"0": "background", "1": "GM", "2": "WM"}

    trained = shell("train", "mine", "--dataset_dir", data, "--target_domain", "chum", *short)
    assert "16/16 steps (8 labelled + 8 unlabelled)" in trained
    assert "1 volume of 1 subject, target domain unseen, mean Dice" in trained

    shell("segment", "mine", data / "chum.nii.gz", "-o", "labels", "--overlay", "png", "--probabilities")
    scored = shell("evaluate", "labels", data, "-o", "scores", "--domains", table, "--json")
    by_hand = json.loads(scored[scored.index("{") :])
    by_training = json.loads((shell.folder / "bundles" / "mine" / "output" / "metrics.json").read_text())
    assert by_hand["mean_dice"] == pytest.approx(by_training["mean_dice"], abs=1e-6)
    seen = nib.load(shell.folder / "labels" / "chum_seg.nii.gz")
    assert seen.shape == nib.load(data / "chum.nii.gz").shape

    assert "report.html" in shell("report", "mine", "--dataset_dir", data)
    page = (shell.folder / "bundles" / "mine" / "output" / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") >= 3
    assert "No pictures of cases" not in page
